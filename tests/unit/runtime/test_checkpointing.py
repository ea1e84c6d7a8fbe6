"""What both engines do with a store: resume rules, snapshots off the path, edits before they take effect."""

import logging
import threading

import pytest

from msd.checkpoint import open_store
from msd.config.pipeline import CheckpointConfig
from msd.core.journal import Resume, Suspend, edits_to_state
from msd.errors import ConfigError, EngineError, LeaseError, StateError
from msd.runtime.checkpointing import CheckpointWriter, StoreHold, resume_point
from msd.runtime.state import run_state

IDENTITY = {"seed": 1}


def progress(step, **more):
    return {"step": step, "sources": {}, "carry": [], **more}


@pytest.fixture
def config(tmp_path):
    return CheckpointConfig(path=str(tmp_path / "ckpt"), every=10)


@pytest.fixture
def store(config):
    return open_store(config.path, keep=config.keep)


def writer_of(store, run="r1", **options):
    return CheckpointWriter(store, run=run, every=10, identity=IDENTITY, **options)


def saved_steps(store):
    return [snapshot.step for snapshot in store.snapshots()]


def test_a_run_begins_where_nothing_is_and_resumes_where_something_is(store, config, caplog):
    assert resume_point(store, config, IDENTITY) is None
    name = writer_of(store).save(progress(20))
    point = resume_point(store, config, IDENTITY)
    assert (point.step, point.progress, point.edits) == (20, progress(20), ())
    assert f"the run resumes at step 20: snapshot {name} in {store.path}" in caplog.text
    assert caplog.records[-1].levelno == logging.WARNING
    standing = point.standing()
    assert (standing.first_step, standing.generation, standing.is_resumed) == (20, 0, True)


def test_must_wants_a_snapshot_and_never_wants_none(store, config):
    must = CheckpointConfig(path=config.path, resume="must")
    never = CheckpointConfig(path=config.path, resume="never")
    with pytest.raises(ConfigError, match=r"checkpoint.resume is must, and there is no snapshot in"):
        resume_point(store, must, IDENTITY)
    assert resume_point(store, never, IDENTITY) is None
    writer_of(store).save(progress(20))
    assert resume_point(store, must, IDENTITY).step == 20
    with pytest.raises(ConfigError, match=r"checkpoint.resume is never, and .* has 1 snapshots, the newest of step 20"):
        resume_point(store, never, IDENTITY)


def test_a_snapshot_of_another_configuration_is_refused_with_the_difference_and_its_name(store, config):
    name = writer_of(store).save(progress(20))
    with pytest.raises(StateError, match=rf"seed is 2 here and 1 in the state .*snapshot {name} in"):
        resume_point(store, config, {"seed": 2})
    forced = CheckpointConfig(path=config.path, force=True)
    assert resume_point(store, forced, {"seed": 2}).step == 20
    assert saved_steps(store) == [20]


def test_a_snapshot_is_written_each_time_the_watermark_passes_a_multiple(store):
    writer = writer_of(store)
    writer.begin(0, progress(0))
    for step in (1, 9, 10, 11, 25, 26, 40):
        writer.note(step, progress)
        writer.flush()
    writer.close()
    assert saved_steps(store) == [10, 20, 40]


def test_the_watermark_itself_is_saved_where_the_multiple_is_not_known_any_more(store):
    writer = writer_of(store)
    writer.begin(0, progress(0))
    writer.note(13, lambda step: progress(step) if step == 13 else None)
    writer.close()
    assert saved_steps(store) == [13]


def test_noting_never_waits_for_the_disk(store, monkeypatch):
    """Answers TD-1."""
    is_free, save = threading.Event(), store.save
    monkeypatch.setattr(store, "save", lambda *arguments, **options: is_free.wait() and save(*arguments, **options))
    writer = writer_of(store)
    writer.begin(0, progress(0))
    for step in (10, 20, 30):
        writer.note(step, progress)
    writer.begin(1, progress(25))
    writer.note(30, progress)
    assert saved_steps(store) == []
    is_free.set()
    writer.close()
    assert saved_steps(store)[-1] == 30


def test_a_position_that_is_saved_is_not_saved_twice(store):
    writer = writer_of(store)
    name = writer.save(progress(7))
    assert writer.save(progress(7)) == name
    writer.close(progress(7))
    assert saved_steps(store) == [7]


def test_a_failed_save_in_the_background_is_told_and_the_run_goes_on(store, monkeypatch, caplog):
    def fails(*arguments, **options):
        raise EngineError("cannot write: No space left on device")

    writer = writer_of(store)
    writer.begin(0, progress(0))
    with monkeypatch.context() as patched:
        patched.setattr(store, "save", fails)
        writer.note(10, progress)
        writer.flush()
        with pytest.raises(EngineError, match="No space left"):
            writer.save(progress(11))
    assert "step 10 is not saved, and the run goes on: cannot write: No space left on device" in caplog.text
    writer.note(20, progress)
    writer.close()
    assert saved_steps(store) == [20]


def test_stats_tell_what_is_saved_how_old_it_is_and_what_failed(store, monkeypatch):
    def fails(*arguments, **options):
        raise EngineError("cannot write: No space left on device")

    writer = writer_of(store)
    writer.begin(0, progress(0))
    nothing = dict.fromkeys(("snapshot", "step", "age_steps", "size_bytes", "generation", "failure"))
    assert writer.stats(3) == {"path": store.path, "failures": 0, **nothing}
    name = writer.save(progress(10))
    (size,) = store.folder.names().values()
    saved = {"path": store.path, "snapshot": name, "step": 10, "size_bytes": size, "generation": 0}
    assert writer.stats(13) == {**saved, "age_steps": 3, "failures": 0, "failure": None}
    with monkeypatch.context() as patched:
        patched.setattr(store, "save", fails)
        writer.note(20, progress)
        writer.flush()
        with pytest.raises(EngineError):
            writer.save(progress(21))
    failed = {"failures": 2, "failure": "cannot write: No space left on device"}
    assert writer.stats(21) == {**saved, "age_steps": 11, **failed}
    writer.save(progress(22))
    assert writer.stats(22) | {"failures": 2, "failure": None} == writer.stats(22)


def test_what_another_generation_saved_has_no_age(store):
    first = writer_of(store)
    first.begin(0, progress(0))
    first.save(progress(50))
    again = writer_of(store, "r2", lineage="r1")
    again.begin(0, progress(50))
    assert [again.stats(52)[key] for key in ("generation", "age_steps")] == [0, 2]
    again.begin(1, progress(20))
    again.flush()
    assert [again.stats(21)[key] for key in ("step", "generation", "age_steps")] == [20, 1, 1]
    again.begin(2, progress(0))
    found = again.stats(0)
    assert (found["generation"], found["age_steps"]) in [(1, None), (2, 0)]
    again.close()
    follower = writer_of(store, "r2", lineage="r1")
    assert follower.stats(4)["generation"] == 2
    follower.begin(2, progress(0))
    assert follower.stats(4)["age_steps"] == 4
    assert writer_of(store, "r3").stats(0)["generation"] is None


def test_what_a_load_opened_is_where_a_restart_goes_on(store, config):
    writer = writer_of(store)
    writer.begin(0, progress(0))
    writer.save(progress(50))
    writer.begin(1, progress(20))
    writer.close()
    assert resume_point(store, config, IDENTITY).step == 20


def test_an_edit_of_before_the_first_snapshot_is_replayed_from_the_beginning(store, config):
    writer = writer_of(store)
    writer.begin(0, progress(0))
    edit = Suspend(at_step=5, source="web")
    writer.journal(edit)
    point = resume_point(store, config, IDENTITY)
    assert (point.step, point.edits) == (0, (edit,))


def test_edits_are_replayed_that_a_snapshot_neither_holds_nor_lies_behind(store, config):
    writer = writer_of(store)
    writer.begin(0, progress(0))
    first, second, third = (Suspend(at_step=step, source="web", noted_at=12) for step in (5, 25, 15))
    for edit in (first, second, third):
        writer.journal(edit)
    writer.save(progress(10))
    assert resume_point(store, config, IDENTITY).edits == (second, third)
    writer.save(progress(20, pending=edits_to_state([second])))
    point = resume_point(store, config, IDENTITY)
    assert point.edits == ()
    assert point.progress == progress(20, pending=edits_to_state([second]))
    writer.save(progress(20 + 10))
    assert [entry.number for entry in store.journal(store.newest().journal)] == []


def test_an_edit_that_a_snapshot_tells_of_is_heard_of_at_the_step_at_which_it_was(store, config):
    writer = writer_of(store)
    writer.begin(0, progress(0))
    heard, later = Suspend(at_step=25, source="web", noted_at=9), Resume(at_step=30, source="web", noted_at=12)
    for edit in (heard, later):
        writer.journal(edit)
    writer.save(progress(10, pending=edits_to_state([heard, later])))
    point = resume_point(store, config, IDENTITY)
    assert point.progress == progress(10, pending=edits_to_state([heard]))
    assert point.edits == (later,)


def test_edits_wait_in_the_position_where_the_configuration_is_another(store, config):
    writer = writer_of(store)
    writer.begin(0, progress(0))
    writer.save(progress(10))
    edit = Suspend(at_step=15, source="web", noted_at=12)
    writer.journal(edit)
    point = resume_point(store, config, {**IDENTITY, "mixture.mode": "proportional"})
    assert (point.edits, point.progress) == ((), progress(10, pending=edits_to_state([edit])))


def test_edits_of_steps_that_a_load_left_are_not_replayed(store, config):
    writer = writer_of(store)
    writer.begin(0, progress(0))
    writer.save(progress(10))
    writer.journal(Suspend(at_step=30, source="web"))
    writer.begin(1, progress(5))
    edit = Resume(at_step=40, source="web", noted_at=7)
    writer.journal(edit)
    writer.close()
    point = resume_point(store, config, IDENTITY)
    assert (point.step, point.edits) == (5, (edit,))


def test_a_writer_in_the_place_of_one_that_was_lost_goes_on_with_its_journal(store, config):
    first = writer_of(store)
    first.begin(0, progress(0))
    first.save(progress(10))
    edits = [Suspend(at_step=step, source="web", noted_at=step) for step in (12, 35)]
    first.journal(edits[0])
    second = writer_of(store)
    second.begin(0, progress(0))
    second.journal(edits[1])
    second.save(progress(20))
    assert resume_point(store, config, IDENTITY).edits == (edits[1],)


def test_a_resumed_run_goes_on_with_the_lineage_that_it_found(store, config):
    first = writer_of(store)
    first.begin(0, progress(0))
    first.save(progress(10))
    edit = Suspend(at_step=35, source="web", noted_at=30)
    first.journal(edit)
    point = resume_point(store, config, IDENTITY)
    second = writer_of(store, "r2", lineage=point.snapshot.lineage)
    second.begin(0, point.progress)
    second.save(progress(20))
    assert resume_point(store, config, IDENTITY).edits == (edit,)


def test_a_store_is_held_by_one_run_and_given_back(config):
    hold = StoreHold(config, run="r1", on_lost=lambda error: None)
    with pytest.raises(LeaseError, match="belongs to run r1"):
        StoreHold(config, run="r2", on_lost=lambda error: None)
    hold.close()
    hold.close()
    StoreHold(config, run="r2", on_lost=lambda error: None).close()


def test_a_run_that_lost_its_store_hears_of_it_and_writes_no_more(config):
    lost = threading.Event()
    quick = CheckpointConfig(path=config.path, lease_s=0.1, take_over=True)
    hold = StoreHold(quick, run="r1", on_lost=lambda error: lost.set())
    writer = writer_of(hold.store)
    writer.begin(0, progress(0))
    other = StoreHold(quick, run="r2", on_lost=lambda error: None)
    assert lost.wait(30)
    with pytest.raises(LeaseError, match=r"run r1 has lost the checkpoint .* to run r2"):
        writer.save(progress(10))
    with pytest.raises(LeaseError):
        writer.journal(Suspend(at_step=3, source="web"))
    writer.close(progress(10))
    hold.close()
    assert saved_steps(other.store) == []
    other.close()


def test_a_run_that_was_killed_is_followed_loudly(config, caplog):
    """Answers PL-1."""
    hold = StoreHold(config, run="r1", on_lost=lambda error: None)
    hold._is_closed.set()
    hold._thread.join()
    with caplog.at_level(logging.INFO, logger="msd"):
        StoreHold(CheckpointConfig(path=config.path, take_over=True), run="r2", on_lost=lambda error: None).close()
    assert "taken over from run r1" in caplog.text


def test_a_state_in_a_store_is_what_state_dict_returns(store):
    writer_of(store).save(progress(7))
    assert store.newest().state == run_state(progress(7), IDENTITY)

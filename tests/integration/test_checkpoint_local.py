"""A run that saves itself: what comes after a restart is what would have come without it."""

import contextlib
import errno
import os
import random

import numpy as np
import pytest

import msd
from msd.checkpoint import open_store
from msd.core.journal import SkipSteps
from msd.errors import ConfigError, EngineError, LeaseError, StateError
from msd.runtime.state import read_state
from msd.runtime.statefile import with_edits


def rows(seed, count):
    draw = np.random.Generator(np.random.Philox(key=seed))
    return [{"ids": draw.integers(1, 1000, int(length)).tolist()} for length in draw.integers(5, 60, count)]


@pytest.fixture
def config(tmp_path):
    def made(resume="auto", every=4, **changes):
        tokens = [{"kind": "tokens", "field": "ids"}]
        settings = {
            "sources": {
                "web": {"rows": rows(1, 300), "transforms": tokens, "shuffle": {"block_bytes": "2KiB", "window": 3}},
                "books": {"rows": rows(2, 100), "transforms": tokens},
            },
            "mixture": {"weights": {"web": 0.7, "books": 0.3}},
            "batch": {"sequence_length": 64, "global_batch_size": 4},
            "mesh": {"dp": 2},
            "num_microbatches": 1,
            "checkpoint": {"path": str(tmp_path / "ckpt"), "every": every, "resume": resume},
        }
        return msd.Config(**{**settings, **changes})

    return made


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "ckpt"))


def digest(batch):
    arrays = [row.input_ids.tobytes() + row.labels.tobytes() for row in batch.microbatches]
    return batch.step, tuple(batch.sample_ids), b"".join(arrays)


def steps_of(engine, count):
    """Take steps with both ranks."""
    clients = [engine.client(rank) for rank in range(2)]
    return [[digest(next(client)) for client in clients] for _ in range(count)]


def interrupted(settings, act):
    """Do something in a run that then ends in disorder."""
    with contextlib.suppress(KeyboardInterrupt), msd.start(settings, runtime="local") as engine:
        act(engine)
        raise KeyboardInterrupt


@pytest.fixture
def undisturbed(config):
    with msd.start(config(checkpoint=None), runtime="local") as engine:
        return steps_of(engine, 40)


def test_a_run_goes_on_where_the_last_one_ended_in_order(config, store, undisturbed, caplog):
    with msd.start(config(), runtime="local") as engine:
        assert steps_of(engine, 10) == undisturbed[:10]
    assert [snapshot.step for snapshot in store.snapshots()] == [4, 8, 10]
    with msd.start(config(), runtime="local") as engine:
        assert steps_of(engine, 5) == undisturbed[10:15]
    assert "the run resumes at step 10: snapshot snapshot-" in caplog.text


def test_a_run_that_failed_goes_on_from_its_last_snapshot(config, store, undisturbed):
    interrupted(config(), lambda engine: steps_of(engine, 11))
    assert store.newest().step == 8
    with msd.start(config(), runtime="local") as engine:
        assert steps_of(engine, 3) == undisturbed[8:11]


def test_chains_of_runs_equal_one_run(config, undisturbed):
    seen = []
    for count in (3, 1, 7, 4, 9):
        with msd.start(config(), runtime="local") as engine:
            seen += steps_of(engine, count)
    assert seen == undisturbed[: len(seen)]


def test_a_step_that_is_handed_out_is_not_taken_before_the_loop_asks_again(config, store):
    interrupted(config(every=1), lambda engine: steps_of(engine, 3))
    assert store.newest().step == 2


def test_a_run_of_which_nothing_was_taken_writes_no_snapshot(config, store):
    with msd.start(config(), runtime="local") as engine, engine.client(0):
        pass
    assert store.snapshots() == []
    with msd.start(config(seed=4), runtime="local"):
        pass


def test_a_snapshot_may_be_asked_for_and_gone_back_to(config, store, undisturbed):
    with msd.start(config(every=100), runtime="local") as engine:
        clients = [engine.client(rank) for rank in range(2)]
        for _ in range(5):
            for client in clients:
                next(client)
        name = engine.save()
        assert store.find(name=name).state == clients[0].state_dict()
        later = [[digest(next(client)) for client in clients] for _ in range(3)]
        engine.restore(name)
        assert [[digest(next(client)) for client in clients] for _ in range(3)] == later == undisturbed[5:8]
        assert clients[0].generation == 1
        engine.restore(store.find(name=name).state)
        assert digest(next(clients[0])) == later[0][0]
    assert store.newest().lineage.endswith(".2")


def test_a_restart_goes_on_where_a_rewound_run_is_not_where_it_was_before(config, store, undisturbed):
    def goes_back(engine):
        steps_of(engine, 9)
        engine.restore(store.find(step=4).name)

    interrupted(config(), goes_back)
    with msd.start(config(), runtime="local") as engine:
        assert steps_of(engine, 2) == undisturbed[4:6]


def test_a_rank_may_load_its_own_state_in_a_run_that_resumed(config, undisturbed):
    with msd.start(config(), runtime="local") as engine:
        clients = [engine.client(rank) for rank in range(2)]
        state = None
        for step in range(10):
            for client in clients:
                next(client)
            state = clients[0].state_dict() if step == 6 else state
    with msd.start(config(), runtime="local") as engine:
        clients = [engine.client(rank) for rank in range(2)]
        for client in clients:
            client.load_state_dict(state)
        assert [digest(next(client)) for client in clients] == undisturbed[7]


def test_the_checkpoint_belongs_to_one_run(config):
    with msd.start(config(), runtime="local"), pytest.raises(LeaseError, match="belongs to run"):
        msd.start(config(), runtime="local")
    msd.start(config(), runtime="local").close()


def test_a_run_that_is_forgotten_gives_its_checkpoint_back(config):
    engine = msd.start(config(), runtime="local")
    del engine
    msd.start(config(), runtime="local").close()


def test_a_run_whose_checkpoint_was_taken_over_ends_and_says_by_whom(config, tmp_path):
    quick = {"path": str(tmp_path / "ckpt"), "lease_s": 0.05}
    first = msd.start(config(checkpoint=quick), runtime="local")
    client = first.client(0)
    with msd.start(config(checkpoint=quick | {"take_over": True}), runtime="local"):
        first._keeper._hold._thread.join(60)
        with pytest.raises(LeaseError, match=r"has lost the checkpoint .* to run"):
            next(client)
    first.close()


def test_another_configuration_is_refused_with_the_difference_and_nothing_is_written(config, store, tmp_path):
    with msd.start(config(), runtime="local") as engine:
        steps_of(engine, 5)
    before = {path.name: path.read_bytes() for path in (tmp_path / "ckpt").iterdir()}
    with pytest.raises(StateError, match=r"seed is 4 here and 17 in the state .*set another checkpoint\.path"):
        msd.start(config(seed=4), runtime="local")
    assert {path.name: path.read_bytes() for path in (tmp_path / "ckpt").iterdir()} == before
    forced = {"path": str(tmp_path / "ckpt"), "force": True}
    with msd.start(config(seed=4, checkpoint=forced), runtime="local") as engine, engine.client(0) as client:
        assert next(client).step == 5


def test_another_mesh_and_other_weights_go_on(config):
    with msd.start(config(), runtime="local") as engine:
        steps_of(engine, 5)
    changed = config(mesh={"dp": 4}, mixture={"weights": {"web": 0.5, "books": 0.5}})
    with msd.start(changed, runtime="local") as engine, engine.client(3) as client:
        assert next(client).step == 5


def test_a_damaged_newest_snapshot_is_named_and_the_one_before_it_is_used(config, store, undisturbed, tmp_path, caplog):
    with msd.start(config(), runtime="local") as engine:
        steps_of(engine, 10)
    names = [snapshot.name for snapshot in store.snapshots()]
    (tmp_path / "ckpt" / names[-1]).write_bytes(b"torn")
    with msd.start(config(), runtime="local") as engine:
        assert steps_of(engine, 4) == undisturbed[8:12]
    assert f"snapshot {names[-1]} is damaged" in caplog.text
    assert f"the run resumes at step 8: snapshot {names[-2]}" in caplog.text


def test_a_checkpoint_that_cannot_be_written_is_refused_before_anything_starts(config, tmp_path, monkeypatch):
    def fails(*arguments):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patched:
        patched.setattr("msd.checkpoint.folder.os.replace", fails)
        said = r"cannot write lease\.json in the checkpoint .*: Read-only file system"
        with pytest.raises(EngineError, match=said) as error:
            msd.start(config(), runtime="local")
    assert "\n" not in str(error.value)
    assert list((tmp_path / "ckpt").iterdir()) == []
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match=r"checkpoint\.path .*file' is no folder"):
        msd.start(config(checkpoint={"path": str(tmp_path / "file")}), runtime="local")


def test_a_disk_that_fills_up_ends_no_run(config, store, monkeypatch, caplog, undisturbed):
    def fails(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with msd.start(config(), runtime="local") as engine, monkeypatch.context() as patched:
        patched.setattr("msd.checkpoint.folder.os.fsync", fails)
        assert steps_of(engine, 10) == undisturbed[:10]
        with pytest.raises(EngineError, match="No space left on device"):
            engine.save()
    assert "is not saved, and the run goes on: cannot write snapshot-" in caplog.text
    assert [snapshot.step for snapshot in store.snapshots()] == [10], "there is room again when it ends"


@pytest.mark.parametrize("resume", ["must", "never"])
def test_must_and_never_are_kept(config, resume):
    if resume == "never":
        with msd.start(config(), runtime="local") as engine:
            steps_of(engine, 2)
    with pytest.raises(ConfigError, match=f"checkpoint.resume is {resume}"):
        msd.start(config(resume=resume), runtime="local")
    msd.start(config(), runtime="local").close()


def test_edits_are_journalled_before_they_act_and_replayed_by_the_run_that_resumes(config, store):
    def drawn(batches):
        return [{sample.source for digests in step for sample in digests[1]} for step in batches]

    with msd.start(config(checkpoint=None), runtime="local") as engine:
        assert engine.suspend("books", at_step=6) == 6
        expected = steps_of(engine, 10)
    assert "books" in drawn(expected[:6])[0] | drawn(expected[:6])[1]
    assert all("books" not in sources for sources in drawn(expected[8:]))

    def suspends(engine):
        engine.suspend("books", at_step=6)
        assert len(store.journal()) == 1
        assert steps_of(engine, 8) == expected[:8]

    interrupted(config(every=5), suspends)
    assert store.newest().step == 5
    with msd.start(config(), runtime="local") as engine:
        assert steps_of(engine, 5) == expected[5:10]
        assert engine.resume_source("books") == 10
        assert any("books" in sources for sources in drawn(steps_of(engine, 16)))


EDITS = {
    3: lambda engine: engine.suspend("books", at_step=3),
    6: lambda engine: engine.skip("web", 30, 45, at_step=6),
    9: lambda engine: engine.resume_source("books", at_step=9),
    12: lambda engine: engine.skip_steps(2, at_step=12),
    17: lambda engine: engine.skip("books", 20, 24, at_step=17),
}
"""By the step at which each takes effect."""


@pytest.mark.parametrize("seed", range(4))
def test_runs_that_end_anywhere_replay_edits_that_were_made_anywhere(config, seed):
    draw = random.Random(seed)
    with msd.start(config(checkpoint=None), runtime="local") as engine:
        for make in EDITS.values():
            make(engine)
        expected = steps_of(engine, 24)
    asked_at = {at: draw.randint(0, at - 1) for at in EDITS}
    made, seen = set(), {}

    def goes_on(engine):
        clients = [engine.client(rank) for rank in range(2)]
        for _ in range(draw.randint(1, 9)):
            step = clients[0].next_step
            for at in sorted(set(EDITS) - made):
                if asked_at[at] <= step:
                    EDITS[at](engine)
                    made.add(at)
            seen[step] = [digest(next(client)) for client in clients]
            if step == 23:
                return

    while 23 not in seen:
        interrupted(config(every=draw.randint(1, 4)), goes_on)
    assert [seen[step] for step in range(24)] == expected


def test_skipped_steps_and_rows_do_not_come_and_a_state_knows_of_them(config, undisturbed):
    with msd.start(config(checkpoint=None), runtime="local") as engine, engine.client(0) as client:
        skipped = next(client).sample_ids[0]
        assert engine.skip_steps(3) == 1
        at = engine.skip("web", 200, 210)
        state = client.state_dict()
        assert [edit["edit"] for edit in read_state(state).progress["pending"]] == ["skip_steps", "skip_rows"]
        assert at == 1
        batch = next(client)
        assert (batch.step, digest(batch)[1:]) == (1, undisturbed[4][0][1:])
        assert skipped not in batch.sample_ids


def test_a_state_that_was_given_a_skip_gives_other_rows_of_a_step_that_was_held(config, undisturbed):
    with msd.start(config(checkpoint=None), runtime="local") as engine, engine.client(0) as client:
        next(client)
        state = client.state_dict()
        assert digest(next(client)) == undisturbed[1][0]
        client.load_state_dict(with_edits(read_state(state), [SkipSteps(at_step=1, count=2)]))
        assert digest(next(client))[1:] == undisturbed[3][0][1:]
        assert engine.stats()["steps_planned"] == 1


def test_an_edit_that_cannot_be_journalled_does_not_act(config, monkeypatch, undisturbed):
    def fails(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with msd.start(config(), runtime="local") as engine:
        with monkeypatch.context() as patched:
            patched.setattr("msd.checkpoint.folder.os.fsync", fails)
            with pytest.raises(EngineError, match="No space left on device"):
                engine.suspend("books")
        assert steps_of(engine, 6) == undisturbed[:6]


def test_an_edit_of_a_step_that_is_planned_is_refused_by_name(config):
    with msd.start(config(checkpoint=None), runtime="local") as engine:
        steps_of(engine, 3)
        with pytest.raises(ConfigError, match="3"):
            engine.suspend("books", at_step=1)


def test_stats_tell_how_far_the_checkpoint_is_behind(config, store):
    with msd.start(config(), runtime="local") as engine:
        steps_of(engine, 3)
        name = engine.save()
        found = engine.stats()["checkpoint"]
        assert found["path"] == store.path
        assert (found["snapshot"], found["step"], found["age_steps"]) == (name, engine.stats()["watermark"] + 1, 0)
        assert found["size_bytes"] == store.find(name=name).size
        assert (found["generation"], found["failures"], found["failure"]) == (0, 0, None)
    with msd.start(config(checkpoint=None), runtime="local") as engine:
        assert engine.stats()["checkpoint"] is None


def test_without_a_checkpoint_save_and_names_are_refused(config):
    with msd.start(config(checkpoint=None), runtime="local") as engine:
        with pytest.raises(ConfigError, match=r"save: this run keeps no checkpoint; set checkpoint\.path"):
            engine.save()
        with pytest.raises(ConfigError, match="restore: this run keeps no checkpoint"):
            engine.restore("snapshot-00000001")
        with pytest.raises(ConfigError, match="rewind is for runs on Dask"):
            engine.rewind(mesh={"dp": 2})
        with engine.client(0) as client:
            engine.restore(client.state_dict())


def test_a_start_that_fails_gives_the_checkpoint_back(config, tmp_path):
    broken = config().replace(sources={"web": {"on_error": {"quarantine": str(tmp_path)}}})
    with pytest.raises(ConfigError, match="quarantine"):
        msd.start(broken, runtime="local")
    msd.start(config(), runtime="local").close()

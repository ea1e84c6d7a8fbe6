"""What happened in a run, read off its figures look by look, and written as JSON lines."""

import json

import pytest
from test_watching import stats

from msd.errors import ConfigError
from msd.runtime.dask.watching import happenings
from msd.runtime.dask.watching.eventlog import EventLog
from msd.runtime.dask.watching.happenings import (
    Began,
    Edited,
    Ended,
    Happenings,
    Limited,
    Lost,
    Moved,
    Progress,
    Replaced,
    RowsFailed,
    Saved,
    SaveFailed,
    Scaled,
    Waited,
)

LOSS = {"at": "t", "role": "loader host", "name": "msd-loader-0", "how": "SIGKILL", "took_s": None}
EDIT = {"edit": "suspend", "at_step": 9, "source": "s1", "who": "somebody"}
SAVE = {"snapshot": None, "step": None, "size_bytes": None, "failures": 0, "failure": None}


def figures(step: int = 0, **changes):
    return stats(step, **{"edits": [], "checkpoint": None, "mesh": {"dp": 2}, **changes})


def told(*looks, seconds: float = 2.0):
    """What is said of the last look."""
    run = Happenings("run")
    found = []
    for number, look in enumerate(looks):
        found = run.look(look, 100.0 + seconds * number)
    return found


def of(kind, found):
    return [one for one in found if isinstance(one, kind)]


def test_the_first_look_begins_and_the_next_says_nothing_new():
    (began,) = of(Began, told(figures(3)))
    assert (began.step, began.generation, began.mesh, began.sources) == (3, 0, {"dp": 2}, ["s0", "s1", "s2"])
    assert told(figures(3), figures(4)) == []


def test_a_generation_and_an_edit_are_told_once():
    found = told(figures(3), figures(5, generation=1, edits=[EDIT]))
    assert [one.generation for one in of(Moved, found)] == [1]
    assert [one.edit for one in of(Edited, found)] == [EDIT]
    assert told(figures(edits=[EDIT]), figures(generation=1, edits=[EDIT]))[1:] == []


def test_a_loss_is_told_and_how_long_it_took_to_make_it_good():
    gone, back = [LOSS], [{**LOSS, "took_s": 1.5}]
    assert of(Lost, told(figures(), figures(recoveries=gone)))[0].how == "SIGKILL"
    assert told(figures(recoveries=gone), figures(recoveries=gone)) == []
    (replaced,) = told(figures(recoveries=gone), figures(recoveries=back))
    assert isinstance(replaced, Replaced)
    assert replaced.took_s == 1.5
    both = told(figures(), figures(recoveries=back))
    assert [type(one) for one in both] == [Lost, Replaced]


def test_decisions_and_limits_are_told_when_they_change():
    decision = {"at": "t", "about": "s0", "why": "0.5 s of 2"}
    found = told(
        figures(), figures(scaling={"decisions": [decision]}, limited_by={"source": "s0", "text": "s0 limits"})
    )
    assert [(type(one)) for one in found] == [Scaled, Limited]
    limited = {"limited_by": {"source": "s0", "text": "s0 limits"}}
    assert told(figures(**limited), figures(**limited)) == []
    (ended,) = of(Limited, told(figures(**limited), figures()))
    assert ended.source is None


def test_only_a_wait_that_lasts_is_told_and_that_it_is_over():
    waiting = figures(waits_for="row 5 of s0")
    assert told(waiting, waiting, seconds=happenings.WAITS_AFTER_S - 0.1) == []
    assert told(waiting, waiting, seconds=happenings.WAITS_AFTER_S)[0].waits_for == "row 5 of s0"
    assert told(waiting, waiting, waiting, seconds=happenings.WAITS_AFTER_S) == []
    assert told(waiting, waiting, figures(), seconds=happenings.WAITS_AFTER_S)[0] == Waited(
        at=110.0, step=0, waits_for=None
    )
    assert told(waiting, figures(), figures()) == []


def test_rows_that_fail_are_told_when_they_have_doubled():
    def failing(count):
        look = figures()
        look["sources"] = {"s0": {**look["sources"]["s0"], "failed_by_reason": {"ValueError": count}, "killed": 0}}
        return look

    run, counts = Happenings("run"), []
    for at, count in enumerate([0, 1, 1, 2, 3, 4, 100, 150]):
        counts += [one.rows for one in of(RowsFailed, run.look(failing(count), float(at)))]
    assert counts == [1, 2, 4, 100]


def test_saves_and_saves_that_fail_are_told():
    saved = {**SAVE, "snapshot": "step-8", "step": 8, "size_bytes": 900}
    (found,) = of(Saved, told(figures(checkpoint=SAVE), figures(checkpoint=saved)))
    assert (found.snapshot, found.of_step, found.size_bytes) == ("step-8", 8, 900)
    failed = {**saved, "failures": 1, "failure": "the disk is full"}
    assert of(SaveFailed, told(figures(checkpoint=saved), figures(checkpoint=failed)))[0].why == "the disk is full"
    assert told(figures(checkpoint=failed), figures(checkpoint=failed)) == []


def test_progress_is_told_once_a_minute_of_what_happened_in_it():
    looks = [figures(10 * number) for number in range(4)]
    (found,) = of(Progress, told(*looks[:3], seconds=30.0))
    assert found.steps_per_s == pytest.approx(20 / 60)
    assert found.waited == pytest.approx(10 / 60)
    assert of(Progress, told(*looks, seconds=30.0)) == []


def test_lines_are_json_and_a_second_run_appends(tmp_path):
    path = tmp_path / "logs" / "events.jsonl"
    for run in ("one", "two"):
        log = EventLog(str(path), run)
        log.take(figures(3))
        log.close("it broke" if run == "two" else None)
        log.close(None)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [line for line in lines if line["event"] != "rows_failed"]
    assert [line["event"] for line in lines] == ["began", "ended", "began", "ended"]
    assert [line["run"] for line in lines if line["event"] == "began"] == ["one", "two"]
    assert [line["error"] for line in lines if line["event"] == "ended"] == [None, "it broke"]
    assert all(line["step"] == 3 and line["at"] > 1e9 for line in lines)


def test_a_file_that_cannot_be_written_is_refused_and_a_full_disk_is_told_once(tmp_path, caplog):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"):
        EventLog(str(tmp_path / "file" / "events.jsonl"), "run")
    log = EventLog("/dev/full", "run")
    log.take(figures())
    log.close(None)
    assert caplog.text.count("events cannot be written to /dev/full") == 1


def test_an_end_before_the_first_look_has_its_line():
    assert Happenings("run").end("no cluster", 5.0) == [Ended(at=5.0, step=0, error="no cluster")]

"""Notes of what is in hand: they outlive their writer, are told once, and only of the dead or frozen."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from msd.loader.poison import notes as notes_module
from msd.loader.poison.notes import CrashNotes, Ended, folder_of, left_behind, remove_stale
from msd.loader.poison.slots import WHOLE


@pytest.fixture
def start(tmp_path):
    """Return what starts a process with notes in `tmp_path`, which runs a few lines and then says `ready`."""
    started = []

    def begin(lines):
        program = f"{BEGINS}{lines}\nprint('ready', flush=True)\ntime.sleep(600)\n"
        process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def end(process, how=signal.SIGKILL):
    process.send_signal(how)
    process.wait()


BEGINS = """
import contextlib, sys, time
from pathlib import Path
from msd.loader.poison.notes import CrashNotes
notes = CrashNotes(Path(sys.argv[1]), ["web", "images"])
"""

HOLDS = """
holding = contextlib.ExitStack()
first = holding.enter_context(notes.hold("web", [4, 5, 6]))
second = holding.enter_context(notes.hold("images", [9]))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_what_a_process_had_in_hand_is_known_when_it_was_ended(start, tmp_path, how):
    process = start(HOLDS)
    assert left_behind(tmp_path) == []
    end(process, how)
    (ended,) = left_behind(tmp_path)
    assert set(ended.rows) == {("web", 4), ("web", 5), ("web", 6), ("images", 9)}
    assert ended.how == f"process {process.pid} ended"
    assert not ended.is_alone


def test_it_is_told_once(start, tmp_path):
    end(start(HOLDS))
    assert len(left_behind(tmp_path)) == 1
    assert left_behind(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_who_reads_while_another_does_is_told_nothing(start, tmp_path, monkeypatch):
    end(start(HOLDS))
    (path,) = tmp_path.iterdir()
    with open(path, "rb+") as late:
        assert len(left_behind(tmp_path)) == 1
        # It was open before the other one removed it.
        assert notes_module.Others(tmp_path)._told_of(path, late, None) is None


def test_only_the_row_that_is_at_it_is_named_if_that_is_known(start, tmp_path):
    end(start(HOLDS + "first.at(5)"))
    assert set(left_behind(tmp_path)[0].rows) == {("web", 5), ("images", 9)}


def test_rows_that_are_done_are_not_named(start, tmp_path):
    end(start(HOLDS + "holding.close()"))
    assert left_behind(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_what_a_process_was_ended_for_is_all_that_is_named(start, tmp_path):
    end(start(HOLDS + "notes.mark(notes.in_hand()[1:], 'no answer for 3 s', is_told=False)"))
    assert left_behind(tmp_path) == [Ended((("images", 9),), "no answer for 3 s")]


def test_what_was_told_before_the_end_is_not_told_again(start, tmp_path):
    end(start(HOLDS + "notes.mark(notes.in_hand(), 'more than 8 GiB', is_told=True)"))
    assert left_behind(tmp_path) == []


def test_a_row_that_was_run_apart_is_to_blame_whatever_else_was_in_hand(start, tmp_path):
    process = start(HOLDS + 'holding.enter_context(notes.hold("web", [40], is_alone=True))')
    end(process)
    assert left_behind(tmp_path) == [Ended((("web", 40),), f"process {process.pid} ended", is_alone=True)]


def test_a_process_whose_threads_do_not_run_is_told_once_while_it_lives(start, tmp_path):
    with contextlib.closing(CrashNotes(tmp_path, ["web"])) as own:
        others = own.others()
        process = start(HOLDS)
        assert others.left_behind(3600) == []
        deadline = time.monotonic() + 30
        while not (found := others.left_behind(0.01)):
            assert time.monotonic() < deadline
        assert found[0].how == f"process {process.pid} did nothing for 0.01 s"
        assert ("images", 9) in found[0].rows
        assert others.left_behind(0.01) == []
        end(process)
        assert len(others.left_behind()) == 1


def test_a_process_does_not_read_its_own_notes_and_removes_them(tmp_path):
    folder = tmp_path / "run"
    with contextlib.closing(CrashNotes(folder, ["web"])) as notes, notes.hold("web", [1]):
        assert left_behind(folder) == []
        assert [entry.ordinals for entry in notes.in_hand()] == [(1,)]
    notes.close()
    assert not folder.exists()


def test_the_last_host_that_lives_removes_what_dead_ones_left(start, tmp_path):
    folder = tmp_path / "run"
    first, second = CrashNotes(folder, ["web"]), CrashNotes(folder, ["web"])
    process = start(HOLDS)
    end(process)
    (left,) = tmp_path.glob("*.notes")
    left.rename(folder / left.name)
    first.close()
    assert len(list(folder.iterdir())) == 2
    second.close()
    assert not folder.exists()


def test_one_slot_is_used_again_and_many_threads_have_one_each(tmp_path):
    with contextlib.closing(CrashNotes(tmp_path / "run", ["web"])) as notes:
        for _ in range(3):
            with notes.hold("web", [1]):
                assert [entry.slot for entry in notes.in_hand()] == [0]
        with notes.hold("web", range(64)) as slot, notes.hold("web", [70]):
            assert [entry.slot for entry in notes.in_hand()] == [0, 1]
            slot.at(3)
            assert notes.in_hand()[0].ordinals == (3,)
            slot.at(WHOLE)
            assert notes.in_hand()[0].ordinals == tuple(range(64))


def test_a_file_that_is_no_notes_is_passed_over(tmp_path):
    (tmp_path / "1-x.notes").write_bytes(b"\0" * 100)
    (tmp_path / "2-x.notes").write_bytes(os.urandom(1 << 20))
    assert left_behind(tmp_path) == []


def test_folders_of_dead_runs_go_after_a_while_and_those_of_living_ones_stay(start, tmp_path, monkeypatch):
    monkeypatch.setattr(notes_module.tempfile, "gettempdir", lambda: str(tmp_path))
    dead, living, own = (folder_of(name) for name in ("dead", "living", "own"))
    dead.mkdir()
    (dead / "1-x.notes").write_bytes(b"")
    with contextlib.closing(CrashNotes(living, ["web"])), contextlib.closing(CrashNotes(own, ["web"])):
        remove_stale(own)
        assert dead.exists()
        monkeypatch.setattr(notes_module, "STALE_S", -1.0)
        remove_stale(own)
        assert (dead.exists(), living.exists(), own.exists()) == (False, True, True)

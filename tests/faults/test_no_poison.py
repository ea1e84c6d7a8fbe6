"""Everything is killed at once, in every phase, and started again in the same directories: it works."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_data import undisturbed, write_config
from fault_run import FaultyRun, faulty
from processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.timeout(120)]

STEPS, EVERY = 60, 3


def killed_tree(run: FaultyRun) -> None:
    """Kill every process of the run before any of them can do something about it."""
    while pids := run.alive():
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        if run.alive() == pids:
            break
    run.note_struck(run.alive())
    for pid in run.alive():
        os.kill(pid, signal.SIGKILL)


def is_indexing(run: FaultyRun, cache: Path, store: Path) -> bool:
    return any(cache.rglob("*"))


def is_starting(run: FaultyRun, cache: Path, store: Path) -> bool:
    return len(run.pids("msd-loader-0")) > 0


def is_running(run: FaultyRun, cache: Path, store: Path) -> bool:
    return run.reached() > 10


def is_saving(run: FaultyRun, cache: Path, store: Path) -> bool:
    """True within moments of the third snapshot; what is written then is at hand or torn."""
    if run.reached() < 8:
        return False
    before = {path.name for path in store.rglob("*")}
    wait_until(lambda: {path.name for path in store.rglob("*")} != before, 20, "the next snapshot")
    return True


@pytest.mark.parametrize("phase", [is_indexing, is_starting, is_running, is_saving])
def test_a_run_of_which_all_was_killed_starts_again_at_once_in_the_same_directories(
    tmp_path, monkeypatch, phase: Callable[[FaultyRun, Path, Path], bool]
):
    """Answers MS-1."""
    config, cache, store = write_config(tmp_path / "data"), tmp_path / "cache", tmp_path / "store"
    monkeypatch.setenv("MSD_CACHE", str(cache))
    cache.mkdir()
    settings = [f"checkpoint.path={store}", f"checkpoint.every={EVERY}"]
    with faulty(tmp_path, config, settings=settings) as run:
        run.begin(2, STEPS, pace_s=0.02)
        deadline = time.monotonic() + 60
        while not phase(run, cache, store):
            assert time.monotonic() < deadline, run.told()
            run.tick()
        killed_tree(run)
        outcome = run.go_through([])
    outcome.check(undisturbed(config, STEPS))
    assert run.serve.starts == 2


def test_where_nobody_is_left_to_say_where_a_run_stood_new_ranks_go_on_from_its_newest_snapshot(tmp_path):
    config, store = write_config(tmp_path / "data"), tmp_path / "store"
    with faulty(tmp_path, config, settings=[f"checkpoint.path={store}", f"checkpoint.every={EVERY}"]) as run:
        run.begin(2, STEPS, pace_s=0.02)
        run.reach(20)
        killed_tree(run)
        stood = run.reached()
        for rank in run.ranks:
            rank.end()
        run.ranks.clear()
        run.begin(2, STEPS, pace_s=0.02)
        outcome = run.go_through([])
    first = min(step for step, _ in outcome.found)
    assert first % EVERY == 0
    assert stood - 2 * EVERY <= first <= stood
    outcome.check({key: found for key, found in undisturbed(config, STEPS).items() if key[0] >= first})

"""Loader hosts that are killed or frozen in the middle: the others go on, with the same bytes."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import msd
from msd.client import RankClient
from msd.errors import EngineError
from msd.runtime.dask.engine import DaskEngine
from msd.testing import scenarios

pytestmark = pytest.mark.cluster

STEPS = 40


@contextlib.contextmanager
def running(config: msd.Config) -> Iterator[DaskEngine]:
    with msd.start(config) as engine:
        assert isinstance(engine, DaskEngine)
        yield engine


def config(deadline_s: float = 60.0, **changes: Any) -> msd.Config:
    return scenarios.uneven(runtime={"kind": "dask", "workers": 2, "deadline_s": deadline_s}, **changes)


def pids(engine: DaskEngine) -> dict[str, int]:
    return {host["host"]: host["pid"] for host in engine.stats()["hosts"]}


def take(engine: DaskEngine, at: dict[int, Callable[[], None]]) -> dict[tuple[int, int], str | None]:
    """Return the digests of all steps of both ranks; before some steps something happens."""
    found: dict[tuple[int, int], str | None] = {}
    clients = [engine.client(rank) for rank in range(2)]
    for step in range(STEPS):
        at.get(step, lambda: None)()
        for client in clients:
            batch = next(client)
            found[batch.step, batch.rank] = scenarios.digest(batch)
    return found


def take_all(client: RankClient) -> None:
    for _ in range(500):
        next(client)


def test_a_killed_host_changes_no_byte():
    settings = config(loaders=3)
    expected = scenarios.undisturbed(settings, STEPS)
    with running(settings) as engine:
        host, pid = sorted(pids(engine).items())[0]
        killed_at = time.monotonic()
        found = take(engine, {5: lambda: os.kill(pid, signal.SIGKILL)})
        assert time.monotonic() - killed_at < 20
        left = pids(engine)
    assert found == expected
    assert host not in left
    assert len(left) == 1


def test_a_frozen_host_is_taken_for_lost_after_some_silence_and_changes_no_byte():
    settings = config(deadline_s=9)
    expected = scenarios.undisturbed(settings, STEPS)
    with running(settings) as engine:
        pid = sorted(pids(engine).items())[1][1]
        try:
            found = take(engine, {5: lambda: os.kill(pid, signal.SIGSTOP)})
        finally:
            os.kill(pid, signal.SIGCONT)
    assert found == expected


def test_a_host_that_was_only_slow_stays_and_changes_no_byte():
    settings = config(deadline_s=12)
    expected = scenarios.undisturbed(settings, STEPS)
    with running(settings) as engine:
        before = pids(engine)
        pid = sorted(before.items())[0][1]

        def pause() -> None:
            os.kill(pid, signal.SIGSTOP)
            # Longer than one silence (a sixth of the deadline), shorter than three.
            time.sleep(3)
            os.kill(pid, signal.SIGCONT)

        assert take(engine, {5: pause}) == expected
        assert pids(engine) == before


def test_the_loss_of_the_last_host_ends_the_run_for_every_rank():
    with running(config(deadline_s=12)) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        for client in clients:
            next(client)
        for pid in pids(engine).values():
            os.kill(pid, signal.SIGKILL)
        for client in clients:
            with pytest.raises(EngineError, match=r"in the place of msd-loader-\d|no other is left"):
                take_all(client)


def test_the_loss_of_the_planner_is_noticed_and_named():
    with running(config(deadline_s=6)) as engine:
        client = engine.client(0)
        next(client)
        assert engine._cluster is not None
        engine._cluster._workers["msd-control"].kill()
        engine._cluster._workers["msd-control"].wait()
        with pytest.raises(EngineError, match=r"lost its planner .* start it again.*msd-control with SIGKILL"):
            engine.check()
        began = time.monotonic()
        with pytest.raises(EngineError, match="rank 0"):
            take_all(client)
        assert time.monotonic() - began < 15

"""Processes that are killed or frozen in the middle: others go on for them, with the same bytes."""

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from processes import wait_until

import msd
from msd.client import RankClient
from msd.errors import EngineError
from msd.runtime.dask import cluster as cluster_module
from msd.runtime.dask.engine import DaskEngine
from msd.testing import scenarios

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

STEPS = 40
SILENCE_S = 1.5


@contextlib.contextmanager
def running(config: msd.Config) -> Iterator[DaskEngine]:
    with msd.start(config) as engine:
        assert isinstance(engine, DaskEngine)
        yield engine


def config(silence_s: float = SILENCE_S, deadline_s: float = 60.0, **changes: Any) -> msd.Config:
    runtime = {"kind": "dask", "workers": 2, "deadline_s": deadline_s, "silence_s": silence_s}
    return scenarios.uneven(runtime={**runtime, **changes.pop("runtime", {})}, **changes)


def hosts(engine: DaskEngine) -> dict[str, int]:
    """Loader hosts and their processes; those that stand by in brackets."""
    return {
        host["host"] if host["role"] == "host" else f"({host['host']})": host["pid"] for host in engine.stats()["hosts"]
    }


def process(engine: DaskEngine, name: str) -> int:
    assert engine._cluster is not None
    return engine._cluster._workers[name].pid


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


def recovered(engine: DaskEngine, count: int) -> list[dict[str, Any]]:
    """Return what was made good, once so much is."""

    def are_made_good() -> bool:
        return sum(one["took_s"] is not None for one in engine.stats()["recoveries"]) >= count

    wait_until(are_made_good, 60, "all that was lost to be replaced")
    return [one for one in engine.stats()["recoveries"] if one["took_s"] is not None]


def test_a_killed_host_changes_no_byte_and_is_replaced(caplog):
    settings = config(loaders=3)
    expected = scenarios.undisturbed(settings, STEPS)
    with running(settings) as engine:
        before = hosts(engine)
        found = take(engine, {5: lambda: os.kill(before["msd-loader-0"], signal.SIGKILL)})
        (one,) = recovered(engine, 1)
        after = hosts(engine)
    assert found == expected
    assert (one["role"], one["name"], one["how"]) == ("loader host", "msd-loader-0", "SIGKILL")
    assert after.keys() == before.keys()
    assert after["msd-loader-0"] != before["msd-loader-0"]
    assert "loader host msd-loader-0 is lost (SIGKILL)" in caplog.text


def test_a_host_that_ends_in_good_order_is_the_same_event():
    """So a machine is taken away whose owner is told before: by SIGTERM."""
    settings = config()
    expected = scenarios.undisturbed(settings, STEPS)
    with running(settings) as engine:
        found = take(engine, {5: lambda: os.kill(process(engine, "msd-loader-1"), signal.SIGTERM)})
        (one,) = recovered(engine, 1)
    assert found == expected
    assert one["name"] == "msd-loader-1"


def test_without_any_host_ranks_wait_for_new_ones_and_get_the_same_bytes():
    settings = config()
    expected = scenarios.undisturbed(settings, STEPS)

    with running(settings) as engine:

        def kill_all() -> None:
            for pid in hosts(engine).values():
                os.kill(pid, signal.SIGKILL)

        assert take(engine, {5: kill_all}) == expected
        assert len(recovered(engine, 2)) == 2


def test_a_frozen_host_is_taken_for_lost_after_some_silence_and_its_process_replaced_after_more():
    settings = config()
    expected = scenarios.undisturbed(settings, STEPS)
    with running(settings) as engine:
        pid = process(engine, "msd-loader-1")
        found = take(engine, {5: lambda: os.kill(pid, signal.SIGSTOP)})
        (one,) = recovered(engine, 1)
        assert hosts(engine)["msd-loader-1"] != pid
    assert found == expected
    assert one["how"] == f"msd-loader-1 gave no answer for {3 * SILENCE_S:g} s"


def test_a_host_that_was_only_slow_stays_and_changes_no_byte():
    settings = config(silence_s=3.0)
    expected = scenarios.undisturbed(settings, STEPS)
    with running(settings) as engine:
        before = hosts(engine)
        pid = before["msd-loader-0"]

        def pause() -> None:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(1.5)
            os.kill(pid, signal.SIGCONT)

        assert take(engine, {5: pause}) == expected
        assert hosts(engine) == before
        assert engine.stats()["recoveries"] == []


def test_a_shadow_takes_over_and_what_replaces_the_lost_process_stands_by():
    settings = config(shadows=1)
    expected = scenarios.undisturbed(settings, STEPS)
    with running(settings) as engine:
        wait_until(lambda: len(hosts(engine)) == 3, 10, "the shadow")
        assert set(hosts(engine)) == {"msd-loader-0", "msd-loader-1", "(msd-loader-2)"}
        found = take(engine, {5: lambda: os.kill(process(engine, "msd-loader-0"), signal.SIGKILL)})
        recovered(engine, 1)
        wait_until(lambda: len(hosts(engine)) == 3, 10, "the new shadow")
        assert set(hosts(engine)) == {"(msd-loader-0)", "msd-loader-1", "msd-loader-2"}
    assert found == expected


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_planner_and_constructor_at_once_are_made_anew_and_ranks_find_them_at_the_same_address(number, caplog):
    settings = config()
    expected = scenarios.undisturbed(settings, STEPS)
    with running(settings) as engine:
        address = engine.address
        found = take(engine, {5: lambda: os.kill(process(engine, "msd-control"), number)})
        both = recovered(engine, 2)
        assert engine.address == address
        assert engine.stats()["term"] == 2
        engine.check()
    assert found == expected
    assert {one["name"] for one in both} == {"planner", "constructor-0"}
    if number == signal.SIGSTOP:
        assert both[0]["how"].endswith(f"gave no answer for {SILENCE_S:g} s")
    assert caplog.text.count("the planner was lost") == 1


def test_a_planner_with_a_process_of_its_own_goes_on_in_another_at_once():
    settings = config(runtime={"compact": False})
    expected = scenarios.undisturbed(settings, STEPS)
    with running(settings) as engine:
        found = take(engine, {5: lambda: os.kill(process(engine, "msd-planner"), signal.SIGKILL)})
        (one,) = recovered(engine, 1)
    assert found == expected
    assert one["name"] == "planner"


def test_a_planner_that_is_killed_while_the_process_of_the_constructor_is_on_its_way_out_ends_nothing():
    """That process has left the cluster and is still there: what is made in it fails at once, however often."""
    settings = config(runtime={"compact": False})
    expected = scenarios.undisturbed(settings, STEPS)
    with running(settings) as engine:

        def strike() -> None:
            assert engine._cluster is not None
            there, control = engine._cluster._cluster.scheduler.workers, process(engine, "msd-control")
            deadline = time.monotonic() + 30
            os.kill(control, signal.SIGTERM)
            while any(one.name == "msd-control" for one in list(there.values())):
                assert time.monotonic() < deadline
                time.sleep(0.001)
            # It takes its time.
            os.kill(control, signal.SIGSTOP)
            os.kill(process(engine, "msd-planner"), signal.SIGKILL)

        assert take(engine, {5: strike}) == expected
        assert {one["role"] for one in recovered(engine, 2)} == {"planner", "constructor"}


def test_all_processes_at_once_are_made_anew():
    settings = config()
    expected = scenarios.undisturbed(settings, STEPS)
    with running(settings) as engine:

        def kill_all() -> None:
            for name in ("msd-control", "msd-loader-0", "msd-loader-1"):
                os.kill(process(engine, name), signal.SIGKILL)

        assert take(engine, {5: kill_all}) == expected
        assert len(recovered(engine, 4)) == 4


def test_what_is_lost_again_and_again_ends_the_run_and_every_rank_hears_why(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.CRITICAL)
    with running(config()) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        assert [next(client).step for client in clients] == [0, 0]
        (tmp_path / "distributed.py").write_text("raise SystemExit(3)")
        environment = cluster_module.worker_environment()
        environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
        monkeypatch.setattr(cluster_module, "worker_environment", lambda: environment)
        os.kill(process(engine, "msd-loader-0"), signal.SIGKILL)
        said = r"msd-loader-0 was lost 6 times within 60 s \(SIGKILL, exit status 3, exit status 3"
        for client in clients:
            with pytest.raises(EngineError, match=said):
                take_all(client)
        with pytest.raises(EngineError, match=said):
            engine.check()
        with pytest.raises(EngineError, match=said):
            msd.connect(engine.address, rank=0)

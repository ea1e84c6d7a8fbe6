"""Runs on a cluster that was there before: loads on every rank, two runs side by side, rows from memory."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest

import msd
from msd.errors import ConfigError, DeadlineError
from msd.runtime.dask.cluster import EmbeddedCluster
from msd.runtime.local import LocalEngine
from msd.testing import scenarios

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(["msd-control-0", "msd-control-1", "msd-loader-0", "msd-loader-1"]) as cluster:
        cluster.wait()
        yield cluster


def config(cluster: EmbeddedCluster, **changes: Any) -> msd.Config:
    runtime = {"kind": "dask", "scheduler": cluster.address, "workers": 2, "deadline_s": 30}
    return scenarios.text(runtime=runtime, **changes)


def test_every_rank_may_load_again_and_again_whichever_constructor_serves_it(cluster):
    """A rank hears of the move from the planner, perhaps before its constructor does. Answers EN-8."""
    settings = config(cluster)
    expected = scenarios.undisturbed(settings, 8)
    with msd.start(settings) as engine:
        assert len(engine.stats()["constructors"]) == 2
        clients = [engine.client(rank) for rank in range(2)]
        for client in clients:
            for _ in range(3):
                next(client)
        state = clients[0].state_dict()
        for _ in range(10):
            for client in clients:
                client.load_state_dict(state)
            for step in range(3, 6):
                for client in reversed(clients):
                    batch = next(client)
                    assert scenarios.digest(batch) == expected[step, client.rank]


def test_a_rank_that_does_not_load_follows(cluster):
    settings = config(cluster)
    expected = scenarios.undisturbed(settings, 8)
    with msd.start(settings) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        for client in clients:
            next(client)
        state = clients[1].state_dict()
        for client in clients:
            next(client)
        clients[1].load_state_dict(state)
        for step in range(1, 6):
            assert [scenarios.digest(next(client)) for client in clients] == [expected[step, rank] for rank in range(2)]


def test_two_runs_share_a_cluster_without_hearing_of_each_other(cluster):
    first, second = config(cluster), config(cluster, seed=12)
    wanted = [scenarios.undisturbed(settings, 6) for settings in (first, second)]
    with msd.start(second) as engine:
        with msd.start(first) as other:
            scenarios.same_bytes(wanted[0], other)
        scenarios.same_bytes(wanted[1], engine)


def test_rows_from_memory_travel_once_and_without_a_warning(cluster):
    rows = [{"ids": np.full(1000, number, np.int64).tolist()} for number in range(2000)]
    sources = {"mine": {"rows": rows, "transforms": [{"kind": "tokens", "field": "ids"}]}}
    with msd.start(config(cluster, sources=sources, mixture={})) as engine:
        assert next(engine.client(0)).step == 0


def test_any_step_of_a_run_may_be_asked_about_by_several_at_once_and_the_run_does_not_move(cluster):
    settings = config(cluster)
    with LocalEngine(settings) as engine:
        expected = {step: engine.which(step) for step in (1, 30, 90)}
    with msd.start(settings) as engine:
        with ThreadPoolExecutor(3) as pool:
            assert dict(zip(expected, pool.map(engine.which, expected), strict=True)) == expected
        assert engine.stats()["next_step"] < 30
        assert engine.which(30, rank=1) == [entry for entry in expected[30] if 1 in entry["ranks"]]
        clients = [engine.client(rank) for rank in range(2)]
        for _ in range(80):
            for client in clients:
                next(client)
        assert engine.which(1) == expected[1]


def test_a_step_that_is_not_there_in_time_is_refused_and_the_run_goes_on(cluster):
    settings = config(cluster)
    settings = settings.replace(runtime={**msgspec.to_builtins(settings.runtime), "deadline_s": 5})
    with msd.start(settings) as engine:
        with pytest.raises(DeadlineError, match="step 1000000 was not planned"):
            engine.which(10**6)
        with pytest.raises(ConfigError, match="outside the mesh"):
            engine.which(0, rank=2)
        assert next(engine.client(0)).step == 0

"""A mixture that moves to rows that wait: workers follow it, and nothing that is delivered changes."""

import os
import signal
import time
from typing import Any

import dask
import psutil
import pytest
from distributed import LocalCluster

import msd
from msd.runtime.dask.settings import as_set
from msd.testing import scenarios

pytestmark = pytest.mark.cluster

STEPS = 60
TOKENS = {"kind": "tokens", "field": "ids"}


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def waits(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.009)
    began_s = time.thread_time()
    while time.thread_time() - began_s < 0.001:
        pass
    return sample


def config(*, slow: Any = waits, **changes: Any) -> msd.Config:
    sources = {
        "slow": {"rows": scenarios.token_rows(1, 400, 20), "transforms": [slow, TOKENS]},
        "fast": {"rows": scenarios.token_rows(2, 400, 20), "transforms": [TOKENS]},
    }
    schedule = [{"step": 10, "ramp": 20, "weights": {"slow": 9, "fast": 1}}]
    mixture = {"weights": {"slow": 1, "fast": 9}, "schedule": schedule}
    return scenarios.text(**{"sources": sources, "mixture": mixture, **changes})


def test_workers_follow_a_mixture_that_moves_and_batches_are_those_of_the_run_without(monkeypatch, tmp_path):
    monkeypatch.setenv("MSD_CACHE", str(tmp_path / "cache"))
    expected = scenarios.undisturbed(config(slow=same), STEPS)
    scaling = {"interval_s": 0.2, "lookahead_s": 2.0, "rate": 400.0, "up_after": 1}
    with msd.start(config(scaling=scaling, runtime={"kind": "dask", "workers": 2})) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        found = {}
        for _ in range(STEPS):
            for client in clients:
                batch = next(client)
                found[batch.step, batch.rank] = scenarios.digest(batch)
            time.sleep(0.03)
        deadline = time.monotonic() + 30
        while not any(one["about"] == "slow" for one in engine.stats()["scaling"]["decisions"]):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        stats = engine.stats()
    assert found == expected
    slow = [seat for seat in stats["seats"] if seat["source"] == "slow"]
    assert sum(seat["workers"] or 0 for seat in slow) >= 2
    assert "samples/s x" in stats["scaling"]["decisions"][-1]["why"]


GROWS = {"interval_s": 0.2, "lookahead_s": 2.0, "rate": 400.0, "up_after": 1, "down_after": 3, "cool_down_s": 0.5}
"""Settings by which one host, whose bound is a fifth of a core, is too few while the slow source is drawn most."""


def up_and_down(**changes: Any) -> msd.Config:
    """A mixture that needs more hosts for a while, and fewer after."""
    weights = [{"step": 10, "weights": {"slow": 9, "fast": 1}}, {"step": 50, "weights": {"slow": 1, "fast": 30}}]
    return config(mixture={"weights": {"slow": 1, "fast": 9}, "schedule": weights}, **changes)


class Watched:
    """A run that is taken step by step, and what it gave."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.clients = [engine.client(rank) for rank in range(2)]
        self.found: dict[tuple[int, int], str] = {}

    def takes(self, steps: int) -> None:
        for _ in range(steps):
            for client in self.clients:
                batch = next(client)
                self.found[batch.step, batch.rank] = scenarios.digest(batch)
            time.sleep(0.03)

    def hosts(self) -> list[str]:
        return [one["host"] for one in self.engine.stats()["hosts"] if one["role"] == "host"]

    def waits_for_hosts(self, count: int) -> None:
        deadline = time.monotonic() + 60
        while len(self.hosts()) != count:
            assert time.monotonic() < deadline, (self.hosts(), self.engine.stats()["scaling"])
            self.takes(1)
            time.sleep(0.2)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MSD_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("killed", [False, True])
def test_hosts_come_with_the_need_and_go_with_it(cache, killed):
    expected = scenarios.undisturbed(up_and_down(slow=same), 200)
    scaling = {**GROWS, "cpus": 0.2, "min_hosts": 1, "max_hosts": 3}
    with msd.start(up_and_down(scaling=scaling, runtime={"kind": "dask", "workers": 1})) as engine:
        run = Watched(engine)
        run.takes(30)
        held = engine.stats()["hosts"][0]["pss_bytes"]
        if killed:
            end(engine.stats()["hosts"][0]["pid"])
        run.waits_for_hosts(3)
        began = {one["host"]: one["pid"] for one in engine.stats()["hosts"]}
        run.takes(50)
        run.waits_for_hosts(1)
        if killed:
            end(engine.stats()["hosts"][0]["pid"])
        run.takes(10)
        stats = engine.stats()
        (stays,) = run.hosts()
        gone = [pid for host, pid in began.items() if host != stays]
        deadline = time.monotonic() + 30
        while any(map(psutil.pid_exists, gone)):
            assert time.monotonic() < deadline, "processes of hosts that are not needed stay"
            time.sleep(0.1)
    assert run.found == {key: expected[key] for key in run.found}
    (left,) = stats["hosts"]
    assert left["pss_bytes"] < 1.5 * held + (64 << 20), "what is left holds about what one host held before"
    told = [one["why"] for one in stats["scaling"]["decisions"]]
    assert any("started" in why for why in told)
    assert any(why.startswith("drained") for why in told)
    assert all(recovery["how"] == "SIGKILL" for recovery in stats["recoveries"]), "a host that goes is no loss"


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def test_a_cluster_object_is_scaled_up_and_down(cache):
    expected = scenarios.undisturbed(up_and_down(slow=same), 200)
    scaling = {**GROWS, "cpus": 0.2, "min_hosts": 1, "max_hosts": 2}
    with (
        dask.config.set(as_set()),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", host="127.0.0.1") as cluster,
        msd.start(up_and_down(scaling=scaling, runtime={"kind": "dask", "workers": 1}), cluster=cluster) as engine,
    ):
        run = Watched(engine)
        run.takes(30)
        run.waits_for_hosts(2)
        assert len(cluster.workers) == 3
        run.takes(40)
        run.waits_for_hosts(1)
        deadline = time.monotonic() + 30
        while len(cluster.scheduler_info["workers"]) != 2:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert run.found == {key: expected[key] for key in run.found}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"cluster": "tcp://127.0.0.1:8786"}, "must be a Dask cluster object such as LocalCluster"),
        ({"cluster": object(), "scheduler": "tcp://127.0.0.1:1"}, "cluster= or scheduler=, not both"),
    ],
)
def test_what_is_no_cluster_object_is_refused(arguments, said):
    with pytest.raises(msd.ConfigError, match=said):
        msd.start(config(), **arguments)


@pytest.mark.parametrize("scaling", [{"max_hosts": 2}, {"min_hosts": 4}])
def test_a_run_begins_with_a_number_of_hosts_that_it_may_have(scaling):
    with pytest.raises(msd.ConfigError, match=r"runtime.workers 3 must lie between"):
        msd.start(config(scaling=scaling, runtime={"kind": "dask", "workers": 3}))


def crawls(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.05)
    return sample


def test_the_source_that_limits_the_step_is_named_with_what_it_gives(cache):
    runtime = {"kind": "dask", "workers": 1}
    mixture = {"weights": {"slow": 1, "fast": 1}}
    with msd.start(config(slow=crawls, mixture=mixture, runtime=runtime)) as engine:
        run = Watched(engine)
        deadline = time.monotonic() + 60
        while (limit := engine.stats()["limited_by"]) is None:
            assert time.monotonic() < deadline
            run.takes(3)
        assert limit["source"] == "slow"
        assert limit["needed"] > limit["gives"] > 0
        assert limit["text"].startswith("slow limits the step: ")
        assert engine.stats()["waited_s"] > 0

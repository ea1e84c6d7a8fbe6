"""A mixture that moves to rows that wait: workers follow it, and nothing that is delivered changes."""

import time
from typing import Any

import pytest

import msd
from msd.testing import scenarios

pytestmark = pytest.mark.cluster

STEPS = 60
TOKENS = {"kind": "tokens", "field": "ids"}


def waits(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.01)
    return sample


def config(**changes: Any) -> msd.Config:
    sources = {
        "slow": {"rows": scenarios.token_rows(1, 400, 20), "transforms": [waits, TOKENS]},
        "fast": {"rows": scenarios.token_rows(2, 400, 20), "transforms": [TOKENS]},
    }
    schedule = [{"step": 10, "ramp": 20, "weights": {"slow": 9, "fast": 1}}]
    mixture = {"weights": {"slow": 1, "fast": 9}, "schedule": schedule}
    return scenarios.text(sources=sources, mixture=mixture, **changes)


def test_workers_follow_a_mixture_that_moves_and_batches_are_those_of_the_run_without(monkeypatch, tmp_path):
    monkeypatch.setenv("MSD_CACHE", str(tmp_path / "cache"))
    expected = scenarios.undisturbed(config(), STEPS)
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


def test_hosts_that_this_release_does_not_start_are_refused():
    with pytest.raises(msd.ConfigError, match="starts or ends no hosts"):
        msd.start(config(scaling={"max_hosts": 5}, runtime={"kind": "dask"}))

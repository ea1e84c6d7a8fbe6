"""Loaders sized by a profile: what they cost decides who gets workers, and nothing that is delivered changes."""

import time
from typing import Any

import pytest

import msd
from msd.build import build_chains, build_orders, index_all
from msd.profiling import keep, profile, profile_path
from msd.profiling.store import fingerprints
from msd.testing import scenarios

pytestmark = pytest.mark.cluster

TOKENS = {"kind": "tokens", "field": "ids"}


def waits(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.004)
    return sample


def test_a_source_whose_rows_wait_gets_its_workers_and_batches_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("MSD_CACHE", str(tmp_path / "cache"))
    sources = {
        "slow": {"rows": scenarios.token_rows(1, 300, 20), "transforms": [waits, TOKENS]},
        "fast": {"rows": scenarios.token_rows(2, 300, 20), "transforms": [TOKENS]},
    }
    config = scenarios.text(sources=sources, mixture={"weights": {"slow": 1, "fast": 1}}, runtime={"workers": 2})
    found, problems = profile(config, seconds=0.5)
    assert problems == {}
    keep(found, profile_path(fingerprints(config, build_orders(config, index_all(config)), build_chains(config))))
    expected = scenarios.undisturbed(config, 20)
    with msd.start(config.replace(runtime={"kind": "dask"})) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        batches = [next(client) for _ in range(20) for client in clients]
        assert {(one.step, one.rank): scenarios.digest(one) for one in batches} == expected
        stats = engine.stats()
        assert stats["sources"]["slow"]["transform_s"] > 20 * stats["sources"]["fast"]["transform_s"]
        seats = stats["seats"]
    slow, fast = (sum(seat["workers"] for seat in seats if seat["source"] == name) for name in ("slow", "fast"))
    assert slow > 2 * fast >= 2

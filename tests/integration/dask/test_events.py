"""What happens in a run is written to its log of events: the beginning, an edit, a lost process, a save, the end."""

import json
import os
import signal
import time

import pytest

import msd
from msd.errors import ConfigError
from msd.runtime.dask.watching import feed
from msd.testing import scenarios

pytestmark = pytest.mark.cluster


def events(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_run_writes_what_happens_to_it(tmp_path, monkeypatch):
    monkeypatch.setenv("MSD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(feed, "INTERVAL_S", 0.1)
    path = tmp_path / "events.jsonl"
    tokens = {"kind": "tokens", "field": "ids"}
    config = scenarios.text(
        sources={
            name: {"rows": scenarios.token_rows(seed, 400, 20), "transforms": [tokens]}
            for seed, name in enumerate(("books", "web"), 1)
        },
        mixture={"weights": {"books": 1, "web": 1}},
        runtime={"kind": "dask", "workers": 2, "events": str(path)},
        checkpoint={"path": str(tmp_path / "states"), "every": 2},
    )
    with msd.start(config) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        engine.suspend("web", who="somebody")
        os.kill(engine.stats()["hosts"][0]["pid"], signal.SIGKILL)
        deadline = time.monotonic() + 60
        wanted = {"began", "edited", "lost", "replaced", "saved"}
        while not wanted <= {one["event"] for one in events(path)} and time.monotonic() < deadline:
            for client in clients:
                next(client)
    found = {one["event"]: one for one in events(path)}
    assert found.keys() >= wanted
    assert (found["edited"]["edit"]["edit"], found["edited"]["edit"]["who"]) == ("suspend", "somebody")
    assert found["lost"]["role"] == found["replaced"]["role"] == "loader host"
    assert found["began"]["sources"] == ["books", "web"]
    assert (events(path)[-1]["event"], events(path)[-1]["error"]) == ("ended", None)


def test_a_log_that_cannot_be_written_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "file").touch()
    config = scenarios.text(runtime={"kind": "dask", "workers": 1, "events": str(tmp_path / "file" / "log")})
    with pytest.raises(ConfigError, match=r"runtime\.events .* cannot be written"):
        msd.start(config)


def test_a_log_is_no_url():
    with pytest.raises(ConfigError, match="is a URL"):
        scenarios.text(runtime={"kind": "dask", "events": "s3://bucket/events"})

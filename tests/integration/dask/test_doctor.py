"""`msd doctor`: what it says of a machine, a configuration and a cluster, and its status."""

import json

import pytest

from msd.cli.main import run as command
from msd.runtime.dask.cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("MSD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("hello\n" * 100)
    made = tmp_path / "config.yaml"
    made.write_text(
        "sources:\n  books: {path: a.txt, transforms: [{kind: tokens, field: ids}]}\n"
        "batch: {sequence_length: 64}\nmesh: {dp: 1}\n"
        f"checkpoint: {{path: {tmp_path / 'states'}}}\n"
    )
    return made


def test_a_cluster_is_looked_at_with_its_versions_clocks_and_ways(path, capsys):
    with EmbeddedCluster(["msd-one", "msd-two"]) as cluster:
        cluster.wait()
        assert command(["doctor", str(path), "--scheduler", cluster.address, "--json"]) == 0
    found = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert [found[subject]["verdict"] for subject in ("workers", "versions", "clocks", "ways")] == ["fine"] * 4
    assert "msd-one" in found["workers"]["found"]
    assert {"machine", "scheduler", "storage of books", "checkpoint"} <= found.keys()


def test_a_scheduler_that_is_not_there_fails_the_command(capsys, monkeypatch):
    monkeypatch.setattr("msd.runtime.dask.health.CONNECT_S", 1.0)
    assert command(["doctor", "--scheduler", "tcp://127.0.0.1:9"]) == 1
    told = capsys.readouterr().out
    assert "BAD   scheduler: no Dask scheduler answers" in told
    assert "ok    ports" in told


def test_a_cluster_without_workers_fails_the_command(capsys):
    with EmbeddedCluster([]) as cluster:
        assert command(["doctor", "--scheduler", cluster.address]) == 1
    assert "BAD   workers: there is none" in capsys.readouterr().out


def test_a_source_that_is_not_there_fails_the_command(path, capsys):
    (path.parent / "a.txt").unlink()
    assert command(["doctor", str(path)]) == 1
    assert "BAD   storage of books" in capsys.readouterr().out

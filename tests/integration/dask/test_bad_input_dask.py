"""What users get wrong on a cluster: one readable line each, soon, and nothing left behind."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import descendants, wait_until

import msd
from msd.cli.main import run
from msd.errors import ConfigError, DeadlineError, EngineError
from msd.runtime.dask import cluster as cluster_module
from msd.runtime.dask.cluster import EmbeddedCluster
from msd.runtime.dask.versions import check_versions, versions
from msd.testing import scenarios

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(["msd-control", "msd-loader-0"]) as cluster:
        cluster.wait()
        yield cluster


@pytest.fixture(scope="module")
def engine(cluster: EmbeddedCluster) -> Iterator[Any]:
    with msd.start(config(scheduler=cluster.address)) as engine:
        yield engine


def config(**runtime: Any) -> msd.Config:
    return scenarios.text(runtime={"kind": "dask", "workers": 1, "deadline_s": 20, **runtime})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.mark.parametrize(
    "scheduler", ["tcp://127.0.0.1:{port}", "127.0.0.1:{port}", "tcp://no-such-host.invalid:8786", "bogus"]
)
def test_a_scheduler_that_is_not_there(scheduler):
    scheduler = scheduler.format(port=free_port())
    threads = threading.active_count()
    began = time.monotonic()
    with pytest.raises(ConfigError, match="no Dask scheduler answers at") as raised:
        msd.start(config(scheduler=scheduler, deadline_s=1))
    assert time.monotonic() - began < 10
    assert scheduler in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "dask scheduler" in str(raised.value)
    deadline = time.monotonic() + 5
    while threading.active_count() > threads:
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.01)


def test_something_else_listens_where_the_scheduler_should_be():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match="something listens there that does not answer as Dask"):
            msd.start(config(scheduler=f"tcp://127.0.0.1:{port}", deadline_s=1))


def test_the_address_of_a_worker_is_not_the_address_of_a_scheduler(cluster):
    worker = min(cluster._cluster.scheduler.workers)
    with pytest.raises(ConfigError, match="it is the address of a worker"):
        msd.start(config(scheduler=worker, deadline_s=5))


def test_too_few_workers_on_a_cluster_that_somebody_else_started(cluster):
    expected = (
        r"the run needs 5 Dask workers, 4 of them to load; 2 came within 1 s, 1 of them to load; start more with .*"
        r"or lower runtime\.workers"
    )
    with pytest.raises(ConfigError, match=expected):
        msd.start(config(scheduler=cluster.address, workers=4, deadline_s=1))


def test_too_few_workers_that_load(cluster):
    cluster._start("msd-control-1")
    cluster.wait()
    with pytest.raises(ConfigError, match="2 of them to load; 3 came within 1 s, 1 of them to load"):
        msd.start(config(scheduler=cluster.address, workers=2, deadline_s=1))
    process = cluster._workers.pop("msd-control-1")
    process.terminate()
    process.wait()
    wait_until(lambda: len(cluster._cluster.scheduler.workers) == 2, 10, "the worker to leave")


class FakeClient:
    """Workers that answer as they are told."""

    def __init__(self, answer: "dict[str, Any] | Exception") -> None:
        self.answer = answer

    async def run(self, function: Any, workers: list[str]) -> dict[str, Any]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return dict.fromkeys(workers, self.answer)


def test_a_worker_of_another_version_is_named_with_what_to_install():
    ours = versions()

    def check(answer: "dict[str, Any] | Exception") -> None:
        asyncio.run(check_versions(FakeClient(answer), ["tcp://a:1"]))

    check(ours)
    with pytest.raises(ConfigError, match=r"worker tcp://a:1 has numpy 0\.1, this process has .*; install numpy=="):
        check({**ours, "numpy": "0.1"})
    with pytest.raises(ConfigError, match="has pillow not at all"):
        check({name: found for name, found in ours.items() if name != "pillow"})
    with pytest.raises(ConfigError, match="a Dask worker has no module 'msd'; install msd in the worker's environment"):
        check(ModuleNotFoundError("No module named 'msd'", name="msd"))


def test_a_real_worker_of_another_environment_is_refused_before_anything_starts(tmp_path, monkeypatch):
    other = tmp_path / "tokenizers-0.0.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: tokenizers\nVersion: 0.0.1\n")
    environment = cluster_module.worker_environment()
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{environment['PYTHONPATH']}"
    monkeypatch.setattr(cluster_module, "worker_environment", lambda: environment)
    before = descendants(os.getpid())
    with pytest.raises(ConfigError, match=r"has tokenizers 0\.0\.1, this process has .*; install tokenizers=="):
        msd.start(config())
    assert descendants(os.getpid()) == before


def test_a_rank_outside_the_mesh(engine):
    with pytest.raises(ConfigError, match="rank 2"):
        engine.client(2)
    with pytest.raises(ConfigError, match="rank -1"):
        msd.connect(engine.address, rank=-1)


def test_a_second_client_of_a_rank_is_refused_over_the_link_and_wins_in_the_engine(engine):
    first = engine.client(0)
    assert next(first).step == 0
    with pytest.raises(EngineError, match="rank 0 is connected already") as refused:
        msd.connect(engine.address, rank=0)
    assert "close the other one" in str(refused.value)
    assert next(first).step == 1
    second = engine.client(0)
    assert next(second).step == 0
    with pytest.raises(EngineError):
        next(first)
    second.close()


def test_a_wrong_token_or_run_is_refused_and_not_tried_for_ever(engine):
    token = engine.address.partition("token=")[2]
    began = time.monotonic()
    with pytest.raises(EngineError, match="token"):
        msd.connect(engine.address.replace(token, "0" * len(token)), rank=1)
    with pytest.raises(EngineError, match="run"):
        msd.connect(engine.address.replace(engine._run, "0" * len(engine._run)), rank=1)
    assert time.monotonic() - began < 10


@pytest.fixture
def yaml(tmp_path: Path) -> Path:
    (tmp_path / "web.jsonl").write_text("".join('{"ids": [1, 2, 3, 4, 5]}\n' for _ in range(200)))
    path = tmp_path / "run.yaml"
    path.write_text(
        "sources: {web: {path: web.jsonl, transforms: [{kind: tokens, field: ids}]}}\n"
        "batch: {sequence_length: 32, global_batch_size: 8}\nmesh: {dp: 2}\nnum_microbatches: 2\n"
        "runtime: {workers: 1, deadline_s: 20}\n"
    )
    return path


def served(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    status = run(["serve", *(str(argument) for argument in arguments)])
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert len(lines) == 1, printed.err
    return status, lines[0]


def test_serve_says_what_is_wrong_in_one_line_and_ends_with_2(capsys, yaml, cluster, tmp_path):
    nobody = f"tcp://127.0.0.1:{free_port()}"
    status, line = served(capsys, yaml, "--scheduler", nobody, "--set", "runtime.deadline_s=1")
    assert (status, nobody in line) == (2, True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, line = served(capsys, yaml, "--scheduler", cluster.address, "--listen", f"127.0.0.1:{port}")
    assert (status, f"cannot listen at 127.0.0.1:{port} (Address already in use)" in line) == (2, True)
    status, line = served(capsys, yaml, "--rendezvous", tmp_path / "no" / "file.json")
    assert (status, "make the folder first" in line) == (2, True)
    status, line = served(capsys, yaml, "--rendezvous", tmp_path)
    assert (status, f"{tmp_path} is a folder" in line) == (2, True)
    status, line = served(capsys, tmp_path / "none.yaml")
    assert (status, "none.yaml" in line) == (2, True)
    many = ("--scheduler", cluster.address, "--set", "runtime.workers=7", "--set", "runtime.deadline_s=1")
    status, line = served(capsys, yaml, *many)
    assert (status, "needs 8 Dask workers" in line) == (2, True)


def test_a_serve_that_fails_leaves_the_rendezvous_file_of_another_run_alone(capsys, yaml, cluster, tmp_path):
    rendezvous = tmp_path / "rendezvous.json"
    rendezvous.write_text('{"address": "msd://127.0.0.1:1?token=other"}')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ("--scheduler", cluster.address, "--listen", f"127.0.0.1:{port}", "--rendezvous", rendezvous)
        assert served(capsys, yaml, *options)[0] == 2
    assert "token=other" in rendezvous.read_text()


def test_a_run_that_nobody_serves_any_more_names_where_it_was_looked_for():
    port = free_port()
    from msd.client import RankClient
    from msd.client.remote import SocketTransport

    with pytest.raises(DeadlineError, match=f"127.0.0.1:{port}"):
        RankClient(SocketTransport(f"msd://127.0.0.1:{port}?token=x", deadline_s=1), rank=0)


def test_a_function_that_cannot_travel_is_named_before_anything_starts():
    lock = threading.Lock()

    def guarded(sample):
        with lock:
            return sample

    sources = {"web": {"rows": scenarios.token_rows(1, 20, 5), "transforms": [guarded, {"kind": "tokens"}]}}
    before = descendants(os.getpid())
    with pytest.raises(
        ConfigError, match=r"sources\.web\.transforms\[0\]\.function: .*guarded cannot be sent .*cannot pickle '_thread"
    ):
        msd.start(scenarios.text(sources=sources, mixture={}, runtime={"kind": "dask", "workers": 1}))
    assert descendants(os.getpid()) == before

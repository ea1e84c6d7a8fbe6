"""Losses on a cluster that somebody else started: what is there, or comes back, takes over, with the same bytes."""

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Program, Start, descendants, programs, wait_until

import msd
from msd.runtime.dask.settings import as_yaml
from msd.testing import scenarios

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

STEPS = 40


class Cluster:
    """A scheduler and workers, each a program."""

    def __init__(self, start: Start, folder: Path) -> None:
        self.start = start
        self.folder = folder
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.programs: dict[str, Program] = {}
        self._num_started = 0
        (folder / "dask.yaml").write_text(as_yaml())

    def scheduler(self) -> None:
        at = ("--host", "127.0.0.1", "--port", self.port, "--no-dashboard", "--no-show")
        found = self.folder / f"scheduler-{self._num_started}.json"
        self._run("scheduler", "-m", "distributed.cli.dask_scheduler", *at, "--scheduler-file", found)
        wait_until(found.exists, 30, "the scheduler")

    def worker(self, name: str, *options: object, is_awaited: bool = True) -> Program:
        nanny = () if "--nanny" in options else ("--no-nanny",)
        program = self._run(
            name, "-m", "distributed.cli.dask_worker", self.address, "--name", name, "--host", "127.0.0.1",
            "--nthreads", 1, "--no-dashboard", "--memory-limit", 0, "--local-directory", self.folder, *nanny, *options,
        )  # fmt: skip
        if is_awaited:
            wait_until(lambda: "Registered to" in program.output, 60, name)
        return program

    def kill(self, name: str) -> None:
        os.kill(self.programs[name].process.pid, signal.SIGKILL)

    def _run(self, name: str, *command: object) -> Program:
        self._num_started += 1
        env = {"DASK_CONFIG": str(self.folder / "dask.yaml"), "PYTHONPATH": os.pathsep.join(PATHS)}
        self.programs[name] = self.start(f"{name}-{self._num_started}", *command, env=env)
        return self.programs[name]


PATHS = [str(Path(msd.__file__).resolve().parents[1]), str(Path(__file__).parent)]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with programs(tmp_path) as start:
        cluster = Cluster(start, tmp_path)
        cluster.scheduler()
        yield cluster


def config(cluster: Cluster, **changes: Any) -> msd.Config:
    runtime = {"kind": "dask", "scheduler": cluster.address, "workers": 2, "deadline_s": 60, "silence_s": 2}
    return scenarios.uneven(runtime=runtime, **changes)


def take(engine: Any, at: dict[int, Callable[[], None]]) -> dict[tuple[int, int], str | None]:
    """Return the digests of all steps of both ranks; before some steps something happens."""
    found: dict[tuple[int, int], str | None] = {}
    clients = [engine.client(rank) for rank in range(2)]
    for step in range(STEPS):
        at.get(step, lambda: None)()
        for client in clients:
            batch = next(client)
            found[batch.step, batch.rank] = scenarios.digest(batch)
    return found


def test_a_scheduler_that_comes_back_with_its_workers_finds_the_run_where_it_was(cluster, caplog):
    names = ("msd-control", "msd-loader-0", "msd-loader-1")
    for name in names:
        cluster.worker(name)
    settings = config(cluster)
    expected = scenarios.undisturbed(settings, STEPS)

    def begin_anew() -> None:
        cluster.kill("scheduler")
        cluster.programs["scheduler"].process.wait()
        cluster.scheduler()
        for name in names:
            cluster.worker(name, is_awaited=False)

    with msd.start(settings) as engine:
        address = engine.address
        assert take(engine, {5: begin_anew}) == expected
        assert engine.address == address
        (one,) = [one for one in engine.stats()["recoveries"] if one["role"] == "scheduler"]
        assert one["name"] == cluster.address
        assert engine.stats()["term"] == 2
    assert f"the Dask scheduler at {cluster.address} is gone; the run waits 60 s" in caplog.text


def test_workers_that_are_started_later_take_the_posts_of_those_that_are_gone(cluster):
    for name in ("msd-control-0", "a", "b"):
        cluster.worker(name)
    settings = config(cluster)
    expected = scenarios.undisturbed(settings, STEPS)

    def replace_control() -> None:
        cluster.kill("msd-control-0")
        cluster.worker("msd-control-1", is_awaited=False)

    def replace_host() -> None:
        cluster.kill("a")
        cluster.worker("c", is_awaited=False)

    with msd.start(settings) as engine:
        assert take(engine, {5: replace_control, 15: replace_host}) == expected
        wait_until(lambda: {h["host"] for h in engine.stats()["hosts"]} == {"b", "c"}, 30, "the new host")
        recoveries = json.loads(json.dumps(engine.stats()))["recoveries"]
        assert {one["name"] for one in recoveries} == {"planner", "constructor-0", "a"}


def test_a_worker_that_its_nanny_restarts_is_a_new_one(cluster):
    cluster.worker("msd-control")
    cluster.worker("a", "--nanny")
    cluster.worker("b", "--nanny")
    settings = config(cluster)
    expected = scenarios.undisturbed(settings, STEPS)
    with msd.start(settings) as engine:
        before = {host["host"]: host["pid"] for host in engine.stats()["hosts"]}
        assert before["a"] in descendants(cluster.programs["a"].process.pid)
        found = take(engine, {5: lambda: os.kill(before["a"], signal.SIGKILL)})

        def is_back() -> bool:
            after = {host["host"]: host["pid"] for host in engine.stats()["hosts"]}
            return after.keys() == before.keys() and after["a"] != before["a"]

        wait_until(is_back, 30, "the nanny's new worker to load")
    assert found == expected


def test_a_frozen_planner_of_somebody_elses_process_is_replaced_and_not_heard_any_more(cluster):
    for name in ("msd-control-0", "msd-control-1", "a", "b"):
        cluster.worker(name)
    settings = config(cluster, constructors=1)
    expected = scenarios.undisturbed(settings, STEPS)
    frozen = cluster.programs["msd-control-0"].process.pid
    with msd.start(settings) as engine:
        at = {5: lambda: os.kill(frozen, signal.SIGSTOP), 15: lambda: os.kill(frozen, signal.SIGCONT)}
        assert take(engine, at) == expected
        assert {one["how"] for one in engine.stats()["recoveries"]} == {"no answer for 2 s"}
        assert engine.stats()["term"] == 2


def test_a_worker_that_comes_back_at_its_address_takes_part_each_time(cluster):
    fixed = ("--worker-port", free_port())
    cluster.worker("msd-control")
    cluster.worker("a", *fixed)
    cluster.worker("b")
    settings = config(cluster)
    expected = scenarios.undisturbed(settings, STEPS)

    def again() -> None:
        cluster.kill("a")
        cluster.programs["a"].process.wait()
        cluster.worker("a", *fixed)

    def pid() -> int | None:
        return next((host["pid"] for host in engine.stats()["hosts"] if host["host"] == "a"), None)

    with msd.start(settings) as engine:
        assert take(engine, {5: again, 20: again}) == expected
        wait_until(lambda: pid() == cluster.programs["a"].process.pid, 30, "the worker to load once more")


def test_an_engine_closes_though_its_scheduler_is_frozen(cluster):
    for name in ("msd-control", "a", "b"):
        cluster.worker(name)
    scheduler = cluster.programs["scheduler"].process.pid
    engine = msd.start(config(cluster))
    next(engine.client(0))
    os.kill(scheduler, signal.SIGSTOP)
    closing = threading.Thread(target=engine.close)
    try:
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
    finally:
        os.kill(scheduler, signal.SIGCONT)
        closing.join()

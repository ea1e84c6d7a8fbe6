"""Nothing hangs and nothing stays, however a run begins and ends."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Program, Start, descendants, programs, wait_until

import msd
from msd.errors import BadSampleRateError, ClosedError, ConfigError, DeadlineError, EngineError, MsdError, SourceError
from msd.runtime.dask import cluster as cluster_module
from msd.runtime.dask.cluster import EmbeddedCluster
from msd.runtime.dask.engine import DaskEngine
from msd.testing import scenarios

pytestmark = pytest.mark.cluster

SCRIPT = """
    import json, os, sys, time
    import msd
    from msd.testing import scenarios

    def doubled(sample):
        return {"ids": sample["ids"] * 2}

    transforms = [doubled, {"kind": "tokens", "field": "ids"}]
    sources = {"web": {"rows": scenarios.token_rows(1, 200, 20), "transforms": transforms}}
    runtime = {"kind": "dask", "workers": 1, "deadline_s": 30, **RUNTIME}
    config = scenarios.text(sources=sources, mixture={}, runtime=runtime)

    def ready(engine):
        print("ready", engine._run, os.getpid(), flush=True)
"""

WATCHED_WORKERS = 3
"""Processes of a run with one loader host: that one, the control worker, and the one that outlives the engine."""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts programs, and looks for temporary files where theirs are."""
    with programs(tmp_path) as start:
        monkeypatch.setattr(tempfile, "tempdir", str(start.temporary))
        yield start


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(["msd-control", "msd-loader-0", "msd-loader-1"]) as cluster:
        cluster.wait()
        yield cluster


def script(folder: Path, body: str, **runtime: Any) -> Path:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(SCRIPT).replace("RUNTIME", repr(runtime)) + textwrap.dedent(body))
    return path


def run_of(program: Program) -> str:
    """Return the run's identity, once it has begun."""
    wait_until(lambda: "ready" in program.output or program.process.poll() is not None, 60, "the run to begin")
    assert "ready" in program.output, program.output
    return program.output.partition("ready ")[2].split()[0]


def sockets_of(run: str) -> list[Path]:
    """Return the sockets of a run, in the folder of a cluster of its own or beside those."""
    found, root = [], Path(tempfile.gettempdir())
    for folder in (root, *root.glob("msd-*")):
        # Folders of other runs come and go meanwhile.
        with contextlib.suppress(OSError):
            found += list(folder.glob(f"msd-{run}-*.sock"))
    return found


def all_gone(pids: set[int]) -> bool:
    return not any(_is_alive(pid) for pid in pids)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def config(shared: EmbeddedCluster, **changes: Any) -> msd.Config:
    runtime = {"kind": "dask", "scheduler": shared.address, "deadline_s": 30}
    return scenarios.text(runtime={**runtime, **changes.pop("runtime", {})}, **changes)


def test_an_engine_starts_its_processes_and_ends_them_and_may_be_closed_twice():
    """Answers TF-3."""
    before = descendants(os.getpid())
    threads = set(threading.enumerate())
    engine = msd.start(scenarios.text(runtime={"kind": "dask", "workers": 1}))
    started = descendants(os.getpid()) - before
    assert len(started) == WATCHED_WORKERS
    assert sockets_of(engine._run)
    client = engine.client(0)
    assert next(client).step == 0
    engine.close()
    engine.close()
    assert all_gone(started)
    assert sockets_of(engine._run) == []
    with pytest.raises(ClosedError):
        engine.client(0)
    with pytest.raises(ClosedError):
        next(client)
    wait_until(lambda: not [t for t in set(threading.enumerate()) - threads if not t.daemon], 5, "threads to end")


def always_fails(sample: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("this row is not to my liking")


def test_what_a_transform_raises_reaches_every_rank_before_any_deadline(shared):
    """Answers GR-3."""
    sources = {
        "web": {
            "rows": scenarios.token_rows(1, 200, 20),
            "transforms": [always_fails, {"kind": "tokens", "field": "ids"}],
            "on_error": {"policy": "raise"},
        }
    }
    with msd.start(config(shared, sources=sources, mixture={})) as engine:
        began = time.monotonic()
        for rank in range(2):
            # A run that has failed already refuses whoever comes.
            with pytest.raises(BadSampleRateError, match="this row is not to my liking"):
                next(engine.client(rank))
        assert time.monotonic() - began < 10
        with pytest.raises(BadSampleRateError):
            engine.check()


class Unusual(Exception):
    """Of a class that only the planner's process has to know."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def cost(length: Any, *others: Any) -> Any:
    raise Unusual("no", "cost")


def test_what_a_cost_function_raises_reaches_every_rank_too(shared):
    settings = config(shared, cost={"backbone": {"kind": "test_lifecycle:cost"}})
    with msd.start(settings) as engine:
        for rank in range(2):
            with pytest.raises(MsdError, match="Unusual: no cost"):
                next(engine.client(rank))


def strategy(graph: Any, context: Any) -> Any:
    raise Unusual("no", "plan")


def test_what_a_strategy_raises_at_the_start_is_raised_at_the_start(shared):
    with pytest.raises(ConfigError, match="Unusual: no plan"):
        msd.start(config(shared, strategy=strategy))


def test_workers_end_when_the_process_that_started_them_is_killed(start, tmp_path):
    body = """
        with msd.start(config) as engine:
            client = engine.client(0)
            next(client)
            ready(engine)
            time.sleep(600)
    """
    program = start("killed", script(tmp_path, body))
    run, workers = run_of(program), descendants(program.process.pid)
    assert len(workers) == WATCHED_WORKERS
    assert sockets_of(run)
    os.kill(program.process.pid, signal.SIGKILL)
    wait_until(lambda: all_gone(workers), 10, "the workers to end")
    assert list(Path(tempfile.gettempdir()).glob("msd-*")) == []


def test_actors_close_when_the_process_that_started_them_on_a_standing_cluster_is_killed(start, tmp_path, shared):
    body = """
        with msd.start(config) as engine:
            next(engine.client(0))
            ready(engine)
            print("address", engine.address, flush=True)
            time.sleep(600)
    """
    program = start("orphan", script(tmp_path, body, scheduler=shared.address))
    run = run_of(program)
    wait_until(lambda: "address" in program.output, 10, "the address")
    host, port = program.output.partition("msd://")[2].partition("?")[0].split(":")
    os.kill(program.process.pid, signal.SIGKILL)
    wait_until(lambda: not sockets_of(run), 10, "the constructor to close")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5).close()
    with msd.start(config(shared)) as engine:
        assert next(engine.client(0)).step == 0


def test_an_interrupted_script_ends_its_workers(start, tmp_path):
    body = """
        with msd.start(config) as engine:
            with engine.client(0) as client:
                for batch in client:
                    if batch.step == 3:
                        ready(engine)
                    time.sleep(0.01)
    """
    program = start("interrupted", script(tmp_path, body))
    run, workers = run_of(program), descendants(program.process.pid)
    os.kill(program.process.pid, signal.SIGINT)
    program.process.wait(60)
    assert all_gone(workers)
    assert sockets_of(run) == []
    assert program.output.rstrip().endswith("KeyboardInterrupt")
    assert program.output.count("Traceback") == 1, program.output


def test_an_unguarded_script_with_a_function_of_its_own_runs_and_says_nothing_else(start, tmp_path):
    """Answers LA-1."""
    body = """
        with msd.start(config) as engine, engine.client(0) as client:
            print(next(client).step, next(client).step)
    """
    program = start("unguarded", "-W", "error", script(tmp_path, body), env={"PYTHONWARNINGS": "error"})
    assert program.wait(60) == "0 1\n"


def test_a_script_that_ends_without_closing_ends_its_workers_and_says_nothing(start, tmp_path):
    """Answers HF-10."""
    body = """
        client = msd.start(config).client(0)
        print(next(client).step)
        time.sleep(1)
    """
    program = start("careless", "-W", "error", script(tmp_path, body), env={"PYTHONWARNINGS": "error"})
    wait_until(lambda: bool(program.output) or program.process.poll() is not None, 60, "the first batch")
    assert program.output == "0\n"
    workers = descendants(program.process.pid)
    assert len(workers) == WATCHED_WORKERS
    assert program.wait(30) == "0\n"
    assert all_gone(workers)


def test_a_run_starts_in_a_notebook_with_a_transform_from_a_cell(tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient")
    nbformat = pytest.importorskip("nbformat", reason="needs nbformat")
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    setup = textwrap.dedent(SCRIPT).replace("RUNTIME", "{}")
    cells = [
        setup,
        "engine = msd.start(config); client = engine.client(0)",
        "print(next(client).step)",
        "engine.close()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert notebook.cells[2].outputs[0].text == "0\n"
    assert notebook.cells[3].outputs == []


def test_a_start_that_fails_half_way_leaves_nothing(tmp_path, monkeypatch):
    before = descendants(os.getpid())
    folder, broken = tmp_path / "temporary", tmp_path / "broken"
    for path in (folder, broken):
        path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    settings = scenarios.text(runtime={"kind": "dask", "workers": 1})
    with pytest.raises(SourceError):
        msd.start(settings.replace(sources={"web": {"path": str(tmp_path / "none*.jsonl")}}, mixture={"weights": None}))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen at 127\.0\.0\.1:{port} \(Address already in use\)"):
            DaskEngine(settings, listen=("127.0.0.1", port))
    (broken / "distributed.py").write_text("raise SystemExit('this worker cannot start')")
    environment = cluster_module.worker_environment()
    environment["PYTHONPATH"] = f"{broken}:{environment['PYTHONPATH']}"
    monkeypatch.setattr(cluster_module, "worker_environment", lambda: environment)
    with pytest.raises(EngineError, match=r"worker msd-(control|loader-0) ended with status 1: this worker cannot"):
        msd.start(settings)
    assert all_gone(descendants(os.getpid()) - before)
    # Dask keeps locks of its own there.
    assert list(folder.glob("msd-*")) == []


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_serve_ends_and_its_ranks_hear_of_it_or_look_for_it(start, tmp_path, number, status):
    rendezvous, config_path = tmp_path / "rendezvous.json", tmp_path / "run.yaml"
    (tmp_path / "web.jsonl").write_text("".join('{"ids": [1, 2, 3, 4, 5]}\n' for _ in range(200)))
    config_path.write_text(
        textwrap.dedent("""
        sources: {web: {path: web.jsonl, transforms: [{kind: tokens, field: ids}]}}
        batch: {sequence_length: 32, global_batch_size: 8}
        mesh: {dp: 2}
        num_microbatches: 2
        runtime: {kind: dask, workers: 1}
    """)
    )
    serve = start("serve", "-m", "msd.cli.main", "serve", config_path, "--rendezvous", rendezvous)
    wait_until(lambda: rendezvous.exists() or serve.process.poll() is not None, 60, "the run to be served")
    workers = descendants(serve.process.pid)
    with msd.connect(rendezvous.as_uri(), rank=1, deadline_s=15.0) as client:
        assert next(client).step == 0
        os.kill(serve.process.pid, number)
        assert serve.process.wait(20) == status, serve.output
        # What was fetched ahead is still handed out. One that was killed may be served again.
        error, said = (
            (DeadlineError, "it waits for a connection to") if number == signal.SIGKILL else (ClosedError, "was closed")
        )
        with pytest.raises(error, match=said):
            list(client)
    wait_until(lambda: all_gone(workers), 20, "workers to end")
    assert rendezvous.exists() == (number == signal.SIGKILL)
    assert "Traceback" not in serve.output


def test_a_serve_whose_scheduler_stays_away_ends_at_its_deadline_and_says_so(start, tmp_path):
    found, rendezvous, config_path = (tmp_path / name for name in ("scheduler.json", "rendezvous.json", "run.yaml"))
    (tmp_path / "web.jsonl").write_text("".join('{"ids": [1, 2, 3, 4, 5]}\n' for _ in range(200)))
    config_path.write_text(
        textwrap.dedent("""
        sources: {web: {path: web.jsonl, transforms: [{kind: tokens, field: ids}]}}
        batch: {sequence_length: 32, global_batch_size: 8}
        mesh: {dp: 2}
        num_microbatches: 2
        runtime: {workers: 1, deadline_s: 4}
    """)
    )
    address = ("--host", "127.0.0.1", "--no-dashboard")
    quiet = ("--port", 0, "--no-show", "--scheduler-file", found)
    scheduler = start("scheduler", "-m", "distributed.cli.dask_scheduler", *address, *quiet)
    wait_until(found.exists, 30, "the scheduler")
    for name in ("msd-control", "msd-loader"):
        one = ("--name", name, "--nthreads", 1, "--no-nanny", "--memory-limit", 0, "--local-directory", tmp_path)
        start(name, "-m", "distributed.cli.dask_worker", *address, "--scheduler-file", found, *one)
    at = json.loads(found.read_text())["address"]
    options = ("--scheduler", at, "--rendezvous", rendezvous)
    serve = start("serve", "-m", "msd.cli.main", "serve", config_path, *options)
    wait_until(lambda: rendezvous.exists() or serve.process.poll() is not None, 60, "the run to be served")
    os.kill(scheduler.process.pid, signal.SIGKILL)
    assert serve.process.wait(30) == 1, serve.output
    said = [line for line in serve.output.splitlines() if not line.startswith(("msd://", "dashboard: "))]
    assert len(said) == 2, serve.output
    assert said[0] == (
        f"the Dask scheduler at {at} is gone; the run waits 4 s for one there and for workers, and then goes on"
    )
    assert said[1].startswith(f"error: the Dask scheduler at {at} is gone, and with it the run, since neither it nor ")


@pytest.mark.parametrize("doing", ["making a corpus", "planning", "starting", "streaming"])
def test_an_interrupted_demo_leaves_nothing_whatever_it_was_doing(start, doing):
    demo = start("demo", "-m", "msd.cli.main", "demo", "--steps", 40, "--scale", 0.05)
    is_at = {
        "making a corpus": lambda: "corpus: " in demo.output,
        "planning": lambda: "planning" in demo.output,
        "starting": lambda: "starting a Dask cluster" in demo.output,
        "streaming": lambda: list(Path(tempfile.gettempdir()).glob("msd-*/msd-*.sock")),
    }[doing]
    wait_until(lambda: is_at() or demo.process.poll() is not None, 90, f"the demo to be {doing}")
    workers = descendants(demo.process.pid)
    os.kill(demo.process.pid, signal.SIGINT)
    assert demo.process.wait(30) == 130, demo.output
    assert "Traceback" not in demo.output
    wait_until(lambda: all_gone(workers), 10, "workers to end")
    assert list(Path(tempfile.gettempdir()).glob("msd-*")) == []


def test_an_interrupted_notebook_cell_leaves_the_kernel_and_no_worker(monkeypatch, tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    body = textwrap.dedent(SCRIPT).replace("RUNTIME", repr({})) + textwrap.dedent("""
        with msd.start(config) as engine:
            next(engine.client(0))
            open("begun", "w").close()
            time.sleep(600)
    """)
    cells = [nbformat.v4.new_code_cell(body), nbformat.v4.new_code_cell("print('still here')")]
    book = nbformat.v4.new_notebook(cells=cells)
    client = nbclient.NotebookClient(
        book, timeout=60, allow_errors=True, resources={"metadata": {"path": str(tmp_path)}}
    )
    with client.setup_kernel():
        pid = client.km.provisioner.pid

        def interrupt() -> None:
            wait_until((tmp_path / "begun").exists, 50, "the cell to begin")
            os.kill(pid, signal.SIGINT)

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        client.execute_cell(cells[0], 0)
        interrupting.join()
        assert cells[0].outputs[-1]["ename"] == "KeyboardInterrupt"
        client.execute_cell(cells[1], 1)
        assert cells[1].outputs[0]["text"] == "still here\n"
        assert [
            child for child in descendants(pid) if b"dask_worker" in Path(f"/proc/{child}/cmdline").read_bytes()
        ] == []


def test_a_cluster_that_ends_leaves_the_log_of_another_one_quiet(monkeypatch):
    handler = logging.StreamHandler()
    monkeypatch.setattr(logging.getLogger("distributed"), "handlers", [handler])
    # Other tests of this process may have clusters.
    monkeypatch.setattr(cluster_module.Quiet, "_num_wanted", 0)
    monkeypatch.setattr(cluster_module.Quiet, "_silence", contextlib.ExitStack())
    with EmbeddedCluster([]):
        with EmbeddedCluster([]):
            pass
        assert handler.level == logging.ERROR
    assert handler.level == logging.NOTSET


def test_a_process_that_is_forked_from_that_of_an_engine_ends_nothing_of_it(shared):
    with msd.start(config(shared)) as engine:
        child = os.fork()
        if child == 0:
            engine.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        engine.check()
        assert next(engine.client(0)).step == 0


def test_a_cluster_that_cannot_start_leaves_the_log_as_it_was(monkeypatch):
    def fails(**settings: Any) -> None:
        raise OSError("no port is free")

    before = logging.getLogger("distributed").level, cluster_module.Quiet._num_wanted
    monkeypatch.setattr(cluster_module, "LocalCluster", fails)
    with pytest.raises(OSError, match="no port"):
        EmbeddedCluster(["msd-control"])
    assert (logging.getLogger("distributed").level, cluster_module.Quiet._num_wanted) == before


def test_a_rewind_whose_caller_is_interrupted_is_brought_to_its_end(shared):
    settings = config(shared)
    with msd.start(settings) as engine:
        assert next(engine.client(0)).step == 0
        moving = asyncio.run_coroutine_threadsafe(
            engine._supervisor.rewind(settings.on_mesh({"dp": 1}), 0), engine._loop._loop
        )
        time.sleep(0.05)
        moving.cancel()
        wait_until(lambda: engine.mesh.world_size == 1, 30, "the other mesh")
        assert next(engine.client(0)).step == 0

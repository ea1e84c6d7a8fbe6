"""A run over two hosts, started with the commands of `docs/how-to/run-on-a-cluster.md`.

Twice: on two loopback addresses of this machine; and in two network namespaces with names of their own, between which
only TCP over a virtual cable leads.
"""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import ROOT, Start, programs, wait_until

import msd
from msd.testing.scenarios import digest

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(180)]

RANK = ROOT / "tests/integration/dask/rank.py"
STEPS = 12


@dataclass(frozen=True)
class Host:
    """Somewhere programs run."""

    name: str
    address: str
    prefix: tuple[str, ...] = ()


def may_make_namespaces() -> bool:
    if not all(shutil.which(name) for name in ("ip", "unshare")) or os.geteuid() != 0:
        return False
    tried = subprocess.run(["unshare", "--net", "--uts", "ip", "link", "add", "type", "veth"], capture_output=True)
    return tried.returncode == 0


@contextlib.contextmanager
def namespaces() -> Iterator[list[Host]]:
    """Two hosts joined by a virtual cable; gone afterwards."""
    mark = os.urandom(3).hex()
    names = [f"msd-{mark}-a", f"msd-{mark}-b"]
    hosts = [
        Host(
            f"host-{end}", f"10.77.0.{number}", ("ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", HOSTNAME)
        )
        for number, (end, name) in enumerate(zip("ab", names, strict=True), 1)
    ]
    hosts = [Host(host.name, host.address, (*host.prefix, host.name)) for host in hosts]
    try:
        for name in names:
            ip("netns", "add", name)
        ip(
            "link",
            "add",
            f"v{mark}a",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            f"v{mark}b",
            "netns",
            names[1],
        )
        for host, name, end in zip(hosts, names, "ab", strict=True):
            ip("-n", name, "address", "add", f"{host.address}/24", "dev", f"v{mark}{end}")
            for device in (f"v{mark}{end}", "lo"):
                ip("-n", name, "link", "set", device, "up")
        yield hosts
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


HOSTNAME = 'hostname "$0" && exec "$@"'


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture(params=["loopback", "namespaces"])
def hosts(request):
    if request.param == "loopback":
        yield [Host("a", "127.0.0.2"), Host("b", "127.0.0.3")]
        return
    if not may_make_namespaces():
        pytest.skip("network namespaces need root and ip of iproute2")
    with namespaces() as made:
        yield made


@pytest.fixture
def folder():
    """A folder that both hosts see, with a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def run_on(host: Host, start: Start, name: str, *command: object, settings: Path | None = None):
    env = {} if settings is None else {"DASK_CONFIG": str(settings)}
    return start(f"{name}-{host.name}", *command, env=env, prefix=host.prefix)


@contextlib.contextmanager
def cluster(hosts: list[Host], folder: Path, start: Start) -> Iterator[str]:
    """A scheduler on the first host, and on each a worker that constructs and one that loads."""
    settings, found = folder / "dask.yaml", folder / "scheduler.json"
    settings.write_text(start("settings", "-m", "msd.cli.main", "serve", "--dask-config").wait(30))
    run_on(
        hosts[0], start, "scheduler", "-m", "distributed.cli.dask_scheduler", "--host", hosts[0].address, "--port", 0,
        "--no-dashboard", "--no-show", "--scheduler-file", found, settings=settings,
    )  # fmt: skip
    wait_until(found.exists, 30, "the scheduler")
    address = json.loads(found.read_text())["address"]
    workers = [
        run_on(
            host, start, name, "-m", "distributed.cli.dask_worker", address, "--name", name, "--host", host.address,
            "--nthreads", 1, "--no-nanny", "--no-dashboard", "--memory-limit", 0, "--local-directory", folder,
            settings=settings,
        )
        for number, host in enumerate(hosts)
        for name in (f"msd-control-{number}", f"msd-loader-{number}")
    ]  # fmt: skip
    for worker in workers:
        wait_until(lambda worker=worker: "Registered to" in worker.output, 60, worker.name)
    yield address
    assert all(worker.process.poll() is None for worker in workers), "a run leaves the cluster as it was"


def received(hosts: list[Host], folder: Path, start: Start, *serve: object) -> list[dict]:
    """Serve from the first host, take steps of two ranks on each, and return what each of them wrote."""
    rendezvous = folder / "run.json"
    engine = run_on(hosts[0], start, "serve", "-m", "msd.cli.main", "serve", *serve, "--rendezvous", rendezvous)
    wait_until(lambda: rendezvous.exists() or engine.process.poll() is not None, 60, "the run")
    ranks = [
        run_on(
            hosts[rank // 2], start, f"rank{rank}", RANK, f"file://{rendezvous}", rank, STEPS, folder / f"{rank}.json"
        )
        for rank in range(4)
    ]
    for rank in ranks:
        rank.wait(60)
    assert engine.stop() == 0, engine.output
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(4)]


def test_ranks_of_both_hosts_receive_what_the_local_engine_delivers(hosts, folder, tiny_corpus):
    config = tiny_corpus / "corpus.yaml"
    settings = ["batch.sequence_length=256", "batch.global_batch_size=8", "mesh.dp=4"]
    with msd.start(msd.load_config(config, settings), runtime="local") as engine:
        clients = [engine.client(rank) for rank in range(4)]
        expected = [[digest(next(client)) for client in clients] for _ in range(STEPS)]
    with programs(folder) as start, cluster(hosts, folder, start) as scheduler:
        near = received(hosts, folder, start, config, *settings, "--scheduler", scheduler)
        far = received(hosts, folder, start, config, *settings, "constructors=1", "--scheduler", scheduler)
    for ranks in (near, far):
        assert [[rank["steps"][step]["digest"] for rank in ranks] for step in range(STEPS)] == expected
    # With a constructor on each host, ranks are served by their own; with one, over TCP where that is another host.
    places = [rank["served_at"] for rank in near]
    assert places[0] == places[1] != places[2] == places[3]
    assert all(place.startswith("unix://") for place in places)
    schemes = [rank["served_at"].partition(":")[0] for rank in far]
    assert schemes == ["unix", "unix", *(["tcp", "tcp"] if hosts[0].prefix else ["unix", "unix"])]

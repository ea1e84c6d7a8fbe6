"""A run with certificates: the same bytes, and nobody without one hears or says anything."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from distributed import Client
from distributed.core import rpc
from distributed.security import Security
from processes import descendants, programs, wait_until

import msd
from msd.cli.main import run as command
from msd.errors import ConfigError, EngineError
from msd.runtime.dask.cluster import EmbeddedCluster
from msd.runtime.dask.engine import DaskEngine
from msd.testing import scenarios

pytestmark = pytest.mark.cluster

STEPS = 12
RANK = Path(__file__).with_name("rank.py")
RUNTIME = {"kind": "dask", "workers": 1, "deadline_s": 60}


def config(security: dict[str, str], **changes: Any) -> msd.Config:
    runtime = {**RUNTIME, **changes.pop("runtime", {})}
    return scenarios.text(mesh={"dp": 2}, runtime=runtime, security=security, **changes)


def environment(security: dict[str, str]) -> dict[str, str]:
    return {
        "MSD_TLS_CA": security["ca"],
        "MSD_TLS_CERT": security["certificate"],
        "MSD_TLS_KEY": security["key"],
    }


@pytest.fixture(scope="module")
def engine(certificates, tmp_path_factory) -> Iterator[DaskEngine]:
    """One run for most of this file. It has no Unix sockets, so that ranks of this machine use TCP, as others do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MSD_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("msd.runtime.dask.posts.socket_path", lambda *where: None)
        events = str(tmp_path_factory.mktemp("events") / "events.jsonl")
        with msd.start(config(certificates("run"), runtime={"events": events})) as engine:
            assert isinstance(engine, DaskEngine)
            yield engine


def goes_on(engine: DaskEngine) -> bool:
    """Return whether the run answers, and has lost nobody."""
    engine.check()
    return engine.stats()["recoveries"] == []


def as_dask(security: dict[str, str]) -> Security:
    pair = {"tls_client_cert": security["certificate"], "tls_client_key": security["key"]}
    return Security(require_encryption=True, tls_ca_file=security["ca"], **pair)


def test_ranks_in_processes_of_their_own_receive_the_bytes_of_a_plain_run(engine, certificates, tmp_path):
    expected = scenarios.undisturbed(scenarios.text(mesh={"dp": 2}), STEPS)
    with programs(tmp_path) as start:
        ranks = [
            start(
                f"rank-{rank}", RANK, engine.address, rank, STEPS, tmp_path / f"{rank}.json",
                env=environment(certificates("run")),
            )
            for rank in range(2)
        ]  # fmt: skip
        for rank in ranks:
            rank.wait(60)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    received = {(step["step"], rank): step["digest"] for rank in range(2) for step in found[rank]["steps"]}
    assert received == expected
    assert all(one["served_at"].startswith("tls://127.0.0.1:") for one in found)
    assert engine.address.startswith("tls://127.0.0.1:")
    assert engine.scheduler_address.startswith("tls://127.0.0.1:")


def ports(engine: DaskEngine) -> dict[str, int]:
    """Return every port that is meant for other processes of the run."""
    places = [place.addresses[0] for place in engine._registry._places.values()]
    workers = list(engine._cluster._cluster.scheduler.workers)
    named = {"scheduler": engine.scheduler_address, "registry": engine.address, "constructor": places[0]}
    named |= {f"worker {number}": address for number, address in enumerate(workers)}
    return {name: urlsplit(address).port for name, address in named.items()}


def test_no_port_of_the_run_takes_a_client_without_a_certificate_or_with_one_of_another_ca(engine, certificates):
    for name, port in ports(engine).items():
        for own in (None, certificates("other")):
            context = ssl.create_default_context(cafile=certificates("run")["ca"])
            context.check_hostname = False
            if own is not None:
                context.load_cert_chain(own["certificate"], own["key"])
            with pytest.raises(OSError, match=r"(?i)CERTIFICATE_REQUIRED|UNKNOWN_CA|reset"):
                spoken_to(port, context)
            assert name
        # The same port takes a certificate of the run's.
        context.load_cert_chain(certificates("run")["certificate"], certificates("run")["key"])
        spoken_to(port, context)
    assert goes_on(engine)


def spoken_to(port: int, context: ssl.SSLContext) -> None:
    """Shake hands, and see whether that is kept to: a server may refuse after the handshake."""

    async def shake() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            async with asyncio.timeout(1.0):
                await reader.read(1)
        except TimeoutError:
            pass  # It waits for what we say.
        finally:
            writer.transport.abort()

    asyncio.run(shake())


def listening(pids: set[int]) -> dict[str, int]:
    """Return where processes listen, as the kernel's tables say it: address and port in hexadecimal."""
    found = {}
    for pid in pids:
        inodes = set()
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
        for table in ("tcp", "tcp6", "udp", "udp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                is_listening = fields[3] == ("0A" if table.startswith("tcp") else "07")
                if is_listening and fields[9] in inodes:
                    found[fields[1]] = pid
    return found


LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


def test_nothing_listens_beyond_loopback(engine):
    found = listening({os.getpid(), *descendants(os.getpid())})
    assert len(found) >= len(ports(engine))
    assert {address.partition(":")[0] for address in found} <= LOOPBACK


def test_the_folder_of_a_run_is_its_owners_alone(engine):
    assert Path(engine._cluster.folder).stat().st_mode & 0o777 == 0o700


def test_the_token_is_written_down_nowhere(engine, certificates, caplog):
    token = engine._token
    caplog.set_level(logging.DEBUG)
    with msd.connect(engine.address, rank=0, security=certificates("run")) as client:
        next(client)
        state = json.dumps(client.state_dict())
    with pytest.raises(EngineError) as raised:
        msd.connect(engine.address.replace(token, token[:-1]), rank=0, security=certificates("run"))
    run = engine._supervisor._posts.run
    told = [caplog.text, str(raised.value), repr(run), json.dumps(engine.stats()), state]
    told.append(Path(engine.config.runtime.events).read_text())
    told += [path.read_text(errors="replace") for path in Path(engine._cluster.folder).glob("*.log")]
    for pid in descendants(os.getpid()):
        told += [Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace") for name in ("cmdline", "environ")]
    assert "msd-control" in "".join(told)
    assert not any(token[:-1] in text for text in told)


def test_a_dask_client_without_the_certificate_reaches_neither_scheduler_nor_workers(engine, certificates):
    plain = engine.scheduler_address.replace("tls://", "tcp://")
    for address, security in (
        (plain, Security()),
        (engine.scheduler_address, Security()),
        (engine.scheduler_address, as_dask(certificates("other"))),
    ):
        with pytest.raises((OSError, TypeError, RuntimeError)):
            asyncio.run(_identity(address, security))
    assert asyncio.run(_identity(engine.scheduler_address, as_dask(certificates("run"))))["type"] == "Scheduler"
    assert goes_on(engine)


async def _identity(address: str, security: Security) -> dict[str, Any]:
    async with rpc(address, timeout=2, connection_args=security.get_connection_args("client")) as asked:
        found: dict[str, Any] = await asyncio.wait_for(asked.identity(), 5)
        return found


def test_a_rank_without_certificates_and_one_of_another_ca_hear_why_and_the_run_goes_on(engine, certificates):
    in_the_clear = engine.address.replace("tls://", "msd://")
    with pytest.raises(ConfigError, match=r"served with TLS alone; .* set MSD_TLS_CA, MSD_TLS_CERT, MSD_TLS_KEY"):
        msd.connect(engine.address, rank=0)
    with pytest.raises(EngineError, match="is served with TLS alone"):
        msd.connect(in_the_clear, rank=0)
    with pytest.raises(ConfigError, match="is not signed by"):
        msd.connect(engine.address, rank=0, security=certificates("other"))
    theirs = {**certificates("other"), "ca": certificates("run")["ca"]}
    with pytest.raises(ConfigError, match=r"refuses us: the certificate .* is not signed by the CA of the run"):
        msd.connect(engine.address, rank=0, security=theirs)
    assert goes_on(engine)


def test_a_certificate_does_not_replace_the_token(engine, certificates):
    where, _, _ = engine.address.partition("?")
    with pytest.raises(EngineError, match="refuses the token"):
        msd.connect(f"{where}?token=wrong", rank=0, security=certificates("run"))
    with pytest.raises(EngineError, match="refuses the token"):
        msd.control(f"{where}?token=wrong", security=certificates("run")).stats()


def test_a_run_is_steered_and_looked_at_with_certificates_and_not_without(engine, certificates, monkeypatch, capsys):
    for arguments in (["mix", "show", engine.address], ["top", engine.address, "--once"]):
        assert command(arguments) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("error: tls://127.0.0.1:")
        assert said.err.count("\n") == 1
    with pytest.raises(ConfigError, match="served with TLS alone"):
        msd.control(engine.address).stats()
    assert msd.control(engine).stats()["runtime"] == "dask"
    assert msd.control(engine.address, security=certificates("run")).stats()["runtime"] == "dask"
    for name, path in environment(certificates("run")).items():
        monkeypatch.setenv(name, path)
    for arguments, shown in (
        (["mix", "show", engine.address], "next step"),
        (["top", engine.address, "--once"], "samples/s"),
    ):
        assert command(arguments) == 0
        assert shown in capsys.readouterr().out


def test_doctor_looks_at_a_cluster_with_the_certificates_of_the_configuration(engine, certificates, tmp_path, capsys):
    path = tmp_path / "config.yaml"
    (tmp_path / "a.txt").write_text("hello\n" * 100)
    lines = [f"  {name}: {file}" for name, file in certificates("run").items()]
    path.write_text(
        "sources:\n  books: {path: a.txt, transforms: [{kind: tokens, field: ids}]}\n"
        "batch: {sequence_length: 64}\nmesh: {dp: 1}\nsecurity:\n" + "\n".join(lines) + "\n"
    )
    assert command(["doctor", str(path), "--scheduler", engine.scheduler_address, "--json"]) == 0
    found = {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert [found[subject]["verdict"] for subject in ("workers", "clocks", "certificates")] == ["fine"] * 3


def test_a_shared_scheduler_is_refused_in_the_clear_and_without_certificates(certificates):
    with pytest.raises(ConfigError, match=r"runtime.scheduler 'tcp://127.0.0.1:1' is not encrypted"):
        config(certificates("run"), runtime={"scheduler": "tcp://127.0.0.1:1"})
    with (
        pytest.raises(ConfigError, match="it is served with TLS alone; name certificates in the security section"),
        msd.start(scenarios.text(runtime={**RUNTIME, "scheduler": "tls://127.0.0.1:1"})),
    ):
        pass


def test_a_run_of_another_cluster_uses_the_certificates_that_its_workers_have(certificates):
    security = certificates("run")
    expected = scenarios.undisturbed(scenarios.text(mesh={"dp": 2}), STEPS)
    shared = config(security).security
    with EmbeddedCluster(["msd-control", "msd-loader-0"], security=shared) as cluster:
        cluster.wait()
        with msd.start(config(security, runtime={"scheduler": cluster.address})) as engine:
            scenarios.same_bytes(expected, engine)
        with (
            pytest.raises(ConfigError, match="no Dask scheduler answers at"),
            msd.start(config(certificates("other"), runtime={"scheduler": cluster.address})),
        ):
            pass
        with Client(cluster.address, security=as_dask(security), set_as_default=False) as client:
            assert len(client.scheduler_info()["workers"]) == 2


def test_a_cluster_that_is_started_by_hand_takes_its_certificates_from_the_settings_that_msd_prints(
    certificates, tmp_path, monkeypatch, capsys
):
    for name, path in environment(certificates("run")).items():
        monkeypatch.setenv(name, path)
    assert command(["serve", "--dask-config"]) == 0
    (tmp_path / "dask.yaml").write_text(capsys.readouterr().out)
    for name in environment(certificates("run")):
        monkeypatch.delenv(name)
    env = {"DASK_CONFIG": str(tmp_path / "dask.yaml"), "PYTHONPATH": os.pathsep.join(sys.path)}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    address = f"tls://127.0.0.1:{port}"
    expected = scenarios.undisturbed(scenarios.text(mesh={"dp": 2}), STEPS)
    with programs(tmp_path) as start:
        at = ("--host", "127.0.0.1", "--port", port, "--protocol", "tls", "--no-dashboard", "--no-show")
        scheduler = start("scheduler", "-m", "distributed.cli.dask_scheduler", *at, env=env)
        wait_until(lambda: "Scheduler at" in scheduler.output, 60, "the scheduler")
        for name in ("msd-control", "msd-loader-0"):
            options = ("--name", name, "--host", "127.0.0.1", "--nthreads", 1, "--no-nanny", "--memory-limit", 0)
            start(name, "-m", "distributed.cli.dask_worker", address, *options, env=env)
        with msd.start(config(certificates("run"), runtime={"scheduler": address})) as engine:
            assert engine.scheduler_address == address
            scenarios.same_bytes(expected, engine)


@pytest.mark.faults
def test_a_killed_constructor_is_made_anew_and_ranks_find_it(certificates, monkeypatch):
    monkeypatch.setattr("msd.runtime.dask.posts.socket_path", lambda *where: None)
    expected = scenarios.undisturbed(scenarios.text(mesh={"dp": 2}), 2 * STEPS)
    found: dict[tuple[int, int], str] = {}
    with msd.start(config(certificates("run"), runtime={"silence_s": 1.5})) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        for step in range(2 * STEPS):
            if step == STEPS // 2:
                os.kill(engine._cluster._workers["msd-control"].pid, signal.SIGKILL)
            for client in clients:
                batch = next(client)
                found[batch.step, batch.rank] = scenarios.digest(batch)
        wait_until(_all_are_made_good(engine, 2), 60, "planner and constructor to be replaced")
        assert str(clients[0]._transport._channel.address).startswith("tls://")
    assert found == expected


def _all_are_made_good(engine: DaskEngine, count: int) -> Callable[[], bool]:
    return lambda: sum(one["took_s"] is not None for one in engine.stats()["recoveries"]) >= count


def test_files_are_written_with_certificates_too(certificates, tmp_path):
    from msd.runtime.dask.batch.driver import Asked, run_batch

    asked = Asked(out=str(tmp_path / "out"), steps=2, workers=1)
    manifest = run_batch(config(certificates("run")), asked, lambda at: None)
    assert manifest["totals"]


@pytest.mark.parametrize("kind", ["expired", "missing"])
def test_certificates_that_cannot_be_used_end_the_start_at_once_in_one_line(certificates, kind, tmp_path):
    security = dict(certificates("expired" if kind == "expired" else "run"))
    if kind == "missing":
        security["key"] = str(tmp_path / "none.key")
    with pytest.raises(ConfigError, match="has expired" if kind == "expired" else "none.key cannot be read") as raised:
        msd.start(config(security))
    assert "\n" not in str(raised.value)

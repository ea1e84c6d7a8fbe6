"""Where a run's processes come from: a cluster of our own, or a scheduler that is there already."""

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import dask
from distributed import Client, LocalCluster
from distributed.core import rpc
from distributed.security import Security
from distributed.utils import silence_logging_cmgr

from msd.config.security import SecurityConfig
from msd.coordinator.staff import Worker, in_order, split
from msd.errors import ConfigError, DeadlineError, EngineError, how_ended
from msd.runtime.dask.leftovers import add_member, clean, own, watch
from msd.runtime.dask.preload import FOLDER_VARIABLE
from msd.runtime.dask.securing import check_security, dask_security, secured_environment
from msd.runtime.dask.settings import as_set, worker_environment

START_S = 60.0
CONNECT_S = 15.0
RETRY_S = 5.0
CLOSE_S = 5.0
REAPED_S = 1.0


class Quiet:
    """Keeps Dask's news out of this process's log as long as any run is here: what concerns it, the run says."""

    _num_wanted = 0
    _silence = contextlib.ExitStack()

    def __init__(self) -> None:
        if not Quiet._num_wanted:
            for root in ("distributed", "bokeh"):
                Quiet._silence.enter_context(silence_logging_cmgr(logging.ERROR, root))
                # What it logs goes to the handlers of the user's root logger, too.
                self._limit(root, logging.ERROR)
            # A client logs the end of its scheduler as an error, with a traceback.
            self._limit("distributed.client", logging.CRITICAL)
            # And a scheduler that scattered data is lost with the last worker; whoever needs it sends it again.
            self._limit("distributed.scheduler", logging.CRITICAL)
        Quiet._num_wanted += 1
        self._is_ended = False

    def _limit(self, name: str, level: int) -> None:
        log = logging.getLogger(name)
        Quiet._silence.callback(log.setLevel, log.level)
        log.setLevel(level)

    def end(self) -> None:
        """Let the news be heard again if nobody else minds. Ending twice is fine."""
        if self._is_ended:
            return
        self._is_ended = True
        Quiet._num_wanted -= 1
        if not Quiet._num_wanted:
            Quiet._silence.close()


class EmbeddedCluster:
    """A scheduler in this process and workers in subprocesses: an unguarded script, a notebook and pytest may start it.

    Workers end by themselves within seconds when the scheduler does, however it ends; those that cannot, since they
    are frozen or something in them never lets go of the interpreter, are ended by a process that waits for that.
    """

    def __init__(self, names: list[str], *, security: SecurityConfig | None = None) -> None:
        """Start a scheduler and one worker for each name.

        Args:
            names: Of the workers.
            security: Certificates that its processes show one another; None speaks no TLS.

        Raises:
            ConfigError: If the certificates cannot be used.
        """
        check_security(security)
        self._security = security
        self._ending = contextlib.ExitStack()
        """What was begun, to be ended in reverse: each of it also when another part fails or is interrupted."""
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._leaving: list[subprocess.Popen[bytes]] = []
        """Those that are ended for good."""
        self._reported: set[int] = set()
        self._starting = threading.Lock()
        self._is_closing = False
        clean()
        try:
            self._ending.callback(Quiet().end)
            self._logs = tempfile.TemporaryDirectory(prefix="msd-")
            self._ending.callback(self._logs.cleanup)
            own(Path(self._logs.name))
            self._watching = watch(Path(self._logs.name))
            self._ending.callback(self._watch_no_more)
            with dask.config.set({**as_set(), "temporary-directory": self._logs.name}):
                self._cluster = LocalCluster(
                    n_workers=0,
                    processes=True,
                    host="127.0.0.1",
                    protocol="tcp://" if security is None else "tls://",
                    security=dask_security(security),
                    dashboard_address="127.0.0.1:0",
                    silence_logs=False,
                )
            self._ending.callback(self._cluster.close, timeout=CLOSE_S)
            self.address: str = self._cluster.scheduler_address
            self.dashboard_link: str | None = self._cluster.dashboard_link
            self._ending.callback(self._kill)
            for name in names:
                self._start(name)
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> tuple[str, ...]:
        """Of the workers that are to be there."""
        return tuple(self._workers)

    @property
    def folder(self) -> str:
        """Removed with the cluster, also if this process is killed."""
        return self._logs.name

    def _start(self, name: str) -> None:
        command = [
            sys.executable, "-m", "distributed.cli.dask_worker", self.address, "--name", name, "--nthreads", "1",
            "--no-nanny", "--no-dashboard", "--host", "127.0.0.1", "--memory-limit", "0", "--death-timeout", "20",
            # Without a dashboard it serves its metrics all the same, and to everybody unless told otherwise.
            "--dashboard-address", "127.0.0.1:0",
            "--local-directory", self._logs.name, "--preload", "msd.runtime.dask.preload",
        ]  # fmt: skip
        # Appended to, so that the worker can shorten it.
        with self._log(name).open("ab") as log:
            self._workers[name] = self._popen(command, log)
        add_member(Path(self._logs.name), self._workers[name].pid)

    def _popen(self, command: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={
                **worker_environment(),
                **secured_environment(self._security),
                FOLDER_VARIABLE: f"{os.getpid()}:{self._logs.name}",
            },
            # Ctrl-C is for the process that started the run; it then ends the workers in order.
            start_new_session=True,
        )

    def wait(self, deadline_s: float = START_S) -> None:
        """Wait until every worker is there; a run waits for no more of them than it needs.

        Raises:
            DeadlineError: If one did not come in time.
            EngineError: If one has ended.
        """
        deadline = time.monotonic() + deadline_s
        while (num_here := len(self._cluster.scheduler.workers)) < len(self._workers):
            self.check()
            if time.monotonic() > deadline:
                raise DeadlineError(f"{num_here} of {len(self._workers)} workers came within {deadline_s:g} s")
            time.sleep(0.02)

    def check(self) -> None:
        """Raise `EngineError` if a worker has ended, with the last lines it wrote."""
        for name, worker in self._workers.items():
            if worker.poll() is not None:
                lines = self._log(name).read_text(errors="replace").strip().splitlines()
                raise EngineError(f"worker {name} ended with status {worker.returncode}: {' | '.join(lines[-3:])}")

    def how_ended(self, name: str) -> str:
        """Return how a worker ended that is gone; it may be heard of a moment before its process is."""
        worker = self._workers.get(name)
        if worker is None:
            return "it was not needed any more"
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(REAPED_S)
        status = worker.poll()
        if status is None:
            return "it left its scheduler"
        self._reported.add(worker.pid)
        return how_ended(status)

    def newly_ended(self) -> dict[str, str]:
        """Return how workers ended that were not asked for yet, by name; each once."""
        found = {}
        for name, worker in list(self._workers.items()):
            status = worker.poll()
            if status is not None and worker.pid not in self._reported:
                self._reported.add(worker.pid)
                found[name] = how_ended(status)
        return found

    def restart(self, name: str) -> None:
        """Start a worker, in the place of one that is gone or does not come to its end, or a new one."""
        before = self._workers.get(name)
        if before is not None:
            before.kill()
            before.wait()
        with self._starting:
            if not self._is_closing:
                self._start(name)

    def end(self, name: str) -> None:
        """End a worker for good, in order if it does so within some seconds."""
        with self._starting:
            if self._is_closing or name not in self._workers:
                return
            worker = self._workers.pop(name)
            self._leaving.append(worker)
        _terminate([worker])
        _kill([worker])
        self._leaving.remove(worker)
        self._log(name).unlink(missing_ok=True)

    def kill(self, name: str) -> None:
        """End a worker at once."""
        self._workers[name].kill()

    def close(self) -> None:
        """End workers and scheduler. Closing twice is fine."""
        with self._starting:
            self._is_closing = True
        with self._ending:
            self._terminate()

    def _terminate(self) -> None:
        _terminate(list(self._workers.values()))

    def _kill(self) -> None:
        _kill([*self._workers.values(), *self._leaving])
        self._workers.clear()

    def _watch_no_more(self) -> None:
        self._watching.kill()
        self._watching.wait()

    def _log(self, name: str) -> Path:
        return Path(self._logs.name) / f"{name}.log"

    def __enter__(self) -> "EmbeddedCluster":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _terminate(workers: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Ask processes to end, and wait for it a while."""
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()
    deadline = time.monotonic() + CLOSE_S
    for worker in workers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.wait(max(0.0, deadline - time.monotonic()))


def _kill(workers: "Sequence[subprocess.Popen[bytes]]") -> None:
    for worker in workers:
        if worker.poll() is None:
            worker.kill()
        worker.wait()


async def connect(address: str, *, deadline_s: float, security: Security | None = None) -> Client:
    """Return a Dask client of a scheduler, for the loop that this runs on.

    Args:
        address: Of the scheduler.
        deadline_s: Seconds in which it answers.
        security: Certificates; None takes those of Dask's own configuration, if it names some.

    Raises:
        ConfigError: If nothing answers there.
    """
    timeout_s = min(CONNECT_S, deadline_s)
    # A client waits for ever for something that listens there and is no scheduler.
    security = security or Security()
    reason = await _why_not(address, timeout_s, security)
    if reason is not None:
        raise ConfigError(
            f"no Dask scheduler answers at {address!r} ({reason}); start one with `dask scheduler`, or leave "
            "runtime.scheduler out to have a cluster of the run's own"
        )
    with dask.config.set(as_set()):
        client = await Client(
            address,
            direct_to_workers=True,
            set_as_default=False,
            timeout=timeout_s,
            name="msd",
            asynchronous=True,
            security=security,
        )
    # A worker that just died refuses connections, and so long would a call to it try again.
    client.rpc.timeout = RETRY_S
    return client


async def _why_not(address: str, timeout_s: float, security: Security) -> str | None:
    """Return why no scheduler can be reached at an address, None if one can."""
    if address.startswith("tls://") and not (security.tls_ca_file and security.tls_client_cert):
        return "it is served with TLS alone; name certificates in the security section of the configuration"
    try:
        connection = security.get_connection_args("client")
        async with rpc(address, timeout=timeout_s, connection_args=connection) as asked:
            kind: str = (await asyncio.wait_for(asked.identity(), timeout_s + 1.0))["type"]
    except TimeoutError:
        return "something listens there that does not answer as Dask does"
    except Exception as error:
        return str(error).partition("\n")[0] or type(error).__name__
    return None if kind == "Scheduler" else f"it is the address of a {kind.lower()}"


async def gathered(
    client: Client, *, at_least: int, loading: int = 0, deadline_s: float, cluster: EmbeddedCluster | None
) -> list[Worker]:
    """Return the workers of a cluster once there are enough of them.

    Args:
        client: Of its scheduler.
        at_least: Workers in all.
        loading: Workers among them that may load.
        deadline_s: Seconds to wait for them.
        cluster: If it is our own.

    Raises:
        DeadlineError: Naming how many came.
        ConfigError: The same, for a cluster that somebody else started.
        EngineError: If a worker of our own ended before it was there.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        found = await workers_of(client)
        may_load = len(split(found)[2]) if found else 0
        if len(found) >= at_least and may_load >= loading:
            return found
        if cluster is not None:
            cluster.check()
        if time.monotonic() > deadline:
            wanted = f"the run needs {at_least} Dask workers, {loading} of them to load"
            came = f"{len(found)} came within {deadline_s:g} s, {may_load} of them to load"
            if cluster is not None:
                raise DeadlineError(
                    f"{wanted}; {came}; is this host overloaded, or runtime.deadline_s too short to start in?"
                )
            raise ConfigError(
                f"{wanted}; {came}; start more with `dask worker` (those named msd-control and msd-planner do not "
                "load), or lower runtime.workers and shadows"
            )
        await asyncio.sleep(0.02)


async def workers_of(client: Client) -> list[Worker]:
    """Return the workers that a scheduler knows, by name."""
    workers: dict[str, Any] = (await client.scheduler.identity(n_workers=-1))["workers"]
    return in_order(Worker(str(info["name"]), address, str(info["host"])) for address, info in workers.items())

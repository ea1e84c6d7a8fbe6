"""The run on Dask: start processes, place actors, hand out clients, end everything."""

import asyncio
import atexit
import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from distributed import Client

import msd
from msd.build import build_chains, build_orders, identity, index_all
from msd.client import RankClient
from msd.client.remote import SocketTransport
from msd.config import PipelineConfig
from msd.coordinator.placement import deal
from msd.core.checks import whole_number
from msd.core.mesh import Mesh
from msd.errors import ClosedError, ConfigError, DeadlineError, EngineError, MsdError, told
from msd.loader.poison.notes import folder_of
from msd.runtime.base import check_supported, shown, step_number
from msd.runtime.dask.calls import ActorGone, Ref, call
from msd.runtime.dask.cluster import CLOSE_S, START_S, EmbeddedCluster, Member, Quiet, connect, members, split
from msd.runtime.dask.constructor import ConstructorActor
from msd.runtime.dask.hosts import LoaderHost, SourceLoaderActor, added
from msd.runtime.dask.planner import PlannerActor
from msd.runtime.dask.plugin import RunPlugin
from msd.runtime.dask.travel import check_travels
from msd.runtime.dask.versions import check_versions
from msd.sources.index import IndexProgress

HOST_BYTES = 256 << 20
"""Payload that the loaders of one host hold together."""


class DaskEngine:
    """A run on a Dask cluster; see `msd.runtime.base.Engine`."""

    def __init__(
        self,
        config: PipelineConfig,
        *,
        listen: tuple[str | None, int] = (None, 0),
        token: str | None = None,
        on_index_progress: Callable[[IndexProgress], None] | None = None,
    ) -> None:
        """Index the sources, start processes and actors, and begin to plan.

        Args:
            config: The run.
            listen: Where constructors listen for ranks, besides the socket on their own host: address and first port.
                None is the address at which the constructor's Dask worker listens, which is loopback on a cluster of
                the run's own; port 0 takes any.
            token: What ranks must present; made up if None. It is part of `address`.
            on_index_progress: Called as shards are indexed.

        Raises:
            ConfigError: If the configuration cannot be built, or the cluster is not there or does not fit.
            SourceError: If a source cannot be read.
        """
        check_supported(config)
        check_travels(config)
        self.config = config
        self._run = secrets.token_hex(6)
        self._token = token or secrets.token_hex(16)
        self._listen = listen
        self._cluster: EmbeddedCluster | None = None
        self._client: Client | None = None
        self._futures: list[Any] = []
        self._refs: list[Ref] = []
        self._clients: dict[int, RankClient] = {}
        self._is_closed = False
        # What was started, to be ended in reverse: each part also when one before it fails or is interrupted.
        self._ending = contextlib.ExitStack()
        chains = build_chains(config)
        self.orders = build_orders(config, index_all(config, on_progress=on_index_progress))
        self._identity = identity(config, self.orders, chains)
        _running.add(self)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """What a rank in another process passes to `msd.connect`."""
        return self._address

    @property
    def dashboard_link(self) -> str | None:
        """Address of the Dask dashboard; None if the scheduler has none."""
        return self._dashboard_link

    @property
    def scheduler_address(self) -> str:
        """Address of the Dask scheduler."""
        assert self._client is not None
        return str(self._client.scheduler.address)

    @property
    def mesh(self) -> Mesh:
        """The trainer mesh."""
        return self.config.place

    def client(self, rank: int = 0) -> RankClient:
        """Return a client for one rank, in this process; ranks elsewhere use `msd.connect(engine.address, rank)`."""
        self._check_open()
        rank = whole_number(rank, name="rank")
        older = self._clients.pop(rank, None)
        if older is not None:
            older.close()
        client = RankClient(SocketTransport(self.address, deadline_s=self.config.runtime.deadline_s), rank=rank)
        self._clients[rank] = client
        return client

    def stats(self) -> dict[str, Any]:
        """Return what the run has done so far."""
        self._check_open()
        planned = self._ask(self._planner, "stats")
        hosts = self._ask_all([self._hosts[name] for name in planned.pop("alive")], "stats")
        counts: dict[str, Any] = {}
        for host in hosts:
            counts = added(counts, host["sources"])
        return {
            "runtime": "dask",
            "mesh": self.mesh.as_dict(),
            **planned,
            "sources": {name: {**of_source, **counts.get(name, {})} for name, of_source in planned["sources"].items()},
            "hosts": [{"host": host["host"], "pid": host["pid"]} for host in hosts],
            "constructors": self._ask_all(list(self._constructors.values()), "stats"),
        }

    def which(self, step: int) -> list[dict[str, Any]]:
        """Return one entry per document of a step: source, file, row, and where it was placed."""
        self._check_open()
        entries: list[dict[str, Any]] = self._ask(self._planner, "which", step_number(step))
        return entries

    def check(self) -> None:
        """Raise what ended the run, if something did."""
        self._check_open()
        try:
            self._ask(self._planner, "check")
        except EngineError as error:
            raise self._with_cause(error) from None

    def close(self) -> None:
        """End the run and every process it started; done at exit if it was not before. Closing twice is fine."""
        self._is_closed = True
        _running.discard(self)
        self._ending.close()

    def __repr__(self) -> str:
        return shown(self, "dask", is_closed=self._is_closed)

    def __enter__(self) -> "DaskEngine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        runtime = self.config.runtime
        num_hosts = runtime.workers
        own = ["msd-control", *(["msd-planner"] if not runtime.compact else [])]
        loading = [f"msd-loader-{number}" for number in range(num_hosts)]
        self._ending.callback(Quiet().end)
        self._ending.callback(_remove_sockets, self._run)
        if runtime.scheduler is None:
            self._cluster = EmbeddedCluster([*own, *loading])
            self._ending.callback(self._cluster.close)
        address = runtime.scheduler or (self._cluster.address if self._cluster else "")
        limit_s = min(START_S, runtime.deadline_s)
        client = self._client = connect(address, deadline_s=limit_s)
        self._ending.callback(client.close, timeout=CLOSE_S)
        # The client asks the scheduler each time, which may be gone by then.
        self._dashboard_link: str | None = client.dashboard_link
        needed = num_hosts + (len(own) if self._cluster is not None else 1)
        found = members(client, at_least=needed, loading=num_hosts, deadline_s=limit_s, cluster=self._cluster)
        check_versions(client, [member.address for member in found])
        client.register_plugin(RunPlugin())
        self._ending.callback(_release, self._futures)
        self._ending.callback(_close_actors, client, self._refs)
        self._ending.callback(_close_clients, self._clients)
        control, planner, loading_members = split(found)
        self._place(control, planner, loading_members[:num_hosts])

    def _place(self, control: list[Member], planner: Member, loading: list[Member]) -> None:
        hosts = {member.name: member for member in loading}
        partitions = {name: self._num_loaders(name, len(hosts)) for name in self.config.sources}
        placement = deal(partitions, sorted(hosts))
        sharing = Counter(member.host for member in loading)
        config, orders = self._scatter([self.config, self.orders])
        self._hosts = {
            name: self._actor(
                LoaderHost,
                f"loader-host {name}",
                member,
                self._run,
                name,
                config,
                orders,
                sharing[member.host],
                HOST_BYTES,
            )
            for name, member in hosts.items()
        }
        self._finish_actors()
        self._loaders = {
            (source, partition): self._actor(
                SourceLoaderActor, f"loader {source}/{partition}", hosts[host], self._run, source, partition
            )
            for source, names in placement.hosts.items()
            for partition, host in enumerate(names)
        }
        served = self._served(len(control))
        # Runs of ranks go to constructing workers in the order of their names: where workers are numbered as the
        # trainer's nodes are, each node's ranks find their constructor on their own host.
        at = {name: control[number * len(control) // len(served)] for number, name in enumerate(served)}
        self._constructors = {
            name: self._actor(
                ConstructorActor, name, at[name], self._run, name, config, ranks, self._identity,
                self._link(at[name], number),
            )
            for number, (name, ranks) in enumerate(served.items())
        }  # fmt: skip
        self._planner = self._actor(
            PlannerActor, "planner", planner, config, orders, self._identity, placement, served, 1
        )
        self._finish_actors()
        directory = {
            name: self._ask(ref, "begin", self._planner, 1, self._hosts) for name, ref in self._constructors.items()
        }
        for ref in self._constructors.values():
            self._ask(ref, "publish", directory, served)
        self._address = self._registry(next(iter(directory.values())))
        self._ask(self._planner, "begin", self._hosts, self._constructors)

    def _served(self, num_processes: int) -> dict[str, tuple[int, ...]]:
        """Return the ranks of each constructor: whole buckets, dealt in runs."""
        chosen = self.config.constructors
        mesh = self.mesh
        buckets: dict[int, list[int]] = {}
        for rank in range(mesh.world_size):
            buckets.setdefault(mesh.coordinate(rank)["dp"], []).append(rank)
        count = min(len(buckets), num_processes if chosen == "auto" else chosen)
        served: dict[str, tuple[int, ...]] = {}
        for number in range(count):
            mine = range(number * len(buckets) // count, (number + 1) * len(buckets) // count)
            served[f"constructor-{number}"] = tuple(sorted(rank for bucket in mine for rank in buckets[bucket]))
        return served

    def _num_loaders(self, source: str, num_hosts: int) -> int:
        chosen = self.config.loaders
        if isinstance(chosen, dict):
            return chosen.get(source, 1)
        if chosen == "auto":
            # A source with windows enough may be prepared by every host at once; a small one needs no more than one.
            return max(1, min(num_hosts, self.orders[source].windows_per_epoch))
        return chosen

    def _link(self, member: Member, number: int) -> dict[str, Any]:
        host, port = self._listen
        return {
            "token": self._token,
            "version": msd.__version__,
            "unix": _socket_path(f"msd-{self._run}-{number}.sock"),
            "host": member.host if host is None else host,
            "port": port + number if port else 0,
        }

    def _registry(self, place: dict[str, Any]) -> str:
        tcp = next(address for address in place["addresses"] if address.startswith("tcp://"))
        return f"msd://{tcp.removeprefix('tcp://')}?run={self._run}&token={self._token}"

    def _actor(self, kind: type, name: str, member: Member, *args: Any) -> Ref:
        assert self._client is not None
        key = f"msd-{self._run}-{name.replace(' ', '-')}-e1"
        future = self._client.submit(
            kind, *args, actor=True, key=key, workers=[member.address], allow_other_workers=False, pure=False
        )
        # The process that submits keeps the future: an actor that nobody's client holds is destroyed.
        self._futures.append(future)
        ref = Ref(key, member.address, name)
        if hasattr(kind, "close"):
            self._refs.append(ref)
        return ref

    def _scatter(self, values: Sequence[Any]) -> list[Any]:
        """Return futures of values that every worker has: once a process, however many actors take them."""
        assert self._client is not None
        futures: list[Any] = self._client.scatter(values, broadcast=True, hash=False)
        return futures

    def _finish_actors(self) -> None:
        """Wait until the actors are there; raise what their constructors raised."""
        limit_s = min(START_S, self.config.runtime.deadline_s)
        deadline = time.monotonic() + limit_s
        while late := [future.key for future in self._futures if future.status == "pending"]:
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"{len(late)} actors were not made within {limit_s:g} s, {late[0]} first; is a host overloaded, or "
                    "runtime.deadline_s too short to start in?"
                )
            if self._cluster is not None:
                self._cluster.check()
            time.sleep(0.005)
        for future in self._futures:
            if future.status == "error":
                raise _explained(future.key, future.exception())
            if future.status != "finished":
                raise EngineError(f"{future.key} could not be made: its worker is gone ({future.status})")

    def _ask(self, ref: Ref, method: str, *args: Any) -> Any:
        assert self._client is not None
        return self._client.sync(call, self._client, ref, method, *args, deadline_s=self.config.runtime.deadline_s)

    def _ask_all(self, refs: Sequence[Ref], method: str) -> list[Any]:
        """Return what actors answer, asked at once; one that is gone is left out."""
        client, deadline_s = self._client, self.config.runtime.deadline_s
        assert client is not None

        async def ask_all() -> list[Any]:
            asking = [call(client, ref, method, deadline_s=deadline_s) for ref in refs]
            return await asyncio.gather(*asking, return_exceptions=True)

        answers = [answer for answer in client.sync(ask_all) if not isinstance(answer, ActorGone)]
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def _with_cause(self, error: EngineError) -> EngineError:
        """Return what ended the run, with what is known only here: how processes ended, and whether Dask is there."""
        assert self._client is not None
        if self._cluster is None and self._client.status != "running":
            return EngineError(
                f"the Dask scheduler at {self.config.runtime.scheduler} is gone, and with it the run; start it and its "
                "workers again, then the run; ranks go on from the last saved state"
            )
        text = str(error)
        if isinstance(error, ActorGone):
            text = f"the run has lost its planner ({error}); start it again; ranks go on from the last saved state"
        ended = self._cluster.ended(text) if self._cluster is not None else {}
        if ended:
            text += f" (of its processes ended {', '.join(f'{name} with {how}' for name, how in ended.items())})"
        return EngineError(text)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the engine is closed; start another with msd.start(config)")


def _explained(key: str, error: Exception) -> Exception:
    """Return what to raise for an actor that could not be made."""
    if isinstance(error, MsdError):
        return error
    if isinstance(error, ModuleNotFoundError):
        return ConfigError(
            f"a Dask worker has no module {error.name!r}, which the configuration's functions need ({key}); put it on "
            "the PYTHONPATH of scheduler and workers, or install it there"
        )
    return EngineError(f"{key} could not be made: {told(error)}")


def _close_clients(clients: dict[int, RankClient]) -> None:
    for client in clients.values():
        client.close()


def _close_actors(client: Client, refs: Sequence[Ref]) -> None:
    """Have links and threads ended in order; what does not answer ends with its process."""

    async def close_all() -> None:
        # The last made first: constructors turn ranks away before the planner goes.
        there = (await client.scheduler.identity(n_workers=-1))["workers"]
        closing = [call(client, ref, "close", deadline_s=CLOSE_S) for ref in reversed(refs) if ref.address in there]
        await asyncio.gather(*closing, return_exceptions=True)

    with contextlib.suppress(MsdError, OSError, RuntimeError):
        client.sync(close_all)


def _release(futures: Sequence[Any]) -> None:
    for future in futures:
        future.release()


def _remove_sockets(run: str) -> None:
    """Remove what a process that was killed has left."""
    for path in Path(tempfile.gettempdir()).glob(f"msd-{run}-*.sock"):
        path.unlink(missing_ok=True)
    shutil.rmtree(folder_of(run), ignore_errors=True)


def _close_running() -> None:
    for engine in list(_running):
        engine.close()


_running: set[DaskEngine] = set()
# After Dask's own, which were registered when it was imported, and so before them at exit.
atexit.register(_close_running)


def _socket_path(name: str) -> str | None:
    """Return where a Unix socket may lie, or None where the system's limit of 107 bytes leaves no room."""
    path = os.path.join(tempfile.gettempdir(), name)
    return path if len(os.fsencode(path)) <= 107 else None

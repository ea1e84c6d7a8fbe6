"""The run on Dask: start processes, have them supervised, hand out clients, end everything."""

import atexit
import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from msd.build import build_chains, build_orders, index_all
from msd.client import RankClient
from msd.client.link.certificates import Certificates
from msd.client.remote import SocketTransport
from msd.config import PipelineConfig
from msd.config.identity import identity
from msd.coordinator.staff import OWN_LOADER, PLANNER
from msd.core.checks import whole_number
from msd.core.journal import Edit, edits_from_state, edits_to_state
from msd.core.mesh import Mesh
from msd.core.state import StateDict
from msd.errors import ClosedError, ConfigError, EngineError
from msd.loader.poison.notes import folder_of
from msd.profiling.demands import Profiled, profiled
from msd.runtime.base import check_supported, shown, step_number
from msd.runtime.checkpointing import ResumePoint, StoreHold, resume_point
from msd.runtime.dask.cluster import EmbeddedCluster, Quiet
from msd.runtime.dask.leftovers import clean, own
from msd.runtime.dask.loop import OwnLoop
from msd.runtime.dask.making import Run
from msd.runtime.dask.registry import Registry, own_host
from msd.runtime.dask.scalable import ScalableCluster
from msd.runtime.dask.securing import check_security, dask_security
from msd.runtime.dask.supervisor import Supervisor
from msd.runtime.dask.travel import check_travels
from msd.runtime.edits import TakesEdits
from msd.runtime.origins import with_origins
from msd.runtime.record import of_rank
from msd.runtime.state import progress_of
from msd.sources.index import IndexProgress

LOOPBACK = "127.0.0.1"


class DaskEngine(TakesEdits):
    """A run on a Dask cluster; see `msd.runtime.base.Engine`."""

    def __init__(
        self,
        config: PipelineConfig,
        *,
        listen: tuple[str | None, int] = (None, 0),
        token: str | None = None,
        cluster: Any = None,
        on_index_progress: Callable[[IndexProgress], None] | None = None,
    ) -> None:
        """Index the sources, start processes and actors, and begin to plan.

        Args:
            config: The run.
            listen: Where ranks ask first: address and port of this process. None is loopback on a cluster of the run's
                own, else the address by which this machine reaches the scheduler; port 0 takes any. On a cluster of
                the run's own constructors listen at the same address, else at those of their Dask workers; at ports of
                their own.
            cluster: A Dask cluster object whose scheduler is used, and which is scaled if `scaling` asks for it; None
                is `runtime.scheduler`, or a cluster of the run's own.
            token: What ranks must present; made up if None. It is part of `address`.
            on_index_progress: Called as shards are indexed.

        Raises:
            ConfigError: If the configuration cannot be built, or the cluster is not there or does not fit.
            SourceError: If a source cannot be read.
        """
        self._scalable = None if cluster is None else ScalableCluster(cluster)
        if self._scalable is not None:
            config = config.replace(runtime={"scheduler": self._scalable.address})
        check_supported(config)
        check_travels(config)
        check_security(config.security)
        self._config = config
        self._run = secrets.token_hex(6)
        self._token = token or secrets.token_hex(16)
        self._cluster: EmbeddedCluster | None = None
        self._clients: dict[int, RankClient] = {}
        self._is_closed = False
        self._pid = os.getpid()
        self._supervisor: Supervisor | None = None
        self._lost_store: EngineError | None = None
        self._hold: StoreHold | None = None
        # What was started, to be ended in reverse: each part also when one before it fails or is interrupted.
        self._ending = contextlib.ExitStack()
        chains = build_chains(config)
        self.orders = build_orders(config, index_all(config, on_progress=on_index_progress), consumes=True)
        self._identity = identity(config, self.orders, chains)
        is_sized = config.loaders == "auto" or config.scaling is not None
        self._profiled = profiled(config, self.orders, chains) if is_sized else Profiled()
        _running.add(self)
        try:
            self._start(listen)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """What a rank in another process passes to `msd.connect`: the same as long as the engine lives."""
        return self._registry.address

    @property
    def certificates(self) -> Certificates | None:
        """What this process shows to those who serve ranks; None where nothing is encrypted."""
        return None if self._config.security is None else self._config.security.of("client")

    @property
    def dashboard_link(self) -> str | None:
        """Address of the Dask dashboard; None if the scheduler has none."""
        return self._dashboard_link

    @property
    def scheduler_address(self) -> str:
        """Address of the Dask scheduler."""
        return self._scheduler

    @property
    def config(self) -> PipelineConfig:
        """The run's configuration, on the mesh that it is on now."""
        return self._config if self._supervisor is None else self._supervisor.config

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
        transport = SocketTransport(
            self.address, deadline_s=self.config.runtime.deadline_s, certificates=self.certificates
        )
        client = RankClient(transport, rank=rank)
        self._clients[rank] = client
        return client

    def stats(self) -> dict[str, Any]:
        """Return what the run has done so far."""
        self._check_open()
        return self._loop.run(self._supervised.stats())

    def save(self) -> str:
        """Save the position that all ranks have reached now, and return the name of the snapshot.

        Raises:
            ConfigError: If no `checkpoint` is configured.
            EngineError: If it cannot be written.
        """
        self._check_open()
        self._checkpoint("save")
        name: str = self._ask("save")
        return name

    def restore(self, state: StateDict | str, *, force: bool = False) -> None:
        """Move the run to a saved position: a new generation, which every rank follows with its next step.

        Args:
            state: From `client.state_dict()`, or the name of a snapshot in the run's checkpoint.
            force: Take it also where a setting differs that may be forced.

        Raises:
            StateError: If it does not belong to this run.
            ConfigError: If there is no such snapshot.
        """
        self._check_open()
        if isinstance(state, str):
            state = self._checkpoint("restore").store.find(name=state).state or {}
        self._ask("restore", progress_of(state, self._identity, force=force))

    def rewind(self, step: int | None = None, *, mesh: Mesh | Mapping[str, int] | None = None) -> int:
        """Go on at a step boundary, on another mesh if one is given, and return that step.

        Planner and constructors are replaced in order; loader hosts stay with all that they hold, which is cut anew
        for the other mesh instead of being read and transformed again. Ranks of the mesh before are told to connect
        again, as ranks of the other one.

        Args:
            step: Of which the position is known: the generation's first, or one that ranks stand at. None is the one
                that the slowest connected rank asks for.
            mesh: Axis sizes such as `{"dp": 8}`; None keeps the mesh.

        Raises:
            ConfigError: If the mesh cannot be, or the position before the step is not known; names those that are.
        """
        self._check_open()
        config = self.config
        if mesh is not None:
            config = config.on_mesh(mesh.as_dict() if isinstance(mesh, Mesh) else dict(mesh))
        wanted = None if step is None else step_number(step)
        began: int = self._loop.run(self._supervised.rewind(config, wanted))
        _close_clients(self._clients)
        self._clients.clear()
        return began

    def which(self, step: int, rank: int | None = None) -> list[dict[str, Any]]:
        """Return one entry per document of a step: source, file, row, and where it is placed; see `Engine.which`."""
        self._check_open()
        if rank is not None:
            self.mesh.check_rank(rank)
        entries: list[dict[str, Any]] = self._ask("which", step_number(step))
        return with_origins(self.config, self.orders, of_rank(entries, rank))

    def check(self) -> None:
        """Raise what ended the run, if something did; what is being replaced has not ended it."""
        self._check_open()
        self._loop.run(self._supervised.check())

    def close(self) -> None:
        """End the run and every process it started; done at exit if it was not before. Closing twice is fine.

        A process that was forked from the engine's has nothing to end: the run is its parent's.
        """
        self._is_closed = True
        _running.discard(self)
        if os.getpid() == self._pid:
            self._ending.close()

    def __repr__(self) -> str:
        return shown(self, "dask", is_closed=self._is_closed)

    def __enter__(self) -> "DaskEngine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, listen: tuple[str | None, int]) -> None:
        runtime = self.config.runtime
        host, port = listen
        clean()
        if host is None:
            host = LOOPBACK if runtime.scheduler is None else own_host(runtime.scheduler)
        self._ending.callback(Quiet().end)
        self._registry = Registry(
            self.mesh,
            run=self._run,
            token=self._token,
            host=host,
            port=port,
            control=self.control,
            certificates=None if self.config.security is None else self.config.security.of("worker"),
        )
        self._ending.callback(self._registry.close)
        self._ending.callback(_remove_files, self._run)
        # Hosts of this machine write there: whoever starts next knows by this whether anybody reads it any more.
        own(folder_of(self._run))
        self._resumed = self._take_store()
        if runtime.scheduler is None:
            control = ["msd-control", *(["msd-planner"] if not runtime.compact else [])]
            loading = [f"{OWN_LOADER}{number}" for number in range(runtime.workers + self.config.shadows)]
            self._cluster = EmbeddedCluster([*control, *loading], security=self.config.security)
            self._ending.callback(self._cluster.close)
        self._scheduler = runtime.scheduler or (self._cluster.address if self._cluster else "")
        self._loop = OwnLoop("msd-supervisor")
        self._ending.callback(self._loop.close)
        self._supervisor = self._loop.run(self._make_supervisor(host))
        supervisor = self._supervisor
        self._ending.callback(lambda: self._loop.run(supervisor.close()))
        self._loop.run(supervisor.start())
        self._dashboard_link: str | None = supervisor.client.dashboard_link
        self._ending.callback(_close_clients, self._clients)
        if self._lost_store is not None:
            raise self._lost_store

    def _take_store(self) -> ResumePoint | None:
        """Hold the checkpoint, if one is configured, and return where the run goes on."""
        checkpoint = self.config.checkpoint
        if checkpoint is None:
            return None
        self._hold = StoreHold(checkpoint, run=self._run, on_lost=self._end_with)
        self._ending.callback(self._hold.close)
        return resume_point(self._hold.store, checkpoint, self._identity)

    def _end_with(self, error: EngineError) -> None:
        """Have the run end: another one writes where this one did."""
        self._lost_store = error
        if self._supervisor is not None:
            self._loop.run(self._supervisor.give_up(error))

    async def _make_supervisor(self, host: str) -> Supervisor:
        run = Run(self._run, self.config, self.orders, self._identity, self._token)
        run = replace(run, demands=self._profiled.demands, models=self._profiled.models)
        if self._hold is not None:
            point = self._resumed
            kept = {
                "run": self._run,
                "lineage": None if point is None else point.snapshot.lineage,
                "origin": "" if point is None else point.origin(self._hold.store.path),
            }
            run = replace(run, standing=None if point is None else point.standing(), kept=kept)
        listen = None if self._cluster is None else host
        return Supervisor(
            run,
            self._registry,
            address=self._scheduler,
            cluster=self._cluster,
            scalable=self._scalable,
            listen=listen,
            security=dask_security(self.config.security) or (self._scalable and self._scalable.security),
        )

    def _edits(self) -> list[dict[str, Any]]:
        self._check_open()
        edits: list[dict[str, Any]] = self._ask("edits")
        return edits

    def control(self, method: str, arguments: dict[str, Any]) -> Any:
        """Return what `msd.control` asks over the link: see `msd.runtime.control.RunControl`.

        Raises:
            EngineError: If this release knows no such method.
        """
        match method:
            case "edit":
                (edit,) = edits_from_state([arguments["entry"]])
                return self._edit(edit, move_late=bool(arguments["move_late"]))
            case "report":
                return self.report(arguments["losses"], who=arguments["who"])
            case "edits":
                return self._edits()
            case "stats":
                return self.stats()
            case "which":
                return self.which(arguments["step"], arguments.get("rank"))
            case "save":
                return self.save()
        raise EngineError(f"the run does not know {method!r}; use the same release of msd on both sides")

    def _edit(self, edit: Edit, *, move_late: bool) -> int:
        self._check_open()
        (entry,) = edits_to_state([edit])
        step: int = self._ask("edit", entry, move_late)
        return step

    def _checkpoint(self, what: str) -> StoreHold:
        if self._hold is None:
            raise ConfigError(f"{what}: this run keeps no checkpoint; set checkpoint.path in its configuration")
        return self._hold

    def _ask(self, method: str, *args: Any) -> Any:
        """Return what the planner answers."""
        return self._loop.run(self._supervised.ask(PLANNER, method, *args))

    @property
    def _supervised(self) -> Supervisor:
        assert self._supervisor is not None, "an engine that was not started is closed"
        return self._supervisor

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the engine is closed; start another with msd.start(config)")


def _close_clients(clients: dict[int, RankClient]) -> None:
    for client in clients.values():
        client.close()


def _remove_files(run: str) -> None:
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

"""A run on a simulated cluster: planner, loader hosts, constructors and ranks that messages connect, in one thread.

Nothing sleeps and no process starts: time jumps to what is due next. The coordinator, the loaders, the shelves and the
planner are the real ones, so a fault of the protocol shows here, and shows again with the same seed.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from msd.build import build_chains, build_constructor, build_coordinator, build_loader, build_orders, index_all
from msd.client import RankClient
from msd.config import PipelineConfig
from msd.config.identity import identity
from msd.constructor.shelf import Shelf
from msd.coordinator import Coordinator, Placement, Standing
from msd.coordinator.events import HostLost, HostSilent, TimePassed
from msd.core.batch import RankBatch
from msd.core.mesh import Mesh
from msd.core.plan import StepPlan
from msd.core.state import StateDict, canonical_json
from msd.errors import ClosedError, ConfigError, DeadlineError, EngineError
from msd.loader.loader import SourceLoader
from msd.runtime.base import step_number
from msd.runtime.origins import with_origins
from msd.runtime.record import of_rank, provenance
from msd.runtime.simulated.clock import Clock
from msd.runtime.simulated.cluster import Cluster
from msd.runtime.simulated.constructor import SimulatedConstructor
from msd.runtime.simulated.host import SimulatedHost
from msd.runtime.simulated.network import Network, Weather
from msd.runtime.simulated.planner import TICK_S, SimulatedPlanner
from msd.runtime.simulated.rank import SimulatedRank
from msd.runtime.simulated.supervisor import Care, Makes, Supervisor
from msd.runtime.state import progress_of, run_state


class SimulatedEngine:
    """A run on simulated hosts; see `msd.runtime.base.Engine`."""

    def __init__(
        self,
        config: PipelineConfig,
        *,
        seed: int,
        hosts: int = 2,
        shadows: int = 0,
        constructors: int = 1,
        loaders: int | Mapping[str, int] = 1,
        depth: int = 3,
        held_bytes: int = 256 << 20,
        buffer_bytes: int = 4 << 20,
        weather: Weather | None = None,
        care: Care | None = None,
    ) -> None:
        """Index the sources and start everybody.

        Args:
            config: The configuration.
            seed: Of delays, duplicates and losses; batches do not depend on it.
            hosts: Loader hosts.
            shadows: Loader hosts that stand by.
            constructors: They divide the ranks in order.
            loaders: Partitions of each source, or of the sources named.
            depth: Steps planned and assigned ahead of the slowest connected rank.
            held_bytes: Payload above which a constructor is given no step that is not asked for yet.
            buffer_bytes: Payload that one loader holds.
            weather: What befalls messages.
            care: How a supervisor replaces processes that are gone or silent; None leaves that to `lose`.

        Raises:
            ConfigError: If the configuration cannot be built.
            SourceError: If a source cannot be read.
        """
        self.config = config
        self.address = f"simulated://{seed}"
        chains = build_chains(config)
        self.orders = build_orders(config, index_all(config))
        self._identity = identity(config, self.orders, chains)
        self._clock = Clock()
        self.network = Network(self._clock, weather or Weather(), seed=seed)
        ranks = range(self.mesh.world_size)
        cuts = [len(ranks) * index // constructors for index in range(constructors + 1)]
        served = {
            f"constructor-{index}": tuple(ranks[cuts[index] : cuts[index + 1]])
            for index in range(constructors)
            if cuts[index] < cuts[index + 1]
        }
        self._cluster = Cluster(constructor_of={rank: name for name, mine in served.items() for rank in mine})
        self._closing: list[SimulatedHost] = []
        assembling = build_constructor(config)

        def new_loader(source: str) -> SourceLoader:
            return build_loader(config, self.orders[source], chains[source], buffer_bytes=buffer_bytes)

        def new_host(name: str, process: str) -> SimulatedHost:
            self._closing.append(SimulatedHost(name, process, new_loader))
            return self._closing[-1]

        def new_constructor(name: str, process: str) -> SimulatedConstructor:
            return SimulatedConstructor(name, process, Shelf(assembling, served[name]), self.network, self._cluster)

        def new_coordinator(placement: Placement, shadows: tuple[str, ...], standing: Standing | None) -> Coordinator:
            return build_coordinator(
                config,
                self.orders,
                placement=placement,
                constructors=served,
                depth=depth,
                held_bytes=held_bytes,
                shadows=shadows,
                standing=standing,
            )

        by_source = loaders if isinstance(loaders, Mapping) else dict.fromkeys(config.sources, loaders)
        self.supervisor = Supervisor(
            self._cluster,
            Makes(host=new_host, constructor=new_constructor, coordinator=new_coordinator),
            self.network,
            self._clock,
            partitions={name: by_source.get(name, 1) for name in config.sources},
            hosts=[f"host-{number}" for number in range(hosts)],
            shadows=[f"host-{hosts + number}" for number in range(shadows)],
            constructors=list(served),
            care=care,
        )
        self._has_care = care is not None
        self._ranks: dict[int, SimulatedRank] = {}
        self._num_clients = 0
        self._is_closed = False

    @property
    def coordinator(self) -> Coordinator:
        """That of the present planner."""
        return self._planner.coordinator

    @property
    def now_s(self) -> float:
        """Simulated time."""
        return self._clock.now

    @property
    def dashboard_link(self) -> str | None:
        """None: a simulated run has no page."""
        return None

    @property
    def mesh(self) -> Mesh:
        """The trainer mesh."""
        return self.config.place

    def client(self, rank: int = 0) -> RankClient:
        """Return a client for one rank; an older client of the same rank no longer speaks for it."""
        self._check_open()
        return RankClient(self, rank=rank)

    def lose(self, host: str) -> None:
        """Kill a loader host; the coordinator hears of it after a while."""
        self.kill(host)
        self.network.send("cluster", self._planner.process, lambda: self._planner.happened(HostLost(host)))

    def silent(self, host: str) -> None:
        """Have the coordinator hear that an answer of a host did not come."""
        planner = self._planner
        self.network.send("cluster", planner.process, lambda: planner.happened(HostSilent(host)))

    def kill(self, name: str) -> None:
        """Kill what holds a post: `planner`, `constructor-0`, `host-1`; nothing happens while nobody does."""
        process = self.supervisor.process_of(name)
        if process is not None:
            self.network.kill(process)

    def freeze(self, name: str, seconds: float | None = None) -> None:
        """Stop what holds a post, without closing a connection, for so long or until somebody else holds it."""
        process = self.supervisor.process_of(name)
        if process is not None:
            self.network.freeze(process)
            if seconds is not None:
                self._clock.after(seconds, lambda: self.network.thaw(process))

    def thaw(self, name: str) -> None:
        """Let what holds a post go on with what has come meanwhile."""
        process = self.supervisor.process_of(name)
        if process is not None:
            self.network.thaw(process)

    def start_again(self) -> None:
        """Lose everything but the ranks, and start a run that knows nothing of this one."""
        self.supervisor.start()

    def pass_time(self, messages: int) -> None:
        """Let so many messages arrive, or as many as there are."""
        for _ in range(messages):
            if not self._clock.advance():
                return

    def connect(self, rank: int) -> int:
        """Connect a rank: the transport side of `RankClient`."""
        self._check_open()
        self.mesh.check_rank(rank)
        self._num_clients += 1
        self._ranks[rank] = client = SimulatedRank(rank, self._num_clients, self.network, self._cluster)
        client.connect()
        self._wait_for(client, f"rank {rank} waits to be connected", self.coordinator.first_step)
        return client.client

    def say_losses(self, rank: int, session: int, losses: dict[str, float]) -> None:
        """Refuse: nobody trains here. Edits are given to the coordinator itself."""
        raise ConfigError("report: the simulated runtime takes none; report to a run that starts on an engine")

    def disconnect(self, rank: int, session: int) -> None:
        """Release a rank."""
        if self._ranks[rank].client == session:
            self._ranks[rank].leave()

    def take(self, rank: int, session: int) -> RankBatch | None:
        """Let time pass until the next batch of a rank is there; return it, or None when the run has ended.

        Raises:
            DeadlineError: If nothing is under way any more that could bring it, or it does not come until the
                deadline; names what is waited for.
        """
        client = self._client(rank, session)
        assert client.stands is not None
        client.take()
        step = client.stands.next_step
        answer = self._wait_for(client, f"rank {rank} waits for step {step}", step)
        assert answer is None or isinstance(answer, RankBatch)
        return answer

    def position(self, rank: int, session: int) -> str:
        """Return the run's position after the rank's last batch, as JSON."""
        stands = self._client(rank, session).stands
        assert stands is not None
        assert stands.progress is not None
        return canonical_json(run_state(stands.progress, self._identity))

    def stands(self, rank: int, session: int) -> tuple[int, int]:
        """Return the run's generation and the step that the rank gets next."""
        stands = self._client(rank, session).stands
        assert stands is not None
        return stands.generation, stands.next_step

    def load(self, rank: int, session: int, state: StateDict, *, force: bool = False) -> None:
        """Move the run to a saved position; see `RankClient.load_state_dict`."""
        client = self._client(rank, session)
        client.load(progress_of(state, self._identity, force=force))
        self._wait_for(client, f"rank {rank} loads a state", self.coordinator.first_step)

    def stats(self) -> dict[str, Any]:
        """Return what the run has done so far."""
        self._check_open()
        generations, record = self.coordinator.generations, self._planner.record
        return {
            "runtime": "simulated",
            "mesh": self.mesh.as_dict(),
            "generation": generations.generation,
            "steps_planned": record.num_steps,
            "next_step": self.coordinator.next_step,
            "watermark": generations.watermark,
            **record.as_dict(self.coordinator.closing_notes),
            "sources": {name: record.of_source(name) for name in self.config.sources},
            "loaders": [
                {"host": host.name, "source": source, "partition": number, **counts}
                for host in self._cluster.hosts.values()
                for source, number, counts in host.counts()
            ],
            "constructors": {
                name: {"steps": one.shelf.held_steps, "bytes": one.shelf.nbytes, "most_bytes": one.most_bytes}
                for name, one in self._cluster.constructors.items()
            },
            "seconds": self._clock.now,
            "messages": self.network.num_messages,
        }

    def which(self, step: int, rank: int | None = None) -> list[dict[str, Any]]:
        """Return one entry per document of a step: source, file, row, and where it is placed; see `Engine.which`."""
        self._check_open()
        step, began_s = step_number(step), self.now_s
        if rank is not None:
            self.mesh.check_rank(rank)
        try:
            while True:
                # Of whoever is the planner now: the one that was asked first may have been lost.
                self._planner.ask(step)
                plan = self.coordinator.answer(step)
                if plan is not None:
                    return with_origins(self.config, self.orders, of_rank(provenance(plan, self.orders), rank))
                self._let_time_pass(f"step {step} is asked about", step, began_s)
        finally:
            if self._cluster.planner is not None:
                self._cluster.planner.ask(None)

    def plan(self, step: int) -> StepPlan | None:
        """Return the plan of a step of this generation, or None after the end."""
        self._check_open()
        step = step_number(step)
        self._planner.recall(step)
        began_s = self.now_s
        while self.coordinator.plan(step) is None and self.coordinator.exists(step):
            self._let_time_pass(f"step {step} is asked for", step, began_s)
        return self.coordinator.plan(step)

    def close(self) -> None:
        """End the run: files are closed, clients are refused. Closing twice is fine."""
        self._is_closed = True
        for host in self._cluster.hosts.values():
            host.close()

    def __enter__(self) -> "SimulatedEngine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _planner(self) -> SimulatedPlanner:
        """The present planner; time passes until there is one."""
        began_s = self.now_s
        while (planner := self._cluster.planner) is None:
            if not self._clock.advance() or self.now_s - began_s > self.config.runtime.deadline_s:
                raise DeadlineError("no planner came in the place of the one that was lost")
        return planner

    def _client(self, rank: int, session: int) -> SimulatedRank:
        self._check_open()
        client = self._ranks[rank]
        if client.client != session:
            raise EngineError(
                f"rank {rank} was connected again; this client no longer speaks for it: use the newer one"
            )
        return client

    def _wait_for(self, client: SimulatedRank, who: str, step: int) -> RankBatch | None:
        """Let time pass until a rank is answered; return the batch, if that is the answer."""
        began_s = looked_s = self.now_s
        while client.answer is None:
            if self._has_care and self.now_s - looked_s >= TICK_S:
                # As a real one, a client looks after its connection also while nobody asks it for anything.
                for one in self._ranks.values():
                    one.look(self.now_s - looked_s)
                looked_s = self.now_s
            self._let_time_pass(who, step, began_s)
        (answer,) = client.answer
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, RankBatch) else None

    def _let_time_pass(self, who: str, step: int, began_s: float) -> None:
        """Do what is due next, for somebody who waits."""
        if self._cluster.planner is not None and self.coordinator.error is not None:
            raise self.coordinator.error
        is_over = self.now_s - began_s > self.config.runtime.deadline_s
        if is_over or not self._clock.advance():
            self._wait_out(self.config.runtime.deadline_s)
            waits_for = self.coordinator.waits_for or f"a constructor to assemble step {step}"
            raise DeadlineError(f"{who}, and nothing is under way any more: all wait for {waits_for}")

    def _wait_out(self, seconds: float) -> None:
        """Let time pass in which nothing happens.

        Raises:
            MsdError: What the coordinator makes of it.
        """
        for waited_s in (0.0, seconds):
            self._clock.now += waited_s
            self._planner.happened(TimePassed(self._clock.now))
        if self.coordinator.error is not None:
            raise self.coordinator.error

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the engine {self.address} is closed; start another")

"""A run on a simulated cluster: loader hosts, constructors and ranks that only messages connect, in one thread.

Nothing sleeps and no process starts: time jumps to what is due next. The coordinator, the loaders, the shelves and the
planner are the real ones, so a fault of the protocol shows here, and shows again with the same seed.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from msd.build import (
    build_chains,
    build_constructor,
    build_coordinator,
    build_loader,
    build_orders,
    identity,
    index_all,
)
from msd.client import RankClient
from msd.config import PipelineConfig
from msd.constructor.shelf import Shelf
from msd.coordinator import deal
from msd.coordinator.commands import Assign, Command, Drop, Examine, Fail, Finish, Planned, Release, Rewind
from msd.coordinator.events import Event, HostLost, HostSilent, RowsExamined, TimePassed
from msd.core.batch import RankBatch
from msd.core.mesh import Mesh
from msd.core.plan import StepPlan
from msd.core.state import StateDict, canonical_json
from msd.errors import ClosedError, ConfigError, DeadlineError
from msd.loader.loader import SourceLoader
from msd.runtime.base import step_number
from msd.runtime.record import RunRecord, provenance
from msd.runtime.simulated.clock import Clock
from msd.runtime.simulated.constructor import Fetch, SimulatedConstructor
from msd.runtime.simulated.host import SimulatedHost
from msd.runtime.simulated.network import Network, Weather
from msd.runtime.state import progress_of, run_state


@dataclass(slots=True)
class _Link:
    """A rank's side of the network."""

    session: int
    generation: int
    next_step: int
    progress: StateDict
    """The run's position after the last batch."""
    answer: tuple[RankBatch | None] | None = None
    """What came for the step that is asked for."""


class SimulatedEngine:
    """A run on simulated hosts; see `msd.runtime.base.Engine`."""

    def __init__(
        self,
        config: PipelineConfig,
        *,
        seed: int,
        hosts: int = 2,
        constructors: int = 1,
        loaders: int | Mapping[str, int] = 1,
        depth: int = 3,
        held_bytes: int = 256 << 20,
        buffer_bytes: int = 4 << 20,
        weather: Weather | None = None,
    ) -> None:
        """Index the sources and start everybody.

        Args:
            config: The configuration.
            seed: Of delays, duplicates and losses; batches do not depend on it.
            hosts: Loader hosts.
            constructors: They divide the ranks in order.
            loaders: Partitions of each source, or of the sources named.
            depth: Steps planned and assigned ahead of the slowest connected rank.
            held_bytes: Payload above which a constructor is given no step that is not asked for yet.
            buffer_bytes: Payload that one loader holds.
            weather: What befalls messages.

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

        def new_loader(source: str) -> SourceLoader:
            return build_loader(config, self.orders[source], chains[source], buffer_bytes=buffer_bytes)

        self._hosts = {name: SimulatedHost(name, new_loader) for name in map("host-{}".format, range(hosts))}
        ranks = range(self.mesh.world_size)
        cuts = [len(ranks) * index // constructors for index in range(constructors + 1)]
        served = {
            f"constructor-{index}": tuple(ranks[cuts[index] : cuts[index + 1]])
            for index in range(constructors)
            if cuts[index] < cuts[index + 1]
        }
        assembling = build_constructor(config)
        self._constructors = {
            name: SimulatedConstructor(
                name, Shelf(assembling, mine), self.network, host=self._fetch_of, report=self._happened
            )
            for name, mine in served.items()
        }
        self._constructor_of = {rank: name for name, mine in served.items() for rank in mine}
        by_source = loaders if isinstance(loaders, Mapping) else dict.fromkeys(config.sources, loaders)
        self.coordinator = build_coordinator(
            config,
            self.orders,
            placement=deal({name: by_source.get(name, 1) for name in config.sources}, list(self._hosts)),
            constructors=served,
            depth=depth,
            held_bytes=held_bytes,
        )
        self._links: dict[int, _Link] = {}
        self._record = RunRecord()
        self._recorded_generation = 0
        self._is_closed = False
        self._perform(self.coordinator.begin())

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
        self.network.kill(host)
        self.network.send("cluster", "planner", lambda: self._happened(HostLost(host)))

    def silent(self, host: str) -> None:
        """Have the coordinator hear that an answer of a host did not come."""
        self.network.send("cluster", "planner", lambda: self._happened(HostSilent(host)))

    def pass_time(self, messages: int) -> None:
        """Let so many messages arrive, or as many as there are."""
        for _ in range(messages):
            if not self._clock.advance():
                return

    def connect(self, rank: int) -> int:
        """Connect a rank: the transport side of `RankClient`."""
        self._check_open()
        session, commands = self.coordinator.connect(rank)
        self._links[rank] = self._link_at_start(session)
        self._perform(commands)
        return session

    def disconnect(self, rank: int, session: int) -> None:
        """Release a rank."""
        self._perform(self.coordinator.disconnect(rank, session))

    def take(self, rank: int, session: int) -> RankBatch | None:
        """Let time pass until the next batch of a rank is there; return it, or None when the run has ended.

        Raises:
            DeadlineError: If nothing is under way any more that could bring it; names what is waited for.
        """
        link = self._followed(rank, session)
        link.answer = None
        generation, step = link.generation, link.next_step
        constructor = self._constructors[self._constructor_of[rank]]
        answer = partial(self._answered, rank, session)
        self.network.send(
            f"rank-{rank}", constructor.name, lambda: constructor.take(rank, session, generation, step, answer)
        )
        while (answered := self._links[rank].answer) is None:
            self._let_time_pass(f"rank {rank} waits for step {step}", step)
        (batch,) = answered
        if batch is not None:
            link.next_step = step + 1
            link.progress = json.loads(batch.progress)
        return batch

    def position(self, rank: int, session: int) -> str:
        """Return the run's position after the rank's last batch, as JSON."""
        return canonical_json(run_state(self._followed(rank, session).progress, self._identity))

    def stands(self, rank: int, session: int) -> tuple[int, int]:
        """Return the run's generation and the step that the rank gets next."""
        link = self._followed(rank, session)
        return link.generation, link.next_step

    def load(self, rank: int, session: int, state: StateDict, *, force: bool = False) -> None:
        """Move the run to a saved position; see `RankClient.load_state_dict`."""
        self._check_open()
        commands = self.coordinator.load(rank, session, progress_of(state, self._identity, force=force))
        self._links[rank] = self._link_at_start(session)
        self._perform(commands)

    def stats(self) -> dict[str, Any]:
        """Return what the run has done so far."""
        self._check_open()
        generations = self.coordinator.generations
        return {
            "runtime": "simulated",
            "mesh": self.mesh.as_dict(),
            "generation": generations.generation,
            "steps_planned": self._record.num_steps,
            "next_step": self.coordinator.next_step,
            "watermark": generations.watermark,
            **self._record.as_dict(self.coordinator.closing_notes),
            "sources": {name: self._record.of_source(name) for name in self.config.sources},
            "loaders": [
                {"host": host.name, "source": source, "partition": number, **counts}
                for host in self._hosts.values()
                for source, number, counts in host.counts()
            ],
            "constructors": {
                name: {"steps": one.shelf.held_steps, "bytes": one.shelf.nbytes, "most_bytes": one.most_bytes}
                for name, one in self._constructors.items()
            },
            "seconds": self._clock.now,
            "messages": self.network.num_messages,
        }

    def which(self, step: int) -> list[dict[str, Any]]:
        """Return one entry per document of a step: source, file, row, and where it was placed."""
        plan = self.plan(step)
        if plan is None:
            raise ConfigError(f"step {step} does not exist: the run ends before step {self.coordinator.end}")
        return provenance(plan, self.orders)

    def plan(self, step: int) -> StepPlan | None:
        """Return the plan of a step of this generation, or None after the end."""
        self._check_open()
        step = step_number(step)
        self._perform(self.coordinator.recall(step))
        while self.coordinator.plan(step) is None and self.coordinator.exists(step):
            self._let_time_pass(f"step {step} is asked for", step)
        return self.coordinator.plan(step)

    def close(self) -> None:
        """End the run: files are closed, clients are refused. Closing twice is fine."""
        self._is_closed = True
        for host in self._hosts.values():
            host.close()

    def __enter__(self) -> "SimulatedEngine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _let_time_pass(self, who: str, step: int) -> None:
        """Do what is due next, for somebody who waits."""
        if self.coordinator.error is not None:
            raise self.coordinator.error
        if not self._clock.advance():
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
            self._happened(TimePassed(self._clock.now))
        if self.coordinator.error is not None:
            raise self.coordinator.error

    def _followed(self, rank: int, session: int) -> _Link:
        """Return a rank's link, moved to the present generation."""
        self._check_open()
        self.coordinator.generations.asked(rank, session)
        if self._links[rank].generation != self.coordinator.generations.generation:
            self._links[rank] = self._link_at_start(session)
        return self._links[rank]

    def _link_at_start(self, session: int) -> _Link:
        first = self.coordinator.first_step
        progress = self.coordinator.progress_before(first)
        assert progress is not None, "the position that a generation starts from is always kept"
        return _Link(session, self.coordinator.generations.generation, first, progress)

    def _answered(self, rank: int, session: int, generation: int, step: int, batch: RankBatch | None) -> None:
        link = self._links[rank]
        if (link.session, link.generation, link.next_step) == (session, generation, step) and link.answer is None:
            link.answer = (batch,)

    def _happened(self, event: Event) -> None:
        self._perform(self.coordinator.handle(event))

    def _perform(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Examine(host=host):
                    self.network.send(
                        "planner", host, partial(self._examine, command), about=f"source:{command.source}"
                    )
                case Release(source=source, before=before):
                    for name, one in self._hosts.items():
                        self.network.send("planner", name, partial(one.release, source, before))
                case Assign() | Drop() | Rewind() | Finish():
                    if command.generation != self._recorded_generation:
                        self._recorded_generation, self._record = command.generation, RunRecord()
                    constructor = self._constructors[command.constructor]
                    self.network.send("planner", constructor.name, partial(constructor.tell, command))
                case Planned(plan=plan):
                    self._record.add(plan)
                case Fail():
                    pass  # take() and plan() raise coordinator.error.

    def _examine(self, request: Examine) -> None:
        """Have a host examine rows and answer; runs there."""
        host = self._hosts[request.host]
        table = host.examine(request.source, request.partition, request.start, request.num_rows)
        self.network.send(host.name, "planner", lambda: self._happened(RowsExamined(host.name, (table,))))

    def _fetch_of(self, host: str) -> Fetch:
        return self._hosts[host].fetch

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the engine {self.address} is closed; start another")

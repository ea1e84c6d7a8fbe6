"""A planner, simulated: hosts a coordinator, carries its commands to hosts and constructors, brings back events."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from msd.coordinator import Coordinator
from msd.coordinator.commands import (
    Assign,
    Command,
    Drop,
    Examine,
    Finish,
    Journal,
    Planned,
    Refuse,
    Release,
    Replicate,
    Rewind,
    Warn,
)
from msd.coordinator.events import (
    ConstructorJoined,
    ConstructorLost,
    Event,
    HostJoined,
    HostLost,
    Journalled,
    RowsExamined,
    TimePassed,
)
from msd.coordinator.standing import RankStanding, Standing
from msd.core.state import StateDict
from msd.errors import MsdError
from msd.runtime.record import RunRecord
from msd.runtime.simulated.clock import Clock
from msd.runtime.simulated.cluster import Cluster
from msd.runtime.simulated.messages import Answer, Moved
from msd.runtime.simulated.network import Network

if TYPE_CHECKING:
    from msd.runtime.simulated.constructor import SimulatedConstructor
    from msd.runtime.simulated.host import SimulatedHost

TICK_S = 0.5
"""Between two beats of a heart."""
SETTLE_S = 5.0
"""A load waits this long at most until every constructor has heard of it."""


class SimulatedPlanner:
    """Decides nothing itself: the coordinator does."""

    def __init__(
        self,
        process: str,
        term: int,
        coordinator: Coordinator,
        network: Network,
        clock: Clock,
        cluster: Cluster,
        *,
        silence_s: float | None,
    ) -> None:
        """Get ready; `begin` starts.

        Args:
            process: Which process it is.
            term: Of this planner: hosts and constructors refuse lower ones.
            coordinator: Decides.
            network: Reaches the others.
            clock: Tells the time.
            cluster: Where the others are.
            silence_s: A host that says nothing for so long is taken for lost; None listens to nobody's heart.
        """
        self.process = process
        self.term = term
        self.coordinator = coordinator
        self.record = RunRecord()
        self.warnings: list[str] = []
        self._network = network
        self._clock = clock
        self._cluster = cluster
        self._silence_s = silence_s
        self._heard: dict[str, float] = {}
        """By process of a host: when it was heard last."""
        self._silent: set[str] = set()
        self._copy: Standing = coordinator.standing()
        self._copies = 0
        self._unwritten: dict[int, int] = {}
        """Edits, and the copy that holds them."""
        self._welcomed: dict[int, tuple[int, int, Answer]] = {}
        """By rank: client, attempt, and what it was answered."""
        self._settling: dict[int, set[str]] = {}
        self._recorded_generation = coordinator.generations.generation

    def begin(self) -> None:
        """Start planning."""
        self._perform(self.coordinator.begin())
        if self._silence_s is not None:
            self._beat(self._silence_s)

    # What constructors ask.

    def connect(
        self,
        constructor: "SimulatedConstructor",
        rank: int,
        client: int,
        attempt: int,
        at: RankStanding | None,
        reply: Callable[[int, Answer], None],
    ) -> None:
        """Connect a rank; asked twice it is connected once."""
        known = self._welcomed.get(rank)
        if known is not None and known[0] == client and attempt < known[1]:
            return
        if known is None or known[:2] != (client, attempt):
            self._welcomed[rank] = client, attempt, self._connected(rank, at)
        self._reply(constructor, partial(reply, self.term, self._welcomed[rank][2]))

    def disconnect(
        self, constructor: "SimulatedConstructor", rank: int, session: int, reply: Callable[[], None]
    ) -> None:
        """Release a rank."""
        self._perform(self.coordinator.disconnect(rank, session))
        self._reply(constructor, reply)

    def load(
        self,
        constructor: "SimulatedConstructor",
        rank: int,
        session: int,
        number: int,
        state: StateDict,
        reply: Callable[[int, Answer], None],
    ) -> None:
        """Move the run to a saved progress; answered when every constructor has heard of it."""
        try:
            commands = self.coordinator.load(rank, session, state, number=number)
        except MsdError as error:
            self._reply(constructor, partial(reply, self.term, error))
            return
        self._perform(commands)
        moved = self._moved(rank)
        self._when_settled(lambda: self._reply(constructor, partial(reply, self.term, moved)))

    def recall(self, step: int) -> None:
        """Have the plan of a step held."""
        self._perform(self.coordinator.recall(step))

    def ask(self, step: int | None) -> None:
        """Have it planned what a step holds, for somebody who asks; None: nobody does any more."""
        self._perform(self.coordinator.ask(step))

    def happened(self, event: Event) -> None:
        """Take what happened."""
        self._perform(self.coordinator.handle(event))

    def host_joined(self, name: str, *, is_shadow: bool) -> None:
        """Take that a host came."""
        self._silent.discard(self._cluster.hosts[name].process)
        self.happened(HostJoined(name, is_shadow))

    def host_gone(self, name: str, process: str) -> None:
        """Take that a process of a host is gone; of an older one than the present it is no news."""
        if self._cluster.hosts[name].process == process:
            self.happened(HostLost(name))

    def constructor_lost(self, name: str, process: str | None = None) -> None:
        """Take that a process of a constructor is gone; of an older one than the present it is no news."""
        present = self._cluster.constructors.get(name)
        if process is not None and present is not None and present.process != process:
            return
        for waiting in self._settling.values():
            waiting.discard(name)
        self.happened(ConstructorLost(name))

    def constructor_joined(self, name: str) -> None:
        """Take that a constructor came."""
        self.happened(ConstructorJoined(name))

    def _connected(self, rank: int, at: RankStanding | None) -> Answer:
        try:
            _, commands = self.coordinator.connect(rank, at)
        except MsdError as error:
            return error
        self._perform(commands)
        return self._moved(rank)

    def _moved(self, rank: int) -> Answer:
        coordinator = self.coordinator
        start = coordinator.progress_before(coordinator.first_step)
        assert start is not None, "the position that a generation starts from is always kept"
        return Moved(coordinator.rank_standing(rank), coordinator.first_step, start)

    def _when_settled(self, act: Callable[[], None]) -> None:
        """Act once every constructor has heard of the present generation, or after a while."""
        generation = self.coordinator.generations.generation
        if not self._settling.get(generation):
            act()
            return
        waited = [0.0]

        def look() -> None:
            waited[0] += TICK_S / 5
            if self._settling.get(generation) and waited[0] < SETTLE_S:
                self._network.wake(self.process, TICK_S / 5, look)
            else:
                act()

        look()

    # Commands out.

    def _perform(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case Examine(host=host):
                    self._send_host(host, partial(self._examine, command), about=f"source:{command.source}")
                case Release(source=source, before=before):
                    for name in self._cluster.hosts:
                        self._send_host(name, partial(_release, source, before))
                case Assign() | Drop() | Rewind() | Finish() | Refuse():
                    self._tell(command)
                case Replicate(standing=standing):
                    self._replicate(standing)
                case Journal(number=number):
                    self._unwritten[number] = self._copies + 1
                case Planned(plan=plan):
                    self.record.add(plan)
                case Warn(text=text):
                    self.warnings.append(text)
                case _:
                    pass  # take() and plan() raise coordinator.error; rows end no process here.

    def _tell(self, order: Assign | Drop | Rewind | Finish | Refuse) -> None:
        if order.generation != self._recorded_generation:
            self._recorded_generation, self.record = order.generation, RunRecord()
        constructor = self._cluster.constructors.get(order.constructor)
        if constructor is None:
            return
        copy = self._copy

        def tell() -> None:
            constructor.tell(self.term, order, copy)
            if isinstance(order, Rewind):
                self._network.send(constructor.process, self.process, partial(self._heard_of, order, constructor.name))

        if isinstance(order, Rewind):
            self._settling.setdefault(order.generation, set()).add(order.constructor)
        self._network.send(self.process, constructor.process, tell)

    def _heard_of(self, order: Rewind, constructor: str) -> None:
        self._settling.get(order.generation, set()).discard(constructor)

    def _replicate(self, standing: Standing) -> None:
        self._copies += 1
        self._copy = standing
        number = self._copies

        def keep(host: "SimulatedHost") -> None:
            host.replicate(self.term, number, standing)
            self._network.send(host.process, self.process, partial(self._kept, number))

        for name in self._cluster.hosts:
            self._send_host(name, keep)

    def _kept(self, copy: int) -> None:
        """Take that a host holds a copy, and so the edits in it."""
        durable = [number for number, held_by in self._unwritten.items() if held_by <= copy]
        for number in durable:
            del self._unwritten[number]
        if durable:
            self.happened(Journalled(max(durable)))

    def _send_host(self, name: str, act: "Callable[[SimulatedHost], None]", *, about: str = "") -> None:
        host = self._cluster.hosts[name]

        def run() -> None:
            if host.hears(self.term):
                act(host)

        self._network.send(self.process, host.process, run, about=about)

    def _examine(self, request: Examine, host: "SimulatedHost") -> None:
        """Have a host examine rows and answer; runs there."""
        table = host.examine(request.source, request.partition, request.start, request.num_rows)
        self._network.send(host.process, self.process, lambda: self.happened(RowsExamined(host.name, (table,))))

    def _reply(self, constructor: "SimulatedConstructor", act: Callable[[], None]) -> None:
        self._network.send(self.process, constructor.process, act)

    # Hearts.

    def _beat(self, silence_s: float) -> None:
        """Listen to the hearts of hosts: one that is silent is lost, one that is heard again is back."""
        now = self._clock.now
        for name, host in self._cluster.hosts.items():
            process = host.process
            if now - self._heard.setdefault(process, now) > silence_s and process not in self._silent:
                self._silent.add(process)
                self.happened(HostLost(name))
            self._send_host(name, self._answer_beat)
        self.happened(TimePassed(now))
        self._network.wake(self.process, TICK_S, lambda: self._beat(silence_s))

    def _answer_beat(self, host: "SimulatedHost") -> None:
        self._network.send(host.process, self.process, lambda: self._hear(host.name, host.process))

    def _hear(self, name: str, process: str) -> None:
        self._heard[process] = self._clock.now
        if process in self._silent and self._cluster.hosts[name].process == process:
            self._silent.discard(process)
            self.happened(HostJoined(name))


def _release(source: str, before: int, host: "SimulatedHost") -> None:
    host.release(source, before)

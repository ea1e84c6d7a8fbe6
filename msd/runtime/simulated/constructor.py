"""A constructor, simulated: a shelf, the ranks that it serves, and what it asks the planner for them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from msd.constructor.shelf import Shelf
from msd.coordinator.commands import Assign, Drop, Finish, Refuse, Rewind
from msd.coordinator.events import BytesHeld, Event, RanksStand, StepAsked
from msd.coordinator.standing import RankStanding, Standing, age
from msd.core.sample import SampleId, SampleSlab
from msd.core.state import StateDict
from msd.runtime.simulated.cluster import Cluster
from msd.runtime.simulated.host import SimulatedHost
from msd.runtime.simulated.messages import Answer, Moved, Reply, Unknown
from msd.runtime.simulated.network import Network
from msd.runtime.simulated.planner import SimulatedPlanner

Order: TypeAlias = Assign | Drop | Rewind | Finish | Refuse


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a rank waits for."""

    session: int
    generation: int
    step: int
    reply: Reply


class SimulatedConstructor:
    """Fetches what its steps need, assembles it, and answers its ranks."""

    def __init__(self, name: str, process: str, shelf: Shelf, network: Network, cluster: Cluster) -> None:
        """Hold nothing yet.

        Args:
            name: Of the constructor.
            process: Which process of that name it is.
            shelf: What it holds.
            network: Reaches the others.
            cluster: Where they are.
        """
        self.name = name
        self.process = process
        self.shelf = shelf
        self.most_bytes = 0
        """The most payload that was ever held."""
        self.error: Exception | None = None
        self._told_bytes = 0
        self._network = network
        self._cluster = cluster
        self._term = 0
        self._planner: SimulatedPlanner | None = None
        self._copy: Standing | None = None
        """How the generation began, as the planner said last."""
        self._ranks: dict[int, tuple[int, RankStanding]] = {}
        """Client and standing of the ranks that are connected here."""
        self._refused: dict[int, tuple[int, int, Exception]] = {}
        self._waiting: dict[int, _Asked] = {}
        self._owed: dict[tuple[str, int], Callable[[SimulatedPlanner], None]] = {}
        """What the planner was asked and has not answered: asked again of the next one."""

    def begin(self, term: int, planner: SimulatedPlanner) -> None:
        """Take who the planner is; what was asked of the one before is asked of it."""
        if term < self._term:
            return
        self._term, self._planner = term, planner
        for ask in list(self._owed.values()):
            self._send_planner(ask)
        # What was said to the planner before may have been lost with it, and what is known here may have come too late.
        ranks = self._standings()
        self._report(RanksStand(ranks))
        for stands in ranks:
            self._report(StepAsked(stands.rank, stands.session, stands.generation, stands.next_step))
        self._told_bytes = -1
        self._look()

    def standing(self, term: int) -> Standing | None:
        """Return what is known here of the run; from then on planners of lower terms have no say."""
        if term > self._term:
            self._term, self._planner = term, None
        if self._copy is None:
            return None
        ranks = self._standings()
        positions = self.shelf.positions() if self.shelf.generation == self._copy.generation else {}
        sessions = max((stands.session for stands in ranks), default=0)
        return replace(
            self._copy, ranks=ranks, positions=positions, num_sessions=max(self._copy.num_sessions, sessions)
        )

    def _standings(self) -> tuple[RankStanding, ...]:
        positions = self.shelf.positions()
        return tuple(
            replace(stands, progress=stands.progress or positions.get(stands.next_step))
            for _, stands in self._ranks.values()
        )

    def tell(self, term: int, order: Order, copy: Standing) -> None:
        """Take a command of the coordinator, and how its generation began."""
        if term < self._term:
            return
        self._term = term
        if self._copy is None or age(copy) >= age(self._copy):
            self._copy = copy
        shelf, generation = self.shelf, order.generation
        match order:
            case Assign(plan=plan, owners=owners, placement_version=version, number=number):
                if shelf.assign(generation, plan, owners, version, number=number, term=term):
                    self._ask_for(plan.step)
            case Drop(through=through, number=number):
                shelf.drop(generation, through, number=number, term=term)
            case Rewind():
                shelf.rewind(generation)
            case Finish(step=step):
                shelf.finish(generation, step)
            case Refuse(rank=rank, session=session, error=error):
                self._refused[rank] = (generation, session, error)
        self._look()

    # What ranks ask.

    def hello(self, rank: int, client: int, attempt: int, at: RankStanding | None, reply: Reply) -> None:
        """Connect a rank, or take one back that lost its connection."""

        def welcomed(term: int, answer: Answer) -> None:
            if term >= self._term and self._owed.pop(("hello", rank), None) is not None:
                if isinstance(answer, Moved):
                    self._ranks[rank] = client, answer.stands
                self._answer(rank, reply, answer)

        self._ask(("hello", rank), lambda planner: planner.connect(self, rank, client, attempt, at, welcomed))

    def take(self, rank: int, client: int, session: int, generation: int, step: int, reply: Reply) -> None:
        """Answer a rank with a step as soon as it is there."""
        known = self._ranks.get(rank)
        if known is None or (known[0], known[1].session) != (client, session):
            self._answer(rank, reply, Unknown())
            return
        asked = self._waiting.get(rank)
        if asked is None or (asked.session, asked.generation, asked.step) <= (session, generation, step):
            self._waiting[rank] = _Asked(session, generation, step, reply)
            stands = known[1]
            if generation == stands.generation and step > stands.next_step:
                self._ranks[rank] = client, replace(stands, next_step=step, progress=None)
        self._tell_asked(rank)
        self._look()

    def load(self, rank: int, session: int, number: int, state: StateDict, reply: Reply) -> None:
        """Move the run to a saved position, or join the others there; the same load twice is one."""

        def loaded(term: int, answer: Answer) -> None:
            if term >= self._term and self._owed.pop(("load", rank), None) is not None:
                if isinstance(answer, Moved) and rank in self._ranks:
                    self._ranks[rank] = self._ranks[rank][0], answer.stands
                self._answer(rank, reply, answer)

        self._ask(("load", rank), lambda planner: planner.load(self, rank, session, number, state, loaded))

    def lost(self, rank: int, client: int) -> None:
        """Note that the connection of a rank ended."""
        known = self._ranks.get(rank)
        if known is None or known[0] != client:
            return
        del self._ranks[rank]
        self._waiting.pop(rank, None)
        session = known[1].session

        def released() -> None:
            self._owed.pop(("lost", session), None)

        self._ask(("lost", session), lambda planner: planner.disconnect(self, rank, session, released))

    def _tell_asked(self, rank: int) -> None:
        asked = self._waiting[rank]
        self._report(StepAsked(rank, asked.session, asked.generation, asked.step))

    def _ask_for(self, step: int) -> None:
        for (host, partition), ids in self.shelf.needed(step).items():
            there = self._cluster.hosts.get(host)
            if there is not None:
                act = partial(self._fetch, there, self._term, step, partition, ids)
                self._network.send(self.process, there.process, act)

    def _fetch(self, host: SimulatedHost, term: int, step: int, partition: int, ids: list[SampleId]) -> None:
        """Have a host answer; runs there."""
        if host.hears(term):
            slab = host.fetch(partition, ids)
            self._network.send(host.process, self.process, partial(self._deliver, step, slab))

    def _deliver(self, step: int, slab: SampleSlab) -> None:
        self.shelf.deliver(step, slab)
        self._look()

    def _look(self) -> None:
        """Answer the ranks whose step is there, and say what is held."""
        for rank, asked in list(self._waiting.items()):
            answer = self._answer_to(rank, asked)
            if not isinstance(answer, _Wait):
                del self._waiting[rank]
                self._answer(rank, asked.reply, answer)
        held = self.shelf.nbytes
        self.most_bytes = max(self.most_bytes, held)
        if held != self._told_bytes:
            self._told_bytes = held
            self._report(BytesHeld(self.name, held))

    def _answer_to(self, rank: int, asked: _Asked) -> "Answer | _Wait":
        shelf = self.shelf
        generation, session, refusal = self._refused.get(rank, (-1, -1, None))
        if refusal is not None and (generation, session) == (asked.generation, asked.session):
            return refusal
        if shelf.generation > asked.generation:
            return self._moved(rank)
        if shelf.generation == asked.generation:
            batch = shelf.batch(asked.generation, asked.step, rank)
            if batch is not None:
                return batch
            if shelf.end is not None and asked.step >= shelf.end:
                return None
        return self.error if self.error is not None else _Wait()

    def _moved(self, rank: int) -> "Moved | _Wait":
        """Return where the present generation begins, if that was said already."""
        copy, (client, stands) = self._copy, self._ranks[rank]
        if copy is None or copy.generation != self.shelf.generation:
            return _Wait()
        moved = replace(stands, generation=copy.generation, next_step=copy.first_step, progress=copy.start)
        self._ranks[rank] = client, moved
        return Moved(moved, copy.first_step, copy.start)

    def _answer(self, rank: int, reply: Reply, answer: Answer) -> None:
        self._network.send(self.process, f"rank-{rank}", partial(reply, answer))

    def _ask(self, what: tuple[str, int], ask: Callable[[SimulatedPlanner], None]) -> None:
        self._owed[what] = ask
        self._send_planner(ask)

    def _report(self, event: Event) -> None:
        self._send_planner(lambda planner: planner.happened(event))

    def _send_planner(self, ask: Callable[[SimulatedPlanner], None]) -> None:
        planner = self._planner
        if planner is not None:
            self._network.send(self.process, planner.process, lambda: ask(planner))


class _Wait:
    """There is nothing to answer yet."""

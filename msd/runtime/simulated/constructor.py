"""A constructor, simulated: a shelf, and the messages around it."""

from collections.abc import Callable
from functools import partial

from msd.constructor.shelf import Shelf
from msd.coordinator.commands import Assign, Drop, Finish, Rewind
from msd.coordinator.events import BytesHeld, Event, StepAsked
from msd.core.batch import RankBatch
from msd.core.sample import SampleId, SampleSlab
from msd.runtime.simulated.network import Network

Fetch = Callable[[int, list[SampleId]], SampleSlab]
Answer = Callable[[int, int, RankBatch | None], None]
"""Called at the rank with generation, step and batch; None is the end."""


class SimulatedConstructor:
    """Fetches what its steps need, assembles it, and answers its ranks."""

    def __init__(
        self,
        name: str,
        shelf: Shelf,
        network: Network,
        *,
        host: Callable[[str], Fetch],
        report: Callable[[Event], None],
    ) -> None:
        """Hold nothing yet.

        Args:
            name: Of the constructor.
            shelf: What it holds.
            network: Reaches the others.
            host: Returns the `fetch` of a loader host.
            report: Called at the planner with what happened here.
        """
        self.name = name
        self.shelf = shelf
        self.most_bytes = 0
        """The most payload that was ever held."""
        self._told_bytes = 0
        self._network = network
        self._host = host
        self._report = report
        self._waiting: dict[int, tuple[tuple[int, int, int], Answer]] = {}
        """By rank: (session, generation, step) it waits for, and how to answer it."""

    def tell(self, command: Assign | Drop | Rewind | Finish) -> None:
        """Take a command of the coordinator."""
        shelf, generation = self.shelf, command.generation
        match command:
            case Assign(plan=plan, owners=owners, placement_version=version, number=number):
                if shelf.assign(generation, plan, owners, version, number=number):
                    self._ask_for(plan.step)
            case Drop(through=through, number=number):
                shelf.drop(generation, through, number=number)
            case Rewind():
                shelf.rewind(generation)
            case Finish(step=step):
                shelf.finish(generation, step)
        self._look()

    def take(self, rank: int, session: int, generation: int, step: int, answer: Answer) -> None:
        """Answer a rank with a step as soon as it is there."""
        self._send_planner(StepAsked(rank, session, generation, step))
        asked = (session, generation, step)
        if rank not in self._waiting or self._waiting[rank][0] <= asked:
            self._waiting[rank] = (asked, answer)
        self._look()

    def _ask_for(self, step: int) -> None:
        for (host, partition), ids in self.shelf.needed(step).items():
            fetch = self._host(host)
            self._network.send(self.name, host, partial(self._fetch, host, fetch, step, partition, ids))

    def _fetch(self, host: str, fetch: Fetch, step: int, partition: int, ids: list[SampleId]) -> None:
        """Have a host answer; runs there."""
        slab = fetch(partition, ids)
        self._network.send(host, self.name, lambda: self._deliver(step, slab))

    def _deliver(self, step: int, slab: SampleSlab) -> None:
        self.shelf.deliver(step, slab)
        self._look()

    def _look(self) -> None:
        """Answer the ranks whose step is there, and say what is held."""
        for rank, ((_, generation, step), answer) in list(self._waiting.items()):
            shelf = self.shelf
            is_over = generation == shelf.generation and shelf.end is not None and step >= shelf.end
            batch = None if is_over else shelf.batch(generation, step, rank)
            if is_over or batch is not None:
                del self._waiting[rank]
                self._network.send(self.name, f"rank-{rank}", partial(answer, generation, step, batch))
        held = self.shelf.nbytes
        self.most_bytes = max(self.most_bytes, held)
        if held != self._told_bytes:
            self._told_bytes = held
            self._send_planner(BytesHeld(self.name, held))

    def _send_planner(self, event: Event) -> None:
        self._network.send(self.name, "planner", lambda: self._report(event))

"""A rank's side of the network, simulated: it says HELLO with where it stands, and asks again when somebody is gone."""

import json
from collections.abc import Callable
from functools import partial

from msd.coordinator.standing import RankStanding
from msd.core.batch import RankBatch
from msd.core.state import StateDict
from msd.runtime.simulated.cluster import Cluster
from msd.runtime.simulated.constructor import SimulatedConstructor
from msd.runtime.simulated.messages import Answer, Moved, Unknown
from msd.runtime.simulated.network import Network

PATIENCE_S = 2.0
"""A HELLO that is not answered for so long is said again, after twice as long once more, and so on."""


class SimulatedRank:
    """One client of one rank, from its first HELLO to its end."""

    def __init__(self, rank: int, client: int, network: Network, cluster: Cluster) -> None:
        """Be connected to nobody yet.

        Args:
            rank: Of the mesh.
            client: Tells it from other clients of the rank.
            network: Reaches the constructors.
            cluster: Where they are.
        """
        self.rank = rank
        self.client = client
        self.process = f"rank-{rank}"
        self.stands: RankStanding | None = None
        """With the position before its next step."""
        self.answer: tuple[Answer] | None = None
        """What came for what is asked for, once it has."""
        self._network = network
        self._cluster = cluster
        self._attempt = 0
        self._constructor: SimulatedConstructor | None = None
        self._is_welcome = False
        self._ask_again: Callable[[], None] = lambda: None
        self._waited_s = 0.0
        self._patience_s = PATIENCE_S
        self._has_left = False
        self._loading: int | None = None
        """Number of the load that is not answered yet."""

    def hello(self) -> None:
        """Say HELLO to the constructor that serves the rank now, and where the rank stands."""
        self._attempt += 1
        self._is_welcome, self._waited_s = False, 0.0
        self._constructor = constructor = self._cluster.where(self.rank)
        if constructor is not None:
            reply = partial(self._welcomed, self._attempt)
            act = partial(constructor.hello, self.rank, self.client, self._attempt, self.stands, reply)
            self._network.send(self.process, constructor.process, act)

    def connect(self) -> None:
        """Ask to be connected; `answer` says that it is done."""
        self.answer, self._ask_again = None, lambda: None
        self.hello()

    def take(self) -> None:
        """Ask for the next batch."""
        self._ask(self._send_take)

    def load(self, state: StateDict) -> None:
        """Ask to go on from a saved progress."""
        assert self.stands is not None
        # A load is one however often it is sent: it keeps its number.
        self._loading = self.stands.num_loads + 1
        self._ask(partial(self._send_load, self._loading, state))

    def look(self, waited_s: float) -> None:
        """Say HELLO again if whoever serves the rank was replaced, or does not answer.

        Args:
            waited_s: Since the last look.
        """
        if self._has_left:
            return
        self._waited_s += waited_s
        is_other = self._cluster.where(self.rank) is not self._constructor
        if is_other:
            self._patience_s = PATIENCE_S
            self.hello()
        elif not self._is_welcome and self._waited_s >= self._patience_s:
            self._patience_s *= 2
            self.hello()

    def leave(self) -> None:
        """Tell the constructor that the connection ends."""
        self._has_left = True
        if self._constructor is not None:
            act = partial(self._constructor.lost, self.rank, self.client)
            self._network.send(self.process, self._constructor.process, act)

    def _ask(self, send: Callable[[], None]) -> None:
        self.answer, self._ask_again = None, send
        if not self._is_welcome or self._cluster.where(self.rank) is not self._constructor:
            self.hello()
        else:
            send()

    def _send_take(self) -> None:
        assert self.stands is not None
        assert self._constructor is not None
        stands = self.stands
        reply = partial(self._taken, stands.session, stands.generation, stands.next_step)
        asked = (self.client, stands.session, stands.generation, stands.next_step)
        act = partial(self._constructor.take, self.rank, *asked, reply)
        self._network.send(self.process, self._constructor.process, act)

    def _send_load(self, number: int, state: StateDict) -> None:
        assert self.stands is not None
        assert self._constructor is not None
        session = self.stands.session
        reply = partial(self._loaded, session, number)
        act = partial(self._constructor.load, self.rank, session, number, state, reply)
        self._network.send(self.process, self._constructor.process, act)

    def _welcomed(self, attempt: int, answer: Answer) -> None:
        if attempt != self._attempt or self._is_welcome:
            return
        if isinstance(answer, Exception):
            self.answer = (answer,)
            return
        assert isinstance(answer, Moved)
        is_first = self.stands is None
        self._is_welcome = True
        self._go_to(answer)
        if is_first:
            self.answer = (None,)
        elif self.answer is None:
            self._ask_again()

    def _taken(self, session: int, generation: int, step: int, answer: Answer) -> None:
        stands = self.stands
        assert stands is not None
        if (stands.session, stands.generation, stands.next_step) != (session, generation, step) or self.answer:
            return
        if isinstance(answer, Unknown):
            self.hello()
        elif isinstance(answer, Moved):
            self._go_to(answer)
            self._send_take()
        else:
            self.answer = (answer,)
            if isinstance(answer, RankBatch):
                self.stands = _after(stands, answer)

    def _loaded(self, session: int, number: int, answer: Answer) -> None:
        assert self.stands is not None
        # An answer that comes twice must not be taken for that to what was asked since.
        if (self.stands.session, self._loading) != (session, number) or self.answer:
            return
        self._loading = None
        if isinstance(answer, Moved):
            self._go_to(answer)
        self.answer = (answer if isinstance(answer, Exception) else None,)

    def _go_to(self, moved: Moved) -> None:
        """Stand where the run says, with the position there: its own, or that of the generation's start."""
        stands, told = self.stands, moved.stands
        goes_on = (
            stands is not None
            and (stands.generation, stands.num_loads) == (told.generation, told.num_loads)
            and stands.next_step >= moved.first_step
        )
        if stands is not None and goes_on:
            self.stands = _at(told, stands.next_step, stands.progress)
        else:
            self.stands = _at(told, moved.first_step, moved.start)


def _at(stands: RankStanding, step: int, progress: StateDict | None) -> RankStanding:
    return RankStanding(
        rank=stands.rank,
        generation=stands.generation,
        next_step=step,
        num_loads=stands.num_loads,
        session=stands.session,
        progress=progress,
    )


def _after(stands: RankStanding, batch: RankBatch) -> RankStanding:
    return _at(stands, batch.step + 1, json.loads(batch.progress))

"""Who stands where: generations of a run, the position of each rank, and the watermark.

A *generation* is a stretch of steps from one start. The n-th load of any rank opens generation n; the n-th load of
the others joins it if the state is the same, and is refused otherwise; a rank that did not load follows.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from msd.errors import EngineError, StateError


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank stands."""

    generation: int
    next_step: int


@dataclass(slots=True)
class _Rank:
    position: Position
    num_loads: int = 0
    session: int = 0
    """Of the client that speaks for the rank; 0 while none does."""


class Generations:
    """Bookkeeping of a run's generations and of where each rank stands in them."""

    def __init__(self, *, first_step: int, digest: str) -> None:
        """Begin generation 0 at `first_step`, from the state with `digest`."""
        self.generation = 0
        self.first_step = first_step
        self._digest = digest
        self._opened_by: int | None = None
        self._ranks: dict[int, _Rank] = {}
        self._num_sessions = 0

    def connect(self, rank: int) -> int:
        """Connect a rank and return its session; late or again, it starts where the generation does."""
        self._num_sessions += 1
        known = self._ranks.setdefault(rank, _Rank(self._start()))
        known.position, known.session = self._start(), self._num_sessions
        return known.session

    def disconnect(self, rank: int, session: int) -> None:
        """Release a rank: it no longer holds the watermark."""
        known = self._ranks.get(rank)
        if known is not None and known.session == session:
            known.session = 0

    def asked(self, rank: int, session: int) -> Position:
        """Return the step that a connected rank is asking for; after a load elsewhere, the new generation's first."""
        known = self._ranks.get(rank)
        if known is None or known.session != session:
            raise EngineError(
                f"rank {rank} was connected again; this client no longer speaks for it: use the newer one"
            )
        if known.position.generation != self.generation:
            known.position = self._start()
        return known.position

    def asks(self, rank: int, session: int, step: int) -> None:
        """Note that a rank asks for `step` of the present generation, and so has taken the one before."""
        self.asked(rank, session)
        if step < self.first_step:
            raise StateError(
                f"rank {rank} asks for step {step}, but generation {self.generation} starts at step {self.first_step}; "
                "load an earlier state to go there"
            )
        self._ranks[rank].position = Position(self.generation, step)

    def load(self, rank: int, *, step: int, digest: str) -> bool:
        """Note that a rank loads a state and return whether that opens a generation.

        Raises:
            StateError: If another rank's load of the same number brought another state.
        """
        known = self._ranks[rank]
        number = known.num_loads + 1
        opens = number > self.generation
        if not opens and digest != self._digest:
            raise StateError(
                f"rank {rank} loads another state than rank {self._opened_by} did: step {step} against step "
                f"{self.first_step} of generation {self.generation}; load the same state on every rank"
            )
        known.num_loads = number
        if opens:
            self.generation, self.first_step = number, step
            self._digest, self._opened_by = digest, rank
        known.position = self._start()
        return opens

    def next_steps(self, ranks: Iterable[int]) -> set[int]:
        """Return the steps that the connected ones of `ranks` ask for next; before any rank came, the first step."""
        if not self._num_sessions:
            return {self.first_step}
        return {
            self._next_step(self._ranks[rank]) for rank in ranks if rank in self._ranks and self._ranks[rank].session
        }

    @property
    def slowest(self) -> int | None:
        """The step that the slowest connected rank asks for next, or None while none is connected."""
        return min(self.next_steps(self._ranks), default=None)

    @property
    def fastest(self) -> int | None:
        """The step that the fastest connected rank asks for next, or None while none is connected."""
        return max(self.next_steps(self._ranks), default=None)

    @property
    def watermark(self) -> int:
        """The last step that every connected rank has taken: nothing up to it is needed again in this generation."""
        return (self.first_step if self.slowest is None else self.slowest) - 1

    def is_connected(self, rank: int) -> bool:
        """Return whether a client speaks for the rank."""
        return rank in self._ranks and self._ranks[rank].session != 0

    def _next_step(self, known: _Rank) -> int:
        return known.position.next_step if known.position.generation == self.generation else self.first_step

    def _start(self) -> Position:
        return Position(self.generation, self.first_step)

"""Who stands where: generations of a run, the position of each rank, and the watermark.

A *generation* is a stretch of steps from one start. The n-th load of any rank opens generation n; the n-th load of
the others joins it if the state is the same, and is refused otherwise; a rank that did not load follows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class _Standing:
    """How many connected ranks ask for each step next. A handful of steps, however many ranks."""

    count_of: dict[int, int] = field(default_factory=dict)

    def move(self, before: int | None, after: int | None) -> None:
        """Move one rank; None is not connected."""
        if before == after:
            return
        if before is not None:
            self.count_of[before] -= 1
            if not self.count_of[before]:
                del self.count_of[before]
        if after is not None:
            self.count_of[after] = self.count_of.get(after, 0) + 1

    def gather(self, step: int) -> None:
        """Move all to one step."""
        connected = sum(self.count_of.values())
        self.count_of = {step: connected} if connected else {}


class Generations:
    """Bookkeeping of a run's generations and of where each rank stands in them."""

    def __init__(self, *, first_step: int, digest: str, groups: Mapping[str, Iterable[int]] | None = None) -> None:
        """Begin generation 0 at `first_step`, from the state with `digest`.

        Args:
            first_step: The step that ranks ask for first.
            digest: Of the state that the generation starts from.
            groups: Ranks by the name under which `next_steps` is asked for them.
        """
        self.generation = 0
        self.first_step = first_step
        self._digest = digest
        self._opened_by: int | None = None
        self._ranks: dict[int, _Rank] = {}
        self._num_sessions = 0
        self._all = _Standing()
        self._groups = {name: _Standing() for name in groups or {}}
        self._group_of = {rank: name for name, ranks in (groups or {}).items() for rank in ranks}

    def connect(self, rank: int, at: Position | None = None) -> int:
        """Connect a rank and return its session; late or again, it starts where the generation does.

        Args:
            rank: Of the mesh.
            at: Where a rank that was connected before stands. One of an older generation follows to the new one.

        Raises:
            StateError: If it stands where this run cannot have brought it.
        """
        start = self._start() if at is None or at.generation < self.generation else at
        if start.generation > self.generation or start.next_step < self.first_step:
            raise StateError(
                f"rank {rank} stands at step {start.next_step} of generation {start.generation}, but this run is in "
                f"generation {self.generation}, which starts at step {self.first_step}; it belongs to another run: "
                "load the state that was saved last on every rank"
            )
        self._num_sessions += 1
        known = self._ranks.setdefault(rank, _Rank(start))
        self._move(rank, known, start, self._num_sessions)
        return known.session

    def disconnect(self, rank: int, session: int) -> None:
        """Release a rank: it no longer holds the watermark."""
        known = self._ranks.get(rank)
        if known is not None and known.session == session:
            self._move(rank, known, known.position, 0)

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

    def speaks(self, rank: int, session: int, generation: int) -> bool:
        """Return whether what was said in a session and generation still counts."""
        known = self._ranks.get(rank)
        return known is not None and known.session == session and generation == self.generation

    def asks(self, rank: int, session: int, step: int) -> None:
        """Note that a rank asks for `step` of the present generation, and so has taken the one before.

        Within a session a rank only goes forward: what was said earlier and is heard later changes nothing.
        """
        stands = self.asked(rank, session)
        if step < self.first_step:
            raise StateError(
                f"rank {rank} asks for step {step}, but generation {self.generation} starts at step {self.first_step}; "
                "load an earlier state to go there"
            )
        if step > stands.next_step:
            self._move(rank, self._ranks[rank], Position(self.generation, step), session)

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
            for standing in (self._all, *self._groups.values()):
                standing.gather(step)
        self._move(rank, known, self._start(), known.session)
        return opens

    def next_steps(self, group: str | None = None) -> list[int]:
        """Return the steps that connected ranks of a group (or all) ask for next; before any rank came, the first."""
        if not self._num_sessions:
            return [self.first_step]
        return sorted((self._all if group is None else self._groups[group]).count_of)

    def group_of(self, rank: int) -> str | None:
        """Return the group that a rank is of."""
        return self._group_of.get(rank)

    def ranks_at(self, step: int) -> list[int]:
        """Return the connected ranks that ask for a step next."""
        return sorted(rank for rank, known in self._ranks.items() if self._counted(known) == step)

    @property
    def slowest(self) -> int | None:
        """The step that the slowest connected rank asks for next, or None while none is connected."""
        return min(self.next_steps(), default=None)

    @property
    def fastest(self) -> int | None:
        """The step that the fastest connected rank asks for next, or None while none is connected."""
        return max(self.next_steps(), default=None)

    @property
    def watermark(self) -> int:
        """The last step that every connected rank has taken: nothing up to it is needed again in this generation."""
        slowest = self.slowest
        return (self.first_step if slowest is None else slowest) - 1

    def _move(self, rank: int, known: _Rank, position: Position, session: int) -> None:
        before = self._counted(known)
        known.position, known.session = position, session
        after = self._counted(known)
        self._all.move(before, after)
        if rank in self._group_of:
            self._groups[self._group_of[rank]].move(before, after)

    def _counted(self, known: _Rank) -> int | None:
        """Return the step under which a rank is counted: a rank of an older generation is at the start of this one."""
        if not known.session:
            return None
        return known.position.next_step if known.position.generation == self.generation else self.first_step

    def _start(self) -> Position:
        return Position(self.generation, self.first_step)

"""Who stands where: generations of a run, the position of each rank, and the watermark.

A *generation* is a stretch of steps from one start. The n-th load of any rank opens generation n; the n-th load of
the others joins it if the state is the same, and is refused otherwise; a rank that did not load follows. A rank whose
place is not known (it came fresh to a run that others brought here) is *held*: it counts for nothing until it loads.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msd.coordinator.standing import RankStanding, Standing
from msd.errors import EngineError, StateError

SESSIONS_APART = 1 << 20
"""Sessions that a run born again leaves out: the one before may have given some that nobody told of."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank stands."""

    generation: int
    next_step: int


@dataclass(slots=True)
class _Rank:
    position: Position
    num_loads: int = 0
    """That its client made."""
    loads_before: int = 0
    """Generations that were opened before the first of those."""
    session: int = 0
    """Of the client that speaks for the rank; 0 while none does."""
    is_held: bool = False
    is_brought: bool = False
    """Its position was not reached here: the rank, or a survivor, said so."""


@dataclass(slots=True)
class _Steps:
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


class Generations:
    """Bookkeeping of a run's generations and of where each rank stands in them."""

    def __init__(
        self,
        *,
        first_step: int,
        digest: str,
        groups: Mapping[str, Iterable[int]] | None = None,
        standing: Standing | None = None,
    ) -> None:
        """Begin generation 0 at `first_step`, from the state with `digest`, or where a standing says.

        Args:
            first_step: The step that ranks ask for first.
            digest: Of the state that the generation starts from.
            groups: Ranks by the name under which `next_steps` is asked for them.
            standing: What survivors of the run know, or a store; `first_step` and `digest` are its own.
        """
        self.generation = 0
        self.first_step = self.brought_through = first_step
        """`brought_through` is the furthest step that a rank brought here; where ranks went since is another matter."""
        self.digest = digest
        self.opened_by: int | None = None
        self.is_start_known = True
        self.num_sessions = 0
        self.loads_before = 0
        self._ranks: dict[int, _Rank] = {}
        self._all = _Steps()
        self._groups = {name: _Steps() for name in groups or {}}
        self._group_of = {rank: name for name, ranks in (groups or {}).items() for rank in ranks}
        if standing is not None:
            self._take(standing)

    def _take(self, standing: Standing) -> None:
        self.generation, self.opened_by = standing.generation, standing.opened_by
        self.is_start_known, self.loads_before = standing.is_start_known, standing.loads_before
        for rank in standing.ranks:
            place = Position(rank.generation, rank.next_step)
            known = self._ranks[rank.rank] = _Rank(
                place, rank.num_loads, rank.loads_before, is_held=rank.is_held, is_brought=True
            )
            self._move(rank.rank, known, place, rank.session)
        if standing.num_sessions:
            self.num_sessions = standing.num_sessions + SESSIONS_APART

    def connect(self, rank: int, at: RankStanding | None = None) -> int:
        """Connect a rank and return its session; late or again, it starts where the generation does.

        Args:
            rank: Of the mesh.
            at: Where a rank that was connected before stands. One of an older generation follows to the new one.

        Raises:
            StateError: If it stands where this run cannot have brought it.
        """
        is_fresh = at is None or at.generation < self.generation
        start = self._start() if at is None or is_fresh else Position(at.generation, at.next_step)
        if start.generation > self.generation or start.next_step < self.first_step:
            raise not_ours(rank, start.next_step, start.generation, f"which starts at step {self.first_step}", self)
        self.num_sessions += 1
        known = self._ranks.setdefault(rank, _Rank(start, loads_before=self.loads_before))
        if at is None:
            # Another client, which counts its own loads from none.
            known.loads_before, known.num_loads = known.loads_before + known.num_loads, 0
        else:
            known.num_loads = max(known.num_loads, at.num_loads)
        self._move(rank, known, start, self.num_sessions, is_held=is_fresh and not self.is_start_known)
        known.is_brought = not is_fresh
        return known.session

    def seat(self, at: RankStanding) -> None:
        """Take a rank for connected that another planner connected, with its session; it is known better if it is."""
        known = self._ranks.get(at.rank)
        if known is not None and known.session >= at.session:
            return
        newest = max(self.num_sessions, at.session)
        self.connect(at.rank, at)
        self._ranks[at.rank].session, self.num_sessions = at.session, newest

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
        if known.is_held:
            raise self.refusal(rank)
        if known.position.generation != self.generation:
            known.position = self._start()
        return known.position

    def speaks(self, rank: int, session: int, generation: int) -> bool:
        """Return whether what was said in a session and generation still counts."""
        known = self._ranks.get(rank)
        return known is not None and not known.is_held and known.session == session and generation == self.generation

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

    def load(self, rank: int, *, step: int, digest: str, number: int | None = None) -> bool:
        """Note that a rank loads a state and return whether that opens a generation.

        Args:
            rank: Of the mesh.
            step: Where the state stands.
            digest: Of the state.
            number: Of the load, as the rank's client counts them from 1; one that it made before is not counted twice.

        Raises:
            StateError: If another rank's load of the same number brought another state.
        """
        known = self._ranks[rank]
        made = known.num_loads + 1 if number is None else number
        is_repeated = made <= known.num_loads
        opens = not is_repeated and (known.loads_before + made > self.generation or not self.digest)
        if not opens and digest != self.digest:
            whose = "was loaded" if self.opened_by is None else f"rank {self.opened_by} did"
            raise StateError(
                f"rank {rank} loads another state than {whose}: step {step} against step "
                f"{self.first_step} of generation {self.generation}; load the same state on every rank"
            )
        known.num_loads = max(made, known.num_loads)
        if opens:
            generation = max(known.loads_before + made, self.generation + 1)
            known.loads_before = generation - made
            self._open(generation, step, digest, by=rank)
        if opens or not is_repeated:
            self._move(rank, known, self._start(), known.session)
        return opens

    def open(self, *, step: int, digest: str) -> None:
        """Open a generation that no rank's load asked for; every rank's next load opens another."""
        generation = self.generation + 1
        self.loads_before = generation
        for known in self._ranks.values():
            known.loads_before = generation - known.num_loads
        self._open(generation, step, digest, by=None)

    def brought(self, generation: int) -> dict[int, Position]:
        """Return where the connected ranks stand, in one generation, that said so when they came."""
        return {
            rank: known.position
            for rank, known in self._ranks.items()
            if known.session and known.is_brought and known.position.generation == generation
        }

    def adopt(self, generation: int, first_step: int) -> None:
        """Go on with a generation of a run that nobody else here knows, from where ranks were brought in it."""
        brought = self.brought(generation)
        self._open(generation, first_step, "", by=None)
        self.is_start_known, self.loads_before = False, max(self.loads_before, generation)
        for rank, known in self._ranks.items():
            if rank in brought:
                self._move(rank, known, brought[rank], known.session)
                known.is_brought = True
            elif known.session:
                known.loads_before = generation - known.num_loads
                self._move(rank, known, self._start(), known.session, is_held=True)

    def begin_at(self, step: int) -> None:
        """Have the generation begin later, at a step that no rank has left behind it; who comes fresh must load."""
        self.first_step, self.digest, self.opened_by = step, "", None
        self.is_start_known, self.loads_before = False, max(self.loads_before, self.generation)

    @property
    def are_all_here(self) -> bool:
        """Whether every rank that somebody serves is connected, and stands in this generation."""
        return bool(self._group_of) and all(
            rank in self._ranks
            and self._counted(self._ranks[rank]) is not None
            and self._ranks[rank].position.generation == self.generation
            for rank in self._group_of
        )

    def reach(self, step: int) -> None:
        """Note that a rank of an adopted generation brought a position before the earliest, or after the last one."""
        self.first_step = min(self.first_step, step)
        self.brought_through = max(self.brought_through, step)

    def next_steps(self, group: str | None = None) -> list[int]:
        """Return the steps that connected ranks of a group (or all) ask for next; before any rank came, the first."""
        if not self.num_sessions:
            return [self.first_step]
        return sorted((self._all if group is None else self._groups[group]).count_of)

    @property
    def all_ranks(self) -> frozenset[int]:
        """Those that somebody serves, connected or not."""
        return frozenset(self._group_of)

    def group_of(self, rank: int) -> str | None:
        """Return the group that a rank is of."""
        return self._group_of.get(rank)

    def ranks_at(self, step: int) -> list[int]:
        """Return the connected ranks that ask for a step next."""
        return sorted(rank for rank, known in self._ranks.items() if self._counted(known) == step)

    def ranks_that_began_here(self) -> list[int]:
        """Return the connected ranks that have taken steps from the generation's start, and brought no position."""
        return sorted(
            rank
            for rank, known in self._ranks.items()
            if not known.is_brought and (self._counted(known) or 0) > self.first_step
        )

    def held(self, rank: int | None = None) -> list[tuple[int, int]]:
        """Return (rank, session) of the connected ranks, or of one, that must load before they are given anything."""
        ranks = sorted(self._ranks) if rank is None else [rank] if rank in self._ranks else []
        known = [(one, self._ranks[one]) for one in ranks]
        return [(one, of.session) for one, of in known if of.is_held and of.session]

    def refusal(self, rank: int) -> StateError:
        """Return what a rank that is held is told."""
        return StateError(
            f"rank {rank} came without a state to a run that goes on from where other ranks stand: {self.in_words()}; "
            "load the state that was saved last on every rank"
        )

    def in_words(self) -> str:
        """Return where connected ranks stand: `rank 0, 1 at step 7; rank 2 at step 9`."""
        if not self._all.count_of:
            return f"none is connected now, and they had come to step {self.brought_through} at least"
        return "; ".join(
            f"rank {some_ranks(self.ranks_at(step))} at step {step}" for step in sorted(self._all.count_of)
        )

    def standing_of(self, rank: int) -> RankStanding:
        """Return where a rank stands."""
        known = self._ranks[rank]
        is_here = known.position.generation == self.generation
        return RankStanding(
            rank=rank,
            generation=self.generation,
            next_step=known.position.next_step if is_here else self.first_step,
            num_loads=known.num_loads,
            session=known.session,
            loads_before=known.loads_before,
            is_held=known.is_held,
        )

    def standings(self) -> tuple[RankStanding, ...]:
        """Return where all ranks stand that were ever connected."""
        return tuple(self.standing_of(rank) for rank in sorted(self._ranks))

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

    def _open(self, generation: int, step: int, digest: str, *, by: int | None) -> None:
        self.generation, self.is_start_known = generation, True
        self.first_step = self.brought_through = step
        self.digest, self.opened_by = digest, by
        # All that are connected follow to the start, also those that were held.
        self._all = _Steps()
        self._groups = {name: _Steps() for name in self._groups}
        for rank, known in self._ranks.items():
            session, known.session = known.session, 0
            known.is_held = known.is_brought = False
            self._move(rank, known, self._start(), session)

    def _move(self, rank: int, known: _Rank, position: Position, session: int, *, is_held: bool = False) -> None:
        before = self._counted(known)
        known.position, known.session, known.is_held = position, session, is_held
        after = self._counted(known)
        self._all.move(before, after)
        if rank in self._group_of:
            self._groups[self._group_of[rank]].move(before, after)

    def _counted(self, known: _Rank) -> int | None:
        """Return the step under which a rank is counted: a rank of an older generation is at the start of this one."""
        if not known.session or known.is_held:
            return None
        return known.position.next_step if known.position.generation == self.generation else self.first_step

    def _start(self) -> Position:
        return Position(self.generation, self.first_step)


def not_ours(rank: int, step: int, generation: int, why: str, here: Generations) -> StateError:
    """Return what a rank is told that stands where this run never was."""
    return StateError(
        f"rank {rank} stands at step {step} of generation {generation}, but this run is in generation "
        f"{here.generation}, {why}; it belongs to another run: load the state that was saved last on every rank"
    )


def some_ranks(ranks: list[int]) -> str:
    """Return ranks in words, few of many."""
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")

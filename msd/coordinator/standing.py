"""Where a run stands, as far as one survivor knows: what a new planner is born from.

Ranks know where they stand and the position before their next step; constructors know that of all their ranks; loader
hosts keep a copy of how the generation began and of its journal. A planner that starts again merges whatever is left.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from msd.core.journal import Edit
from msd.core.state import StateDict


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStanding:
    """Where one rank stands."""

    rank: int
    generation: int
    next_step: int
    """That its training loop asks for next, as far as is known: what it fetched ahead is not taken."""
    num_loads: int = 0
    session: int = 0
    """Of the client that speaks for it; 0 while none is connected."""
    progress: StateDict | None = None
    """The run's position before `next_step`, if it is known."""
    loads_before: int = 0
    """Generations that were opened before its client's first load: its n-th load opens generation `n` past them."""
    is_held: bool = False
    """It must load before it is given anything."""


@dataclass(frozen=True, slots=True)
class Stall:
    """A row that nobody has planned with and that planning waits for."""

    source: str
    ordinal: int
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a run stands."""

    generation: int
    first_step: int
    """Of the generation."""
    start: StateDict
    """The run's position before `first_step`."""
    digest: str
    """Of the state that the generation began with."""
    opened_by: int | None = None
    """The rank whose load opened it."""
    edits: tuple[Edit, ...] = ()
    """Journalled in this generation, in order."""
    num_forgotten: int = 0
    """Reports that were journalled before them, and that positions from `first_step` on contain."""
    ranks: tuple[RankStanding, ...] = ()
    num_sessions: int = 0
    """The highest session that was ever given out."""
    positions: Mapping[int, StateDict] = field(default_factory=dict)
    """The run's position before steps of this generation."""
    isolated: tuple[tuple[str, int], ...] = ()
    """(source, ordinal) of rows that may have ended a process."""
    loads_before: int = 0
    """Loads that a rank of which nothing is known counts as having made: its next one opens a generation."""
    is_start_known: bool = True
    """False: `start` is only the earliest position that a rank brought to a run that did not know it; a rank that comes
    without a position must load."""
    is_resumed: bool = False
    """It was read from a store: ranks that went further may bring their position."""
    stall: Stall | None = None
    """What planning waited for: whoever plans next goes on measuring, and does not begin again."""


def merged(standings: Iterable[Standing]) -> Standing | None:
    """Return what all know together: the newest generation, the longest journal, the newest word of each rank.

    Ranks of an older generation are kept as they are: they follow when they ask. None if there is no standing.
    """
    known = sorted(standings, key=age)
    if not known:
        return None
    newest = known[-1]
    words: dict[int, list[RankStanding]] = {}
    positions: dict[int, StateDict] = {}
    for standing in known:
        for rank in standing.ranks:
            words.setdefault(rank.rank, []).append(rank)
            if rank.generation == newest.generation and rank.progress is not None:
                positions[rank.next_step] = rank.progress
        if standing.generation == newest.generation:
            positions.update(standing.positions)
    return Standing(
        generation=newest.generation,
        first_step=newest.first_step,
        start=newest.start,
        digest=newest.digest,
        opened_by=newest.opened_by,
        edits=newest.edits,
        num_forgotten=newest.num_forgotten,
        ranks=tuple(_newest(words[rank]) for rank in sorted(words)),
        num_sessions=max(standing.num_sessions for standing in known),
        positions=positions,
        isolated=tuple(dict.fromkeys(row for standing in known for row in standing.isolated)),
        loads_before=newest.loads_before,
        is_start_known=newest.is_start_known,
        is_resumed=newest.is_resumed,
        stall=newest.stall,
    )


def age(standing: Standing) -> tuple[int, int]:
    """Return what orders copies of a standing by age: of two, the later one was told more."""
    return standing.generation, standing.num_forgotten + len(standing.edits)


def _newest(words: list[RankStanding]) -> RankStanding:
    """Return the newest word of a rank, with what only the coordinator's copies say of it."""
    newest = max(words, key=lambda rank: (rank.session, rank.generation, rank.next_step))
    return replace(
        newest,
        loads_before=max(rank.loads_before for rank in words),
        is_held=any(rank.is_held for rank in words if rank.generation == newest.generation),
    )

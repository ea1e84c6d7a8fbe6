"""What is handed on of a run: all of where it stands, and the part of it that loader hosts keep."""

from dataclasses import replace

from msd.coordinator.commands import Replicate
from msd.coordinator.edits import Edits
from msd.coordinator.generations import Generations
from msd.coordinator.history import History
from msd.coordinator.standing import Stall, Standing
from msd.coordinator.suspects import RowAt


def standing_of(
    generations: Generations,
    history: History,
    *,
    edits: Edits,
    isolated: tuple[RowAt, ...],
    is_resumed: bool,
    stall: Stall | None,
) -> Standing:
    """Return where a run stands.

    Args:
        generations: Where ranks stand.
        history: Positions before steps.
        edits: The journal of the generation, and what is about to be in it.
        isolated: Rows that may have ended a process.
        is_resumed: Whether the run was read from a store; once a rank came it goes its own way.
        stall: What planning waits for.
    """
    steps = {*generations.next_steps(), generations.watermark + 1}
    positions = {step: position for step in steps if (position := history.position_before(step)) is not None}
    start = history.position_before(generations.first_step)
    assert start is not None, "the position that a generation starts from is always kept"
    return Standing(
        generation=generations.generation,
        first_step=generations.first_step,
        start=start,
        digest=generations.digest,
        opened_by=generations.opened_by,
        edits=edits.all,
        num_forgotten=edits.num_forgotten,
        ranks=generations.standings(),
        num_sessions=generations.num_sessions,
        positions=positions,
        isolated=isolated,
        loads_before=generations.loads_before,
        is_start_known=generations.is_start_known,
        is_resumed=is_resumed and not generations.num_sessions,
        stall=stall,
    )


def replica_of(standing: Standing) -> Replicate:
    """Return what has loader hosts keep how the generation began: where ranks stand they say themselves."""
    ranks = tuple(replace(rank, session=0) for rank in standing.ranks)
    # Nor how long a row has been waited for: a copy is made when something changes, and would say too little.
    return Replicate(replace(standing, ranks=ranks, positions={}, stall=None))

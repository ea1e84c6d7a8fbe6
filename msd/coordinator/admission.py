"""Whether a rank that says where it stands can be of this run: it goes on, brings the run there, or is refused."""

from msd.coordinator.generations import Generations, not_ours
from msd.coordinator.history import History, position_digest
from msd.coordinator.standing import RankStanding
from msd.core.state import StateDict
from msd.errors import StateError


def brings_the_run(
    at: RankStanding, here: Generations, history: History, *, next_step: int, is_survived: bool, depth: int
) -> bool:
    """Return whether the run is to go on from where a rank stands, since it has not been there and nobody has begun.

    Args:
        at: Where the rank stands.
        here: Where the others stand.
        history: What is known of the generation.
        next_step: The step that is planned next.
        is_survived: Whether survivors said how the generation began: ranks may stand ahead of what is planned again.
        depth: Steps that a rank can be ahead of another.

    Raises:
        StateError: If the rank is of another run, naming its step and those of the others.
    """
    if at.generation < here.generation:
        return False
    is_present = at.generation == here.generation
    if is_present and here.first_step <= at.next_step <= next_step:
        _expect_same(at, history.position_before(at.next_step))
        return False
    if is_present and is_survived and at.next_step > next_step:
        _expect_same(at, history.position_before(at.next_step))
        return False
    if at.progress is None:
        if is_present and at.next_step > next_step:
            raise StateError(
                f"rank {at.rank} stands at step {at.next_step}, but this run has planned {next_step} steps; it "
                "belongs to another run: load the state that was saved last on every rank"
            )
        raise not_ours(at.rank, at.next_step, at.generation, f"which starts at step {here.first_step}", here)
    if is_present and is_survived and here.is_start_known:
        raise not_ours(at.rank, at.next_step, at.generation, f"which starts at step {here.first_step}", here)
    if is_present and not here.is_start_known:
        _expect_near(at, here, depth)
        _expect_same(at, history.position_before(at.next_step))
        return False
    begun = here.ranks_that_began_here()
    if begun:
        raise StateError(
            f"rank {at.rank} stands at step {at.next_step} of generation {at.generation}, but this run began again at "
            f"step {here.first_step} of generation {here.generation} and went on from there ({here.in_words()}): load "
            "the state that was saved last on every rank"
        )
    return True


def _expect_same(at: RankStanding, position: StateDict | None) -> None:
    """Raise `StateError` unless a rank brought the position that is known; edits that wait may be told or not."""
    if at.progress is not None and position is not None and position_digest(at.progress) != position_digest(position):
        raise StateError(
            f"rank {at.rank} stands at step {at.next_step} with another position than this run has there; it belongs "
            "to another run: load the state that was saved last on every rank"
        )


def _expect_near(at: RankStanding, here: Generations, depth: int) -> None:
    """Raise `StateError` if a rank stands further from where the others came in than ranks of one run can.

    Those that came first may have gone on alone since.
    """
    if max(here.brought_through, at.next_step) - min(here.first_step, at.next_step) > 2 * depth:
        raise StateError(
            f"rank {at.rank} stands at step {at.next_step}, and the others of this run elsewhere ({here.in_words()}), "
            f"further apart than {2 * depth} steps: load the state that was saved last on every rank"
        )

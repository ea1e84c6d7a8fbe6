"""Standings as plain values: what survivors of a planner hand to whoever makes the next one."""

from typing import Any

from msd.coordinator.standing import RankStanding, Standing
from msd.core.journal import edits_from_state, edits_to_state
from msd.runtime.dask.wire import Wire


def standing_to_wire(standing: Standing) -> Wire:
    """Return a standing as JSON-able values."""
    return {
        "generation": standing.generation,
        "first_step": standing.first_step,
        "start": standing.start,
        "digest": standing.digest,
        "opened_by": standing.opened_by,
        "edits": edits_to_state(standing.edits),
        "ranks": [rank_to_wire(rank) for rank in standing.ranks],
        "num_sessions": standing.num_sessions,
        "positions": [[step, position] for step, position in sorted(standing.positions.items())],
        "isolated": [list(row) for row in standing.isolated],
        "loads_before": standing.loads_before,
        "is_start_known": standing.is_start_known,
        "is_resumed": standing.is_resumed,
    }


def standing_from_wire(wire: Wire) -> Standing:
    """Return the standing that `standing_to_wire` took."""
    return Standing(
        **{
            **wire,
            "edits": edits_from_state(wire["edits"]),
            "ranks": tuple(rank_from_wire(rank) for rank in wire["ranks"]),
            "positions": {int(step): position for step, position in wire["positions"]},
            "isolated": tuple((source, ordinal) for source, ordinal in wire["isolated"]),
        }
    )


def rank_to_wire(rank: RankStanding) -> Wire:
    """Return where a rank stands as JSON-able values."""
    return {name: getattr(rank, name) for name in RankStanding.__slots__}


def rank_from_wire(wire: dict[str, Any]) -> RankStanding:
    """Return the standing that `rank_to_wire` took."""
    return RankStanding(**wire)

"""Standings as plain values: what survivors of a planner hand to whoever makes the next one."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from msd.client.link.messages import Stated
from msd.coordinator.standing import RankStanding, Stall, Standing
from msd.core.journal import edits_from_state, edits_to_state
from msd.core.state import StateDict
from msd.errors import StateError
from msd.runtime.dask.wire import Wire
from msd.runtime.state import progress_of


def standing_to_wire(standing: Standing) -> Wire:
    """Return a standing as JSON-able values."""
    return {
        "generation": standing.generation,
        "first_step": standing.first_step,
        "start": standing.start,
        "digest": standing.digest,
        "opened_by": standing.opened_by,
        "edits": edits_to_state(standing.edits),
        "num_forgotten": standing.num_forgotten,
        "ranks": [rank_to_wire(rank) for rank in standing.ranks],
        "num_sessions": standing.num_sessions,
        "positions": [[step, position] for step, position in sorted(standing.positions.items())],
        "isolated": [list(row) for row in standing.isolated],
        "loads_before": standing.loads_before,
        "is_start_known": standing.is_start_known,
        "is_resumed": standing.is_resumed,
        "stall": stall_to_wire(standing.stall),
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
            "stall": stall_from_wire(wire["stall"]),
        }
    )


def enriched(
    wire: Wire,
    *,
    ranks: Iterable[RankStanding],
    most_session: int,
    generation: int,
    positions: Mapping[int, StateDict],
) -> Wire:
    """Return a copy of a standing with what a constructor knows better.

    Args:
        wire: The copy.
        ranks: That are served there.
        most_session: The highest session that was seen there.
        generation: That `positions` are of.
        positions: The run's position before steps.
    """
    copied = standing_from_wire(wire)
    known = {rank.rank: rank for rank in (*copied.ranks, *ranks)}
    return standing_to_wire(
        replace(
            copied,
            ranks=tuple(known[rank] for rank in sorted(known)),
            num_sessions=max(copied.num_sessions, most_session),
            positions={**copied.positions, **(positions if generation == copied.generation else {})},
        )
    )


def stands_of(rank: int, stated: Stated, identity: StateDict, *, run: str) -> RankStanding:
    """Return where a rank stands that was connected before.

    Args:
        rank: Of the mesh.
        stated: What it says.
        identity: What order and content of the run that it reached depend on.
        run: That run.

    Raises:
        StateError: If the position that it brings is of another configuration or other data.
    """
    try:
        progress = progress_of(json.loads(stated.position), identity)
    except StateError as error:
        if stated.run == run:
            raise
        raise StateError(f"a rank of run {stated.run} reached run {run}, which cannot continue it: {error}") from None
    return RankStanding(
        rank=rank,
        generation=stated.generation,
        next_step=stated.next_step,
        num_loads=stated.num_loads,
        progress=progress,
    )


def stall_to_wire(stall: Stall | None) -> list[Any] | None:
    """Return what planning waits for as JSON-able values."""
    return None if stall is None else [stall.source, stall.ordinal, stall.waited_s]


def stall_from_wire(wire: list[Any] | None) -> Stall | None:
    """Return what `stall_to_wire` took."""
    return None if wire is None else Stall(*wire)


def rank_to_wire(rank: RankStanding) -> Wire:
    """Return where a rank stands as JSON-able values."""
    return {name: getattr(rank, name) for name in RankStanding.__slots__}


def rank_from_wire(wire: dict[str, Any]) -> RankStanding:
    """Return the standing that `rank_to_wire` took."""
    return RankStanding(**wire)

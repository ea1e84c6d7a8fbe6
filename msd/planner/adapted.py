"""A position taken to a run with other sources, another mixture or, where it is forced, another batch."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from msd.core.journal import Edit
from msd.core.state import StateDict
from msd.errors import StateError
from msd.planner.edits import InForce, pending_without
from msd.planner.piece import Piece
from msd.planner.primitives.pack import Pack
from msd.planner.saved import SavedProgress, SavedRemoved, SavedSteering

FORCE = "force"
"""Key of a position that is loaded although settings of the batch differ: see `FORCED`."""
FORCED = frozenset({"global_batch_size", "lookahead", "last", "objective", "max_age", "limits", "oversize", "apart"})
"""Keys of a position that may be others then: what waits is packed by the new settings."""
FREE = frozenset({"strategy_mixture"})
"""Keys that may always be others: steps from here on are made by the new value."""


@dataclass(frozen=True, slots=True)
class Adapted:
    """What is left of a position."""

    saved: SavedProgress
    """Without sources that the run has not."""
    in_force: InForce
    pending: tuple[Edit, ...]
    owed: int = 0
    """What sources that are gone were owed: it goes to the others."""
    notes: tuple[str, ...] = ()
    """For people: what was dropped, what does not count as it may seem."""


def adapted(saved: SavedProgress, names: Collection[str]) -> Adapted:
    """Return a position as it is for a run with other sources.

    Sources that are gone leave what they were owed; their samples that wait cannot be had any more. What they were
    drawn stays counted, so that clocks do not run backwards.

    Args:
        saved: The position.
        names: Sources of the run.
    """
    in_force, pending = InForce.of(saved.acting, saved.ramp_from), saved.waiting
    gone = {name: source for name, source in saved.sources.items() if name not in names}
    notes = _without_share(in_force, [name for name in names if name not in saved.sources])
    if not gone:
        return Adapted(saved, in_force, pending, notes=tuple(notes))
    carry = [piece for piece in saved.carry if piece.source not in gone]
    for name in sorted(gone):
        waited = sum(piece.source == name for piece in saved.carry)
        notes.append(f"source {name!r} is gone{f': {waited} samples of it that waited are dropped' if waited else ''}")
    if in_force.weights is not None and in_force.without(gone).weights is None:
        notes.append("every source that had a weight by an edit is gone: the weights of the configuration hold")
    before = saved.removed or SavedRemoved()
    removed = SavedRemoved(
        ordinal=before.ordinal + sum(source.ordinal for source in gone.values()),
        tokens=before.tokens + sum(source.tokens for source in gone.values()),
        samples=before.samples + sum(source.samples for source in gone.values()),
    )
    left = msgspec.structs.replace(
        saved,
        sources={name: source for name, source in saved.sources.items() if name not in gone},
        carry=carry,
        removed=removed,
        mixture=None if saved.mixture is None else _steering_without(saved.mixture, gone),
    )
    owed = sum(source.credit for source in gone.values())
    return Adapted(left, in_force.without(gone), pending_without(pending, gone), owed, tuple(notes))


def removed_state(removed: SavedRemoved | None) -> StateDict:
    """Return the key of a position that tells what sources were drawn that are gone: none without any."""
    return {} if removed is None else {"removed": msgspec.structs.asdict(removed)}


def check_what_waits(carry: Collection[Piece], names: Collection[str], pack: Pack) -> None:
    """Raise `StateError` if samples that wait cannot be packed by settings of the batch that were forced."""
    ordered = tuple(names)
    for piece in carry:
        excess = pack.limits.excess(piece)
        if excess and pack.oversize == "error":
            raise StateError(
                f"cannot resume: sample {ordered[piece.source]}:{piece.ordinal}.{piece.part} waits and fits no "
                f"sequence: {excess}; set batch.oversize: drop, or save again once it waits no more"
            )


def _without_share(in_force: InForce, added: Collection[str]) -> list[str]:
    edit = in_force.weights
    if edit is None:
        return []
    return [
        f"source {name!r} is new and is not drawn: the weights that were set at step {edit.at_step} hold, and leave it "
        "out; set them again to give it a share"
        for name in added
        if not edit.weights.get(name)
    ]


def _steering_without(steering: SavedSteering, gone: Mapping[str, Any]) -> SavedSteering:
    def left(values: Mapping[str, float]) -> dict[str, float]:
        return {name: value for name, value in values.items() if name not in gone}

    weights = None if steering.weights is None else left(steering.weights)
    return msgspec.structs.replace(
        steering,
        weights=weights if weights and any(weights.values()) else None,
        losses=left(steering.losses),
    )

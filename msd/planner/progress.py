"""How the planner's position is written down and read back: O(sources), JSON-able, refused by name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msd.core.state import StateDict
from msd.errors import StateError
from msd.planner.intake import SourceIntake
from msd.planner.piece import Piece
from msd.planner.primitives.mix import Credits
from msd.planner.primitives.pack import Pack
from msd.planner.settings import PlannerSettings

STATE_VERSION = 1
Geometry = Mapping[str, tuple[Any, str]]
"""What the order depends on: key of the state to (value, name of the setting)."""
_MALFORMED = "cannot resume: the state is incomplete ({error!r}); pass what state_dict() returned, unchanged"


def geometry_of(settings: PlannerSettings, pack: Pack) -> Geometry:
    """Return what the membership of steps depends on, besides weights and data."""
    return {
        "version": (STATE_VERSION, "version of the planner's state"),
        "unit": (settings.mixture.unit, "mixture.unit"),
        "sequence_length": (pack.sequence_length, "batch.sequence_length"),
        "global_batch_size": (pack.num_sequences, "batch.global_batch_size"),
        "packing": (pack.method, "batch.packing.method"),
        "lookahead": (pack.lookahead, "batch.packing.lookahead"),
        "document_multiple": (pack.document_multiple, "batch.document_multiple"),
        "last": (settings.batch.last, "batch.last"),
    }


def snapshot(
    geometry: Geometry, step: int, intakes: Sequence[SourceIntake], credits: Credits, carry: Iterable[Piece]
) -> StateDict:
    """Return the position of a planner at the boundary before `step`."""
    names = [intake.terms.name for intake in intakes]
    return {
        **{key: value for key, (value, _) in geometry.items()},
        "step": step,
        "sources": {
            intake.terms.name: {**intake.state_dict(), "credit": credit}
            for intake, credit in zip(intakes, credits.as_list(), strict=True)
        },
        "carry": _pieces_to_state(carry, names),
    }


def expect_geometry(state: StateDict, geometry: Geometry) -> None:
    """Raise `StateError` unless a state has each value of `geometry`."""
    for key, (value, setting) in geometry.items():
        if not isinstance(state, dict) or key not in state:
            raise StateError(f"cannot resume: the state has no {key!r}; pass what state_dict() returned, unchanged")
        if state[key] != value:
            raise StateError(
                f"cannot resume: the state was saved with {setting} {state[key]!r}, this run has {value!r}; "
                f"set {setting}: {state[key]}"
            )


def source_states(state: StateDict, intakes: Sequence[SourceIntake], credits: Credits) -> None:
    """Put sources and credits where `state` was saved; a source that the state does not know starts at 0.

    Raises:
        StateError: If the state has a source that the run has not, or is not whole.
    """
    try:
        saved = state["sources"]
        known = {intake.terms.name for intake in intakes}
        gone = sorted(set(saved) - known)
        if gone:
            raise StateError(
                f"cannot resume: the state has source {gone[0]!r}, this run has not; keep it, with weight 0 if it is "
                "no longer to be drawn"
            )
        for intake in intakes:
            if intake.terms.name in saved:
                intake.load_state_dict(saved[intake.terms.name])
        credits.load([int(saved.get(intake.terms.name, {"credit": 0})["credit"]) for intake in intakes])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(_MALFORMED.format(error=error)) from None


def _pieces_to_state(pieces: Iterable[Piece], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return carried samples with all that planning must know of them."""
    return [
        {**piece._asdict(), "source": names[piece.source], "runs": [list(run) for run in piece.runs]}
        for piece in pieces
    ]


def pieces_from_state(state: StateDict, names: Sequence[str]) -> tuple[Piece, ...]:
    """Return the samples that a state carries.

    Raises:
        StateError: If the state is not whole.
    """
    try:
        int(state["step"])
        return tuple(
            Piece(
                **{
                    **entry,
                    "source": names.index(entry["source"]),
                    "runs": tuple((int(first), int(last)) for first, last in entry["runs"]),
                }
            )
            for entry in state["carry"]
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(_MALFORMED.format(error=error)) from None


def first_needed(progress: StateDict) -> dict[str, int]:
    """Return for each source the first row that steps after `progress` may still hold."""
    first = {name: int(saved["ordinal"]) for name, saved in progress["sources"].items()}
    for entry in progress["carry"]:
        first[entry["source"]] = min(first[entry["source"]], int(entry["ordinal"]))
    return first

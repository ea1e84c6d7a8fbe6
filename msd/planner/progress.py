"""How the planner's position is written down and read back: O(sources), JSON-able, refused by name."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msd.core.state import StateDict
from msd.errors import StateError
from msd.planner.intake import SourceIntake
from msd.planner.mixture.mixer import Mixer
from msd.planner.piece import Piece
from msd.planner.primitives.pack import Pack
from msd.planner.saved import SavedProgress, damaged
from msd.planner.settings import PlannerSettings

STATE_VERSION = 1
Geometry = Mapping[str, tuple[Any, str]]
"""What the order depends on: key of the state to (value, name of the setting)."""


def geometry_of(settings: PlannerSettings, pack: Pack) -> Geometry:
    """Return what the membership of steps depends on, besides weights and data."""
    parts = {"num_microbatches": (settings.num_microbatches, "num_microbatches")}
    return {
        **(parts if settings.mixture.clock == "microbatch" else {}),
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
    geometry: Geometry, step: int, intakes: Sequence[SourceIntake], mixer: Mixer, carry: Iterable[Piece]
) -> StateDict:
    """Return the position of a planner at the boundary before `step`."""
    names = _names(intakes)
    steering = {} if mixer.steering is None else {"mixture": mixer.steering.state_dict()}
    return {
        **{key: value for key, (value, _) in geometry.items()},
        "step": step,
        "sources": {
            intake.terms.name: {**intake.state_dict(), "credit": credit}
            for intake, credit in zip(intakes, mixer.credits.as_list(), strict=True)
        },
        "carry": _pieces_to_state(carry, names),
        **steering,
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


def source_states(saved: SavedProgress, intakes: Sequence[SourceIntake]) -> list[int]:
    """Put sources where `saved` was and return what each is owed; a source that it does not know starts at 0.

    Raises:
        StateError: If it has a source that the run has not, or one that does not stand where this run's can.
    """
    gone = sorted(set(saved.sources) - set(_names(intakes)))
    if gone:
        raise StateError(
            f"cannot resume: the state has source {gone[0]!r}, this run has not; keep it, with weight 0 if it is "
            "no longer to be drawn"
        )
    for intake in intakes:
        if intake.terms.name in saved.sources:
            intake.load(saved.sources[intake.terms.name])
    return [saved.sources[name].credit if name in saved.sources else 0 for name in _names(intakes)]


def _names(intakes: Sequence[SourceIntake]) -> list[str]:
    return [intake.terms.name for intake in intakes]


def _pieces_to_state(pieces: Iterable[Piece], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return carried samples with all that planning must know of them."""
    return [_piece_to_state(piece, names[piece.source]) for piece in pieces]


def _piece_to_state(piece: Piece, source: str) -> dict[str, Any]:
    values = {**piece._asdict(), "source": source, "runs": [list(run) for run in piece.runs]}
    patches = values.pop("image_patches")
    return values | ({"image_patches": list(patches)} if patches else {})


def carried(
    saved: SavedProgress, names: Sequence[str], pack: Pack, *, tell_images_apart: bool = False
) -> tuple[Piece, ...]:
    """Return the samples that a state carries.

    Args:
        saved: The state.
        names: Of the sources, in order.
        pack: What can wait.
        tell_images_apart: Whether the patches of each image must be known.

    Raises:
        StateError: If they are more, or longer, than what can wait, or their images are not told apart.
    """
    if len(saved.carry) > pack.most_carried:
        raise damaged(f"carry has {len(saved.carry)} samples, at most {pack.most_carried} can wait")
    for piece in saved.carry:
        if piece.length > pack.sequence_length:
            raise damaged(f"carry.length cannot be {piece.length}")
        if tell_images_apart and piece.num_images > 1 and not piece.image_patches:
            raise StateError(
                f"cannot resume: sample ({piece.source!r}, {piece.ordinal}, {piece.part}) waits with "
                f"{piece.num_images} images, and a state saved by a strategy that does not encode images apart from "
                "their rows tells no size of each; resume with that strategy, and save again once such samples wait "
                "no more"
            )
    return tuple(
        Piece(
            names.index(piece.source), piece.ordinal, piece.part, piece.start, piece.length, piece.num_valid,
            piece.num_image_tokens, piece.num_images, piece.num_patches, tuple(piece.runs), tuple(piece.image_patches),
        )
        for piece in saved.carry
    )  # fmt: skip


def first_needed(progress: StateDict) -> dict[str, int]:
    """Return for each source the first row that steps after `progress` may still hold."""
    first = {name: int(saved["ordinal"]) for name, saved in progress["sources"].items()}
    for entry in progress["carry"]:
        first[entry["source"]] = min(first[entry["source"]], int(entry["ordinal"]))
    return first

"""How the planner's position is written down and read back: O(sources), JSON-able, refused by name."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from msd.core.state import StateDict, fingerprint
from msd.errors import StateError
from msd.planner.dgraph import Strategy
from msd.planner.intake import SourceIntake
from msd.planner.mixture.mixer import Mixer
from msd.planner.mixture.schedule import MixtureSchedule
from msd.planner.piece import Piece
from msd.planner.primitives.pack import Pack
from msd.planner.saved import SavedPiece, SavedProgress, damaged
from msd.planner.settings import PlannerSettings
from msd.planner.strategy import configured_schedule

STATE_VERSION = 1
Geometry = Mapping[str, tuple[Any, str]]
"""What the order depends on: key of the state to (value, name of the setting)."""
MULTIPLES = ("document_multiple", "multiple_of")
"""What may be left to the mesh that a run starts with."""
_OPTIONS = {
    "objective": "batch.packing.objective",
    "max_age": "batch.packing.max_age",
    "limits": "batch.limits",
    "oversize": "batch.oversize",
    "tokens_per_step": "batch.tokens_per_step",
    "batch_schedule": "batch.schedule",
    "multiple_of": "batch.multiple_of",
    "apart": "pack(apart=...) of the strategy",
    "strategy_mixture": "mix(...) of the strategy",
}
"""Keys of a state that only runs have which use the setting."""


def geometry_of(settings: PlannerSettings, strategy: Strategy) -> Geometry:
    """Return what the membership of steps depends on, besides the configured weights and data."""
    pack, schedule = strategy.pack, strategy.mix.schedule
    own = {} if schedule == configured_schedule(settings) else {"strategy_mixture": _in_full(schedule)}
    parts = {"num_microbatches": (settings.num_microbatches, "num_microbatches")}
    return {
        **(parts if strategy.mix.schedule.clock.kind == "microbatch" else {}),
        **_set_options(settings, pack, own),
        "version": (STATE_VERSION, "version of the planner's state"),
        "unit": (settings.mixture.unit, "mixture.unit"),
        "sequence_length": (pack.sequence_length, "batch.sequence_length"),
        "global_batch_size": (
            pack.num_sequences if pack.schedule is None else settings.batch.global_batch_size,
            "batch.global_batch_size",
        ),
        "packing": (pack.method, "batch.packing.method"),
        "lookahead": (pack.lookahead, "batch.packing.lookahead"),
        "document_multiple": (pack.document_multiple, "batch.document_multiple"),
        "last": (settings.batch.last, "batch.last"),
    }


def with_multiples_of(state: StateDict, settings: PlannerSettings) -> PlannerSettings:
    """Return settings with the multiples that a state was saved with, where they are left to the mesh.

    Raises:
        StateError: If one does not serve this mesh; names the number that serves both.
    """
    fixed: dict[str, Any] = {}
    for name in MULTIPLES:
        saved, needed = state.get(name), getattr(settings, name)
        is_left_to_mesh = getattr(settings.batch, name) == "auto"
        if not is_left_to_mesh or not isinstance(saved, int) or saved < 1 or saved == needed:
            continue
        if saved % needed:
            raise StateError(
                f"cannot resume: batch.{name} is fixed at a run's start, this one's is {saved}, and this mesh needs a "
                f"multiple of {needed}; resume on a mesh that {saved} serves, or start a run that is to use both "
                f"meshes with batch.{name}: {math.lcm(saved, needed)}"
            )
        fixed[name] = saved
    return replace(settings, **fixed) if fixed else settings


def snapshot(
    geometry: Geometry, step: int, intakes: Sequence[SourceIntake], mixer: Mixer, carry: Iterable[Piece]
) -> StateDict:
    """Return the position of a planner at the boundary before `step`, but for edits."""
    names = _names(intakes)
    steering = {} if mixer.steering is None else {"mixture": mixer.steering.state_dict()}
    return {
        **{key: value for key, (value, _) in geometry.items()},
        "step": step,
        "sources": {
            intake.terms.name: {**intake.state_dict(), "credit": credit}
            for intake, credit in zip(intakes, mixer.credits.as_list(), strict=True)
        },
        "carry": _pieces_to_state(carry, names, with_age="max_age" in geometry),
        **steering,
    }


def expect_geometry(state: StateDict, geometry: Geometry, *, but: Collection[str] = ()) -> None:
    """Raise `StateError` unless a state has each value of `geometry`, keys in `but` aside, and no option besides.

    A setting of the mixture may be new to the state: the order from here on follows it.
    """
    if not isinstance(state, dict):
        raise damaged(f"it is {type(state).__name__}")
    options = {key: (None, setting) for key, setting in _OPTIONS.items()}
    for key, (value, setting) in {**options, **geometry}.items():
        if key in but:
            continue
        if key not in state and key == "num_microbatches":
            continue
        if key not in state and key not in _OPTIONS:
            raise StateError(f"cannot resume: the state has no {key!r}; pass what state_dict() returned, unchanged")
        saved = state.get(key)
        if saved != value:
            here, there = ("its default" if found is None else repr(found) for found in (value, saved))
            raise StateError(
                f"cannot resume: the state was saved with {setting} {there}, this run has {here}; "
                f"set {setting}: {saved}"
            )


def notes_of_geometry(state: StateDict, geometry: Geometry) -> list[str]:
    """Return what is told where a strategy mixes otherwise than when a state was saved."""
    here, _ = geometry.get("strategy_mixture", (None, ""))
    if state.get("strategy_mixture") == here:
        return []
    return ["the mixture of the strategy is another than the one that the state was saved with"]


def source_states(saved: SavedProgress, intakes: Sequence[SourceIntake]) -> list[int]:
    """Put sources where `saved` was and return what each is owed; a source that it does not know starts at 0.

    Raises:
        StateError: If one does not stand where this run's can.
    """
    for intake in intakes:
        if intake.terms.name in saved.sources:
            intake.load(saved.sources[intake.terms.name])
    return [saved.sources[name].credit if name in saved.sources else 0 for name in _names(intakes)]


def _names(intakes: Sequence[SourceIntake]) -> list[str]:
    return [intake.terms.name for intake in intakes]


def _set_options(settings: PlannerSettings, pack: Pack, own: dict[str, str]) -> dict[str, tuple[Any, str]]:
    """Return the options that are used: a state without them is one of a run that does without."""
    schedule = pack.schedule
    limits = dict(zip(pack.limits.names, pack.limits.caps, strict=True))
    used: dict[str, Any] = {
        **own,
        "apart": pack.apart,
        "objective": pack.objective if pack.objective != "fill" else None,
        "max_age": pack.max_age if pack.needs_age or pack.max_age == 1 else None,
        "limits": limits or None,
        "oversize": pack.oversize if pack.oversize != "error" else None,
    }
    if schedule is not None:
        stages = [msgspec.structs.asdict(stage) for stage in settings.batch.schedule]
        used |= {
            "tokens_per_step": settings.batch.tokens_per_step,
            "batch_schedule": stages or None,
            "multiple_of": schedule.multiple_of if schedule.rounds else None,
        }
    return {key: (value, _OPTIONS[key]) for key, value in used.items() if value is not None}


def _in_full(schedule: MixtureSchedule) -> str:
    """Return a schedule in words, and a fingerprint of what they round."""
    return f"{schedule} [{fingerprint(repr(schedule))}]"


def _pieces_to_state(pieces: Iterable[Piece], names: Sequence[str], *, with_age: bool) -> list[dict[str, Any]]:
    """Return carried samples with all that planning must know of them."""
    entries = [_piece_to_state(piece, names[piece.source]) for piece in pieces]
    if not with_age:
        for entry in entries:
            del entry["drawn"]
    return entries


def _piece_to_state(piece: Piece, source: str) -> dict[str, Any]:
    values = {**piece._asdict(), "source": source, "runs": [list(run) for run in piece.runs]}
    patches, inner = values.pop("image_patches"), values.pop("inner")
    values |= {"image_patches": list(patches)} if patches else {}
    return values | ({"inner": [list(document[4:9]) for document in inner]} if inner else {})


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
        if piece.length > pack.longest:
            raise damaged(f"carry.length cannot be {piece.length}")
        if tell_images_apart and piece.num_images > 1 and not piece.image_patches:
            raise StateError(
                f"cannot resume: sample ({piece.source!r}, {piece.ordinal}, {piece.part}) waits with "
                f"{piece.num_images} images, and a state saved by a strategy that does not encode images apart from "
                "their rows tells no size of each; resume with that strategy, and save again once such samples wait "
                "no more"
            )
    return tuple(_piece_of(piece, names.index(piece.source)) for piece in saved.carry)


def _piece_of(saved: SavedPiece, source: int) -> Piece:
    patches = tuple(saved.image_patches)
    if not saved.inner:
        return Piece(
            source, saved.ordinal, saved.part, saved.start, saved.length, saved.num_valid, saved.num_image_tokens,
            saved.num_images, saved.num_patches, tuple(saved.runs), patches, saved.drawn,
        )  # fmt: skip
    documents, before = [], 0
    for part, (length, num_valid, num_image_tokens, num_images, num_patches) in enumerate(saved.inner):
        end = before + num_images
        told = patches[before:end] if num_images > 1 else ()
        documents.append(
            Piece(
                source, saved.ordinal, part, 0, length, num_valid, num_image_tokens, num_images, num_patches, (), told
            )
        )
        before = end
    return Piece.whole(documents, saved.length)._replace(drawn=saved.drawn)


def first_needed(progress: StateDict) -> dict[str, int]:
    """Return for each source the first row that steps after `progress` may still hold."""
    first = {name: int(saved["ordinal"]) for name, saved in progress["sources"].items()}
    for entry in progress["carry"]:
        first[entry["source"]] = min(first[entry["source"]], int(entry["ordinal"]))
    return first

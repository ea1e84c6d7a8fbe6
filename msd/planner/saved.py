"""A planner's position as it is written down: every value of one that is read back is checked."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from msd.core.journal import Edit, Report, Resume, SetWeights, SkipSteps, edits_from_state
from msd.core.sample import Outcome
from msd.core.state import StateDict
from msd.errors import ConfigError, StateError
from msd.planner.edits import check_edit

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Length = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
NUM_BARREN = 1 + Outcome.OVERFLOWED + 1
"""The epoch, and counts of the outcomes that are common; those of the rare ones follow where there are any."""
MOST_BARREN = 1 + len(Outcome)


class SavedSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where one source stands; see `SourceIntake` for what the values mean."""

    rows: Count
    ordinal: Count
    part: Length
    tokens: Count
    samples: Count
    ended: bool
    bad: list[tuple[Count, Count]]
    survivor_epoch: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
    barren: Annotated[list[Count], msgspec.Meta(min_length=NUM_BARREN, max_length=MOST_BARREN)]
    credit: Annotated[int, msgspec.Meta(ge=-(2**60), le=2**60)]
    start: Length = 0
    ledger: tuple[Count, Annotated[str, msgspec.Meta(max_length=64)]] | None = None
    """Of a source without an end, once a row of it was consumed."""


class SavedPiece(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sample that waits; see `Piece`."""

    source: str
    ordinal: Count
    part: Length
    start: Length
    length: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    num_valid: Length
    num_image_tokens: Length
    num_images: Length
    num_patches: Length
    runs: list[tuple[Length, Length]]
    image_patches: list[Length] = []
    drawn: Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)] = 0
    inner: list[Annotated[list[Length], msgspec.Meta(min_length=5, max_length=5)]] = []
    """Of a row that was packed before, by document: length, labels, image tokens, images, patches."""


Finite = Annotated[float, msgspec.Meta(ge=-1e308, le=1e308)]
Weight = Annotated[float, msgspec.Meta(ge=0, le=1e100)]


class SavedSteering(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was reported of the sources; see `msd.planner.mixture.feedback`."""

    weights: dict[str, Weight] | None
    losses: dict[str, Finite]


class SavedRemoved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was drawn of sources that a run had once: clocks go on from there."""

    ordinal: Count = 0
    """Rows."""
    tokens: Count = 0
    samples: Count = 0


class SavedProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The position, but for the settings that it was saved under."""

    step: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    sources: dict[str, SavedSource]
    carry: list[SavedPiece]
    mixture: SavedSteering | None = None
    """Only of runs with feedback."""
    edits: list[Any] = []
    """That act; see `msd.planner.edits.InForce`."""
    pending: list[Any] = []
    """That wait for their step."""
    ramp_from: dict[str, Weight] | None = None
    removed: SavedRemoved | None = None
    """Only where the run has lost sources."""

    @property
    def acting(self) -> tuple[Edit, ...]:
        """The edits that act, as values."""
        return edits_from_state(self.edits)

    @property
    def waiting(self) -> tuple[Edit, ...]:
        """The edits that wait, as values."""
        return edits_from_state(self.pending)


def read_progress(state: StateDict) -> SavedProgress:
    """Return a state as values that can be trusted to be what they say they are.

    Raises:
        StateError: Naming the first value that is missing, of another type, or cannot be.
    """
    try:
        saved: SavedProgress = msgspec.convert(state, SavedProgress, strict=True)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise damaged(str(error)) from None
    for name, source in saved.sources.items():
        _check_source(name, source)
    for piece in saved.carry:
        _check_piece(piece, saved.sources)
        _refuse("carry", {"drawn": piece.drawn if piece.drawn > saved.step else None})
    if saved.mixture is not None:
        _check_steering(saved.mixture, saved.sources)
    _check_edits(saved)
    return saved


def damaged(found: str) -> StateError:
    """Return what to raise for a state that is no longer what was saved."""
    return StateError(f"cannot resume: the state is damaged ({found}); pass what state_dict() returned, unchanged")


def _check_source(name: str, source: SavedSource) -> None:
    epoch = source.ordinal // source.rows if source.rows else 0
    barren_epoch, *_ = source.barren
    buckets = [bucket for bucket, _ in source.bad]
    impossible: dict[str, Any] = {
        "ordinal": source.ordinal if source.ordinal and not source.rows else None,
        "survivor_epoch": source.survivor_epoch if source.survivor_epoch > epoch else None,
        "barren": source.barren if barren_epoch > epoch else None,
        "bad": source.bad if buckets != sorted(set(buckets)) else None,
    }
    _refuse(f"sources.{name}", impossible)


def _check_piece(piece: SavedPiece, sources: Mapping[str, SavedSource]) -> None:
    known = sources.get(piece.source)
    flat = [place for run in piece.runs for place in run]
    impossible: dict[str, Any] = {
        "source": piece.source if known is None else None,
        "ordinal": piece.ordinal if known is not None and piece.ordinal > known.ordinal else None,
        "num_valid": piece.num_valid if piece.num_valid > piece.length else None,
        "num_image_tokens": piece.num_image_tokens if piece.num_image_tokens > piece.length else None,
        "runs": piece.runs if flat != sorted(flat) else None,
        "image_patches": piece.image_patches if piece.image_patches and not _is_whole(piece) else None,
        "inner": piece.inner if piece.inner and not _holds(piece) else None,
    }
    _refuse("carry", impossible)


def _check_steering(steering: SavedSteering, sources: Mapping[str, SavedSource]) -> None:
    named = [*(steering.weights or ()), *steering.losses]
    impossible: dict[str, Any] = {
        "source": next((name for name in named if name not in sources), None),
        "weights": steering.weights if steering.weights is not None and not any(steering.weights.values()) else None,
    }
    _refuse("mixture", impossible)


def _check_edits(saved: SavedProgress) -> None:
    acting, waiting = saved.acting, saved.waiting
    for edit in (*acting, *waiting):
        try:
            check_edit(edit, dict.fromkeys(saved.sources))
        except ConfigError as error:
            raise damaged(str(error)) from None
    ramp = next((edit for edit in acting if isinstance(edit, SetWeights) and edit.ramp), None)
    names = saved.ramp_from or {}
    impossible: dict[str, Any] = {
        "edits": next((edit for edit in acting if isinstance(edit, Resume | SkipSteps | Report)), None),
        "pending": next((edit for edit in waiting if edit.at_step < saved.step), None),
        "ramp_from": names if set(names) - set(saved.sources) or (names and ramp is None) else None,
    }
    early = next((edit for edit in acting if edit.at_step >= saved.step), None)
    _refuse("state", {**impossible, "edits": impossible["edits"] or early})


def _is_whole(piece: SavedPiece) -> bool:
    """Return whether the patches of a sample's images are those of the sample."""
    return len(piece.image_patches) == piece.num_images > 1 and sum(piece.image_patches) == piece.num_patches


def _holds(piece: SavedPiece) -> bool:
    """Return whether a packed row can have the documents that it is said to have."""
    num_tokens, *others = map(sum, zip(*piece.inner, strict=True))
    held = [piece.num_valid, piece.num_image_tokens, piece.num_images, piece.num_patches]
    images = len(piece.image_patches)
    return num_tokens <= piece.length and others == held and images in (0, piece.num_images) and piece.start == 0


def _refuse(where: str, impossible: Mapping[str, Any]) -> None:
    for field, value in impossible.items():
        if value is not None:
            raise damaged(f"{where}.{field} cannot be {str(value)[:60]}")

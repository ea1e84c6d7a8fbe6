"""Samples, what is known of them, and how many of them travel together.

A *row* of a source gives any number of *parts*; each part is a sample with the identity (source, ordinal, part).
"""

# R = rows examined, by ordinal. S = samples (parts), in (ordinal, part) order. T = tokens. I = images. P = patches.
# F = values of one patch (patch * patch * 3).

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from msd.core.arrays import Int32Array, Int64Array, UInt8Array

RawSample = dict[str, Any]
"""One row as a source gave it: field name to value."""


class SampleId(NamedTuple):
    """Identity of a sample; never reused."""

    source: str
    ordinal: int
    """Position of the row in its source's sequence, through all epochs."""
    part: int
    """Which of the samples that the row gave."""


class Outcome(IntEnum):
    """What became of a row."""

    OK = 0
    """It gave its parts; zero parts if a filter or a transform chose so."""
    FILTERED = 1
    """A transform chose to give nothing."""
    FAILED = 2
    """A transform or the decoder raised; counts towards `on_error.max_rate`."""
    OVERFLOWED = 3
    """All of it was longer than a sequence and the source says `overflow: drop`."""
    KILLED = 4
    """It ended or hung its process twice and is never tried again; counts towards `on_error.max_rate`."""
    SKIPPED = 5
    """Somebody asked for it to be passed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A row that failed: enough to find it again."""

    ordinal: int
    reason: str
    """One line: the exception's type and message, and the transform that raised."""
    shard: str
    row: int
    """Row number within the shard."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleImages:
    """Images of one sample."""

    pixels_PF: UInt8Array
    """Patches of all images, one after another; within an image in the order that its grid is flattened."""
    grids_I3: Int32Array
    """(t, h, w) in patches."""
    starts_I: Int32Array
    """Position in the sample of each image's first placeholder token."""

    @property
    def num_patches_I(self) -> Int32Array:
        """Patches of each image."""
        num_patches_I: Int32Array = self.grids_I3.prod(axis=1, dtype=np.int32)
        return num_patches_I


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One training example after transforms."""

    id: SampleId
    tokens_T: Int32Array
    """Token ids; the first `num_image_tokens` are image placeholders."""
    num_image_tokens: int = 0
    trained_T: UInt8Array | None = None
    """1 where the token is to be learned as a target, 0 where it is context only; None learns all."""
    images: SampleImages | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of payload."""
        total = self.tokens_T.nbytes + (0 if self.trained_T is None else self.trained_T.nbytes)
        return total + (0 if self.images is None else self.images.pixels_PF.nbytes + self.images.grids_I3.nbytes)

    def label_runs(self) -> Int32Array:
        """Return the half-open runs of positions that carry a label, as [runs, 2].

        Position j carries a label when token j + 1 exists, is to be learned, and neither j nor j + 1 is an image
        placeholder. A cut part carries those of its positions whose target is inside the cut.
        """
        first, end = self.num_image_tokens, len(self.tokens_T) - 1
        if self.trained_T is None:
            return np.array([[first, end]] if end > first else np.empty((0, 2)), dtype=np.int32)
        labelled = np.zeros(len(self.tokens_T) + 1, dtype=np.int8)
        labelled[first:end] = self.trained_T[first + 1 :] != 0 if end > first else 0
        edge = np.flatnonzero(np.diff(np.concatenate([[0], labelled])))
        return edge.reshape(-1, 2).astype(np.int32)


class AdmittedFrom(NamedTuple):
    """Where in the ledger of a source without an end rows stand."""

    first: int
    """Ordinal of the first row of the admission."""
    through: int
    """Admissions up to it, itself included."""
    chain: str
    """Digest of all of these."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetaTable:
    """What the planner may know of consecutive rows of one source: columns, never payload."""

    source: str
    start: int
    """Ordinal of the first row examined; row r has ordinal `start + r`."""
    num_parts_R: Int32Array
    outcome_R: UInt8Array
    num_tokens_S: Int32Array
    """Tokens of the sample as packed, image placeholders included, before rounding up to the document multiple."""
    num_image_tokens_S: Int32Array
    num_images_S: Int32Array
    num_patches_S: Int32Array
    num_bytes_S: Int64Array
    """Bytes of payload."""
    num_runs_S: Int32Array
    """Runs of labelled positions of each sample; see `Sample.label_runs`."""
    runs_L2: Int32Array
    """Those runs, sample after sample, half-open."""
    num_patches_I: Int32Array = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    """Patches of each image, sample after sample."""
    failures: tuple[Failure, ...] = ()
    admissions: tuple[AdmittedFrom, ...] = ()
    """Of a source without an end: those that the rows are of, in order."""

    @property
    def num_rows(self) -> int:
        """Rows examined."""
        return len(self.num_parts_R)

    @property
    def end(self) -> int:
        """Ordinal after the last row examined."""
        return self.start + self.num_rows

    @classmethod
    def of(
        cls,
        source: str,
        start: int,
        rows: Sequence[tuple[Outcome, Sequence[Sample]]],
        failures: Sequence[Failure] = (),
    ) -> "MetaTable":
        """Return the table of consecutive rows from their outcomes and samples."""
        samples = [sample for _, parts in rows for sample in parts]
        runs = [sample.label_runs() for sample in samples]
        return cls(
            source=source,
            start=start,
            num_parts_R=np.array([len(parts) for _, parts in rows], dtype=np.int32),
            outcome_R=np.array([outcome for outcome, _ in rows], dtype=np.uint8),
            num_tokens_S=np.array([len(sample.tokens_T) for sample in samples], dtype=np.int32),
            num_image_tokens_S=np.array([sample.num_image_tokens for sample in samples], dtype=np.int32),
            num_images_S=np.array([0 if s.images is None else len(s.images.grids_I3) for s in samples], dtype=np.int32),
            num_patches_S=np.array(
                [0 if s.images is None else len(s.images.pixels_PF) for s in samples], dtype=np.int32
            ),
            num_bytes_S=np.array([sample.nbytes for sample in samples], dtype=np.int64),
            num_runs_S=np.array([len(run) for run in runs], dtype=np.int32),
            runs_L2=np.concatenate([np.empty((0, 2), dtype=np.int32), *runs]),
            num_patches_I=np.concatenate(
                [np.empty(0, dtype=np.int32), *(s.images.num_patches_I for s in samples if s.images is not None)]
            ),
            failures=tuple(failures),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleSlab:
    """Payload of many samples as few large arrays: what goes from loaders to constructors."""

    ids: tuple[SampleId, ...]
    tokens: Int32Array
    token_ends_S: Int64Array
    num_image_tokens_S: Int32Array
    trained: UInt8Array
    """Concatenated masks of the samples that have one."""
    has_trained_S: UInt8Array
    pixels_PF: UInt8Array
    grids_I3: Int32Array
    starts_I: Int32Array
    num_images_S: Int32Array
    _place: dict[SampleId, int] = field(init=False, repr=False)
    _mask_ends_S: Int64Array = field(init=False, repr=False)
    _image_ends_S: Int64Array = field(init=False, repr=False)
    _patch_ends_I: Int64Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_place", {sample_id: index for index, sample_id in enumerate(self.ids)})
        length_S = np.diff(self.token_ends_S, prepend=0)
        object.__setattr__(self, "_mask_ends_S", np.cumsum(length_S * self.has_trained_S))
        object.__setattr__(self, "_image_ends_S", np.cumsum(self.num_images_S, dtype=np.int64))
        object.__setattr__(self, "_patch_ends_I", np.cumsum(self.grids_I3.astype(np.int64).prod(axis=1)))

    def __contains__(self, sample_id: SampleId) -> bool:
        return sample_id in self._place

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """Bytes of payload."""
        return self.tokens.nbytes + self.trained.nbytes + self.pixels_PF.nbytes + self.grids_I3.nbytes

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> "SampleSlab":
        """Return the slab of `samples`."""
        images = [sample.images for sample in samples if sample.images is not None]
        return cls(
            ids=tuple(sample.id for sample in samples),
            tokens=np.concatenate([np.empty(0, dtype=np.int32), *(sample.tokens_T for sample in samples)]),
            token_ends_S=np.cumsum([len(sample.tokens_T) for sample in samples], dtype=np.int64),
            num_image_tokens_S=np.array([sample.num_image_tokens for sample in samples], dtype=np.int32),
            trained=np.concatenate(
                [np.empty(0, dtype=np.uint8), *(s.trained_T for s in samples if s.trained_T is not None)]
            ),
            has_trained_S=np.array([sample.trained_T is not None for sample in samples], dtype=np.uint8),
            pixels_PF=np.concatenate([i.pixels_PF for i in images]) if images else np.empty((0, 0), dtype=np.uint8),
            grids_I3=np.concatenate([np.empty((0, 3), dtype=np.int32), *(i.grids_I3 for i in images)]),
            starts_I=np.concatenate([np.empty(0, dtype=np.int32), *(i.starts_I for i in images)]),
            num_images_S=np.array([0 if s.images is None else len(s.images.grids_I3) for s in samples], dtype=np.int32),
        )

    @classmethod
    def joined(cls, slabs: Sequence["SampleSlab"]) -> "SampleSlab":
        """Return one slab with the samples of several, of any sources, in order."""
        if len(slabs) == 1:
            return slabs[0]
        if not slabs:
            return cls.of([])
        before = np.cumsum([0, *(len(slab.tokens) for slab in slabs[:-1])])
        with_pixels = [slab.pixels_PF for slab in slabs if len(slab.pixels_PF)]
        return cls(
            ids=tuple(sample_id for slab in slabs for sample_id in slab.ids),
            tokens=np.concatenate([slab.tokens for slab in slabs]),
            token_ends_S=np.concatenate([s.token_ends_S + first for s, first in zip(slabs, before, strict=True)]),
            num_image_tokens_S=np.concatenate([slab.num_image_tokens_S for slab in slabs]),
            trained=np.concatenate([slab.trained for slab in slabs]),
            has_trained_S=np.concatenate([slab.has_trained_S for slab in slabs]),
            pixels_PF=np.concatenate(with_pixels) if with_pixels else slabs[0].pixels_PF,
            grids_I3=np.concatenate([slab.grids_I3 for slab in slabs]),
            starts_I=np.concatenate([slab.starts_I for slab in slabs]),
            num_images_S=np.concatenate([slab.num_images_S for slab in slabs]),
        )

    @property
    def has_pixels(self) -> bool:
        """Whether the patches of its images are there, and not their geometry alone."""
        return len(self.pixels_PF) == int(self.grids_I3.astype(np.int64).prod(axis=1).sum())

    def without_pixels(self) -> "SampleSlab":
        """Return the same samples with their images' geometry alone."""
        return replace(self, pixels_PF=self.pixels_PF[:0])

    def sample(self, sample_id: SampleId) -> Sample:
        """Return one sample as views into the slab."""
        index = self._place[sample_id]
        start, end = _span(self.token_ends_S, index)
        trained_T = None
        if self.has_trained_S[index]:
            trained_T = self.trained[slice(*_span(self._mask_ends_S, index))]
        images = None
        if self.num_images_S[index]:
            first_image, end_image = _span(self._image_ends_S, index)
            first_patch, _ = _span(self._patch_ends_I, first_image)
            images = SampleImages(
                pixels_PF=self.pixels_PF[first_patch : int(self._patch_ends_I[end_image - 1])],
                grids_I3=self.grids_I3[first_image:end_image],
                starts_I=self.starts_I[first_image:end_image],
            )
        return Sample(
            id=sample_id,
            tokens_T=self.tokens[start:end],
            num_image_tokens=int(self.num_image_tokens_S[index]),
            trained_T=trained_T,
            images=images,
        )


def _span(ends: Int64Array, index: int) -> tuple[int, int]:
    """Return (start, end) of piece `index` of a concatenation, given where each piece ends."""
    return int(ends[index - 1]) if index else 0, int(ends[index])

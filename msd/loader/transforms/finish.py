"""The last step: what the transforms made becomes samples no longer than a sequence."""

# T = tokens. I = images. P = patches. F = values of one patch.

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from msd.core.arrays import UInt8Array
from msd.core.sample import Sample, SampleId, SampleImages
from msd.loader.transforms.base import (
    IMAGES,
    INPUT_IDS,
    LOSS_MASK,
    BadImage,
    BadTokens,
    Fields,
    MissingField,
    WrongType,
    available,
)
from msd.loader.transforms.patches import PatchedImage
from msd.loader.transforms.text import ids_of, mask_of

Overflow = Literal["split", "truncate", "drop"]


@dataclass(slots=True)
class Finished:
    """The samples of one row so far, and what became of what is not among them."""

    samples: list[Sample] = field(default_factory=list)
    num_empty: int = 0
    """Samples without a token; left out."""
    num_split: int = 0
    """Pieces beyond the first that `split` made."""
    num_truncated_tokens: int = 0
    num_dropped: int = 0
    """Samples longer than a sequence; left out."""
    num_unlabelled: int = 0
    """Pieces in which nothing is learned; left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Checks a sample, puts its image placeholders before its text, and cuts or drops what is too long."""

    source: str
    sequence_length: int
    overflow: Overflow
    image_token: int | None = None
    """Placeholder; None if the source has no images."""
    merge: int = 1
    needs_labels: bool = False
    """Leave out pieces in which nothing is learned, as a cut through a conversation may give."""

    def add(self, fields: Fields, ordinal: int, into: Finished) -> None:
        """Add what one sample of a row becomes.

        Raises:
            Exception: If it has no tokens that can be used, or more placeholders than a sequence has room for.
        """
        if INPUT_IDS not in fields:
            raise MissingField(
                "no transform made input_ids: add {kind: tokenize, tokenizer: ..., field: ...} or {kind: tokens, "
                f"field: ...}}; the sample has {available(fields)}"
            )
        ids_T = ids_of(fields[INPUT_IDS], INPUT_IDS)
        mask = fields.get(LOSS_MASK)
        mask_T = None if mask is None else mask_of(mask, len(ids_T), LOSS_MASK)
        images, num_placeholders = None, 0
        if self.image_token is not None and fields.get(IMAGES):
            images, num_placeholders = self._images(fields[IMAGES])
        if self.image_token is not None and (ids_T == self.image_token).any():
            raise BadTokens(
                f"the text holds the image token {self.image_token}, which stands for patches; remove it from the "
                "text, or set another image_token"
            )
        if num_placeholders:
            ids_T = np.concatenate([np.full(num_placeholders, self.image_token, dtype=np.int32), ids_T])
            if mask_T is not None:
                mask_T = np.concatenate([np.zeros(num_placeholders, dtype=np.uint8), mask_T])
        for start, end in self._cuts(len(ids_T), num_placeholders, into):
            if self.needs_labels and not _has_label(mask_T, start, end, num_placeholders):
                into.num_unlabelled += 1
                continue
            with_images = start == 0 and images is not None
            into.samples.append(
                Sample(
                    id=SampleId(self.source, ordinal, len(into.samples)),
                    tokens_T=ids_T[start:end],
                    num_image_tokens=num_placeholders if with_images else 0,
                    trained_T=_needed(mask_T, start, end, num_placeholders),
                    images=images if with_images else None,
                )
            )

    def _images(self, made: object) -> tuple[SampleImages, int]:
        if not isinstance(made, list | tuple) or not all(isinstance(image, PatchedImage) for image in made):
            raise WrongType(
                "images must be the list that the image transform made; put functions that set it before it"
            )
        return _joined(made, self.merge)

    def _cuts(self, num_tokens: int, num_placeholders: int, into: Finished) -> Sequence[tuple[int, int]]:
        """Return the (start, end) of the pieces to keep, and count what is not."""
        limit = self.sequence_length
        if num_tokens == 0:
            into.num_empty += 1
            return ()
        if num_tokens <= limit:
            return ((0, num_tokens),)
        if self.overflow == "drop":
            into.num_dropped += 1
            return ()
        if num_placeholders > limit:
            raise BadImage(
                f"its images take {num_placeholders} placeholders and a sequence has {limit} tokens, and a run of "
                "placeholders is never cut; lower max_pixels or raise sequence_length"
            )
        if self.overflow == "truncate":
            into.num_truncated_tokens += num_tokens - limit
            return ((0, limit),)
        pieces = [(start, min(start + limit, num_tokens)) for start in range(0, num_tokens, limit)]
        into.num_split += len(pieces) - 1
        return pieces


def _joined(made: Sequence[PatchedImage], merge: int) -> tuple[SampleImages, int]:
    """Return the images of a sample, and how many placeholders stand for them."""
    run_I = [image.grid_h * image.grid_w // (merge * merge) for image in made]
    ends_I = np.cumsum(run_I, dtype=np.int32)
    images = SampleImages(
        pixels_PF=made[0].pixels_PF if len(made) == 1 else np.concatenate([image.pixels_PF for image in made]),
        grids_I3=np.array([(1, image.grid_h, image.grid_w) for image in made], dtype=np.int32),
        starts_I=ends_I - np.array(run_I, dtype=np.int32),
    )
    return images, int(ends_I[-1])


def _has_label(mask_T: UInt8Array | None, start: int, end: int, num_placeholders: int) -> bool:
    """Return whether a position of a piece has a target: the next token, in the piece, after the images, learned."""
    targets = slice(max(start, num_placeholders) + 1, end)
    return targets.start < end if mask_T is None else bool(mask_T[targets].any())


def _needed(mask_T: UInt8Array | None, start: int, end: int, num_placeholders: int) -> UInt8Array | None:
    """Return the mask of a piece, or None if all its text is to be learned: the two mean the same."""
    if mask_T is None or mask_T[max(start, num_placeholders) : end].all():
        return None
    return mask_T[start:end]

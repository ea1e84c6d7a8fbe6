"""Packed sequences, taken apart: each row gives the documents that it holds, as they were before they were packed."""

# T = tokens of a sequence, or of a document. N = documents of a sequence. I = images. P = patches. F = values of one.

from typing import Any

import numpy as np
import numpy.typing as npt

from msd.core.arrays import Int32Array, Int64Array, UInt8Array
from msd.core.batch import IGNORE_INDEX
from msd.core.written import Written
from msd.loader.transforms.base import (
    IMAGES,
    INPUT_IDS,
    LOSS_MASK,
    BadImage,
    BadTokens,
    Fields,
    Place,
    Step,
    WrongType,
    field_of,
)
from msd.loader.transforms.patches import PatchedImage


class UnpackStep(Step):
    """Gives a sample for each document of a packed sequence: tokens, what is learned of them, images.

    What it gives is packed again, and becomes the same sequence: documents lie one after another, each on the first
    multiple behind the one before, and a label is the token that follows.
    """

    kind = "packed"

    def __init__(self, written: Written) -> None:
        """Take apart what was packed so."""
        self._written = written

    def one(self, fields: Fields, place: Place) -> list[Fields]:
        """Return the documents of a sequence, in order; none of an empty one."""
        ids_T, label_T = (_numbers(fields, name).astype(np.int32) for name in (INPUT_IDS, "labels"))
        start_N, length_N = (_numbers(fields, f"document_{name}").astype(np.int64) for name in ("starts", "lengths"))
        self._check(ids_T, label_T, start_N, length_N)
        images = self._images(fields, len(start_N))
        return [
            self._document(ids_T[start : start + length], label_T[start : start + length], images[number])
            for number, (start, length) in enumerate(zip(start_N.tolist(), length_N.tolist(), strict=True))
        ]

    def identity(self) -> dict[str, Any]:
        """Return what was read back."""
        return {"folder": self._written.fingerprint}

    def _check(self, ids_T: Int32Array, label_T: Int32Array, start_N: Int64Array, length_N: Int64Array) -> None:
        length = self._written.sequence_length
        if not len(ids_T) == len(label_T) == length:
            raise BadTokens(f"it has {len(ids_T)} tokens and {len(label_T)} labels, and sequences have {length}")
        if len(start_N) != len(length_N) or bool((length_N < 1).any()):
            raise BadTokens(f"it says where {len(start_N)} documents start, and that {len(length_N)} have tokens")
        extent_N = -(-length_N // self._written.document_multiple) * self._written.document_multiple
        if not np.array_equal(start_N, np.cumsum(extent_N) - extent_N) or int(extent_N.sum()) > length:
            raise BadTokens(
                f"its documents start at {start_N.tolist()[:8]}, which is not one after another with lengths "
                f"{length_N.tolist()[:8]}"
            )

    def _document(self, ids_T: Int32Array, label_T: Int32Array, images: list[PatchedImage]) -> Fields:
        """Return a document without the placeholders of its images, which are put before it again."""
        cut = self._written.images
        placeholders = sum(image.grid_h * image.grid_w // cut.merge**2 for image in images) if cut is not None else 0
        if cut is not None and not bool((ids_T[:placeholders] == cut.image_token).all()):
            raise BadTokens(f"its images need {placeholders} placeholders at the beginning of their document")
        is_learned_T = label_T != IGNORE_INDEX
        if bool(is_learned_T[:placeholders].any() or is_learned_T[-1:].any()) or not np.array_equal(
            ids_T[1:][is_learned_T[:-1]], label_T[:-1][is_learned_T[:-1]]
        ):
            raise BadTokens("its labels are not the tokens that follow, so they cannot be made again")
        document: Fields = {INPUT_IDS: ids_T[placeholders:]}
        if images:
            document[IMAGES] = images
        if not is_learned_T[placeholders:-1].all():
            # What comes first is nobody's target, so it does not matter whether it is to be learned.
            document[LOSS_MASK] = np.concatenate([[True], is_learned_T[placeholders:-1]])
        return document

    def _images(self, fields: Fields, num_documents: int) -> list[list[PatchedImage]]:
        """Return the images of each document."""
        found: list[list[PatchedImage]] = [[] for _ in range(num_documents)]
        if fields.get("pixels") is None:
            return found
        if self._written.images is None:
            raise BadImage("it has images, and its folder was written by sources that had none")
        grids_I3 = _numbers(fields, "grids").reshape(-1, 3)
        owners = _numbers(fields, "image_documents").tolist()
        pixels: UInt8Array = np.frombuffer(field_of(fields, "pixels"), dtype=np.uint8)
        values = 3 * self._written.images.patch**2
        patches_I = grids_I3.astype(np.int64).prod(axis=1)
        if len(owners) != len(grids_I3) or len(pixels) != int(patches_I.sum()) * values:
            raise BadImage(f"it has {len(pixels)} bytes of {len(grids_I3)} images with {int(patches_I.sum())} patches")
        ends_I = np.cumsum(patches_I)
        for number, (_, grid_h, grid_w) in enumerate(grids_I3.tolist()):
            first, end = int(ends_I[number] - patches_I[number]) * values, int(ends_I[number]) * values
            patches_PF = pixels[first:end].reshape(-1, values)
            found[owners[number]].append(PatchedImage(patches_PF, grid_h, grid_w))
        return found


def _numbers(fields: Fields, name: str) -> npt.NDArray[Any]:
    value = field_of(fields, name)
    if not isinstance(value, np.ndarray | list):
        raise WrongType(f"field {name!r} must be a list of numbers, got {type(value).__name__}")
    return np.asarray(value)

"""In each slot all rows have the same modalities, or carry a flagged dummy, so that ranks run the same modules."""

# D = documents. B = buckets. M = slots.

from dataclasses import dataclass

import numpy as np

from msd.core.arrays import BoolArray, Int64Array
from msd.errors import ConfigError

MODALITIES = ("image",)


@dataclass(frozen=True, slots=True)
class Align:
    """Op of a graph: rows of a slot without this modality carry a dummy where another row of the slot has it."""

    modality: str

    def __post_init__(self) -> None:
        if self.modality not in MODALITIES:
            raise ConfigError(f"align has no modality {self.modality!r}; the modalities are {', '.join(MODALITIES)}")

    def __str__(self) -> str:
        return f"align({self.modality!r})"


def dummies(num_images_D: Int64Array, bucket_D: Int64Array, slot_D: Int64Array, shape: tuple[int, int]) -> BoolArray:
    """Return which rows carry a dummy image, [B, M]: those without an image in a slot in which another row has one.

    Args:
        num_images_D: Images of each document.
        bucket_D: Where each document lies ...
        slot_D: ... and in which slot.
        shape: Numbers of buckets and slots.
    """
    row_D = bucket_D * shape[1] + slot_D
    has_BM = np.bincount(row_D, weights=num_images_D, minlength=shape[0] * shape[1]).reshape(shape) > 0
    dummy_BM: BoolArray = has_BM.any(axis=0, keepdims=True) & ~has_BM
    return dummy_BM

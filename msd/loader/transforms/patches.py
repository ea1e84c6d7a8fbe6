"""Pixels to patches, with the sizes that a vision transformer expects. Pure arithmetic."""

# H, W = height and width in pixels. P = patches of one image. F = values of one patch.

import math
from dataclasses import dataclass

import numpy as np

from msd.core.arrays import UInt8Array


@dataclass(frozen=True, slots=True, eq=False)
class PatchedImage:
    """One image as patches."""

    pixels_PF: UInt8Array
    """uint8 [grid_h * grid_w, patch * patch * 3]; see `to_patches`."""
    grid_h: int
    """Height in patches."""
    grid_w: int
    """Width in patches."""


def fit_size(height: int, width: int, *, unit: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Return the (height, width) that an image is resized to.

    Both become multiples of `unit` = patch * merge, at least one unit, near the original aspect ratio:

    1. each side is rounded to the nearest multiple (halves up);
    2. if the area is below `min_pixels`, both sides are scaled by sqrt(min_pixels / area) and rounded up;
    3. if the area is then above `max_pixels`, both are scaled by sqrt(max_pixels / area) and rounded down.

    Areas are those of the original sides. `max_pixels` always holds: where one side is a single unit already, the
    other is cut to what remains, and the aspect ratio or `min_pixels` gives way.
    """
    tall, wide = (max(unit, (2 * side + unit) // (2 * unit) * unit) for side in (height, width))
    if tall * wide < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        tall, wide = (max(unit, math.ceil(side * grow / unit) * unit) for side in (height, width))
    if tall * wide > max_pixels:
        shrink = math.sqrt(max_pixels / (height * width))
        tall, wide = (max(unit, math.floor(side * shrink / unit) * unit) for side in (height, width))
        if tall <= wide:
            wide = max(unit, min(wide, max_pixels // (tall * unit) * unit))
        else:
            tall = max(unit, min(tall, max_pixels // (wide * unit) * unit))
    return tall, wide


def to_patches(pixels_HW3: UInt8Array, *, patch: int, merge: int) -> UInt8Array:
    """Return the patches of an image whose sides are multiples of patch * merge, as [P, patch * patch * 3].

    Groups of merge x merge patches, which share one placeholder, come in row-major order of the groups; inside a
    group its patches come in row-major order. A patch is flattened row by row, pixel by pixel, red, green, blue.
    """
    height, width, _ = pixels_HW3.shape
    rows, columns = height // (patch * merge), width // (patch * merge)
    grouped = pixels_HW3.reshape(rows, merge, patch, columns, merge, patch, 3).transpose(0, 3, 1, 4, 2, 5, 6)
    return np.ascontiguousarray(grouped).reshape(rows * columns * merge * merge, patch * patch * 3)

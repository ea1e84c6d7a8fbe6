"""What is known of rows before anything is done to them: sizes, and what the headers of images say."""

# R = rows, F = features.

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from msd.core.arrays import Float64Array
from msd.core.sample import RawSample
from msd.loader.transforms.config import ImageConfig, TransformConfig
from msd.sources.base import BadRow

NAMES = ("bytes", "characters", "pixels", "frames")
"""As `msd.cost.features.FEATURES` names and means them."""


class RowFeatures:
    """Reads features off rows, for the transforms that they are to go through."""

    def __init__(self, transforms: Sequence[TransformConfig]) -> None:
        """Note which fields hold images."""
        self._images = [one.field for one in transforms if isinstance(one, ImageConfig)]

    def of(self, rows: Sequence[RawSample | BadRow]) -> Float64Array:
        """Return [R, F]: bytes, characters, pixels, frames. A row that could not be read has zeros."""
        return np.array([self._one(row) for row in rows], dtype=np.float64).reshape(len(rows), len(NAMES))

    def _one(self, row: RawSample | BadRow) -> tuple[float, float, float, float]:
        if isinstance(row, BadRow):
            return 0.0, 0.0, 0.0, 0.0
        num_bytes = num_characters = 0
        for value in row.values():
            nbytes, characters = _size(value)
            num_bytes += nbytes
            num_characters += characters
        pixels = frames = 0
        for field in self._images:
            value = row.get(field)
            for stored in value if isinstance(value, list | tuple) else [value]:
                of_image = _pixels(stored)
                pixels, frames = pixels + of_image[0], frames + of_image[1]
        return float(num_bytes), float(num_characters), float(pixels), float(frames)


def _size(value: Any) -> tuple[int, int]:
    """Return the bytes of a value and the characters of its texts."""
    match value:
        case str():
            return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass")), len(value)
        case bytes() | bytearray() | memoryview():
            return len(value), 0
        case np.ndarray():
            return value.nbytes, 0
        case dict():
            sizes = [_size(one) for one in value.values()]
        case list() | tuple():
            if value and isinstance(value[0], int | float):
                return 8 * len(value), 0
            sizes = [_size(one) for one in value]
        case None:
            return 0, 0
        case _:
            return 8, 0
    return sum(nbytes for nbytes, _ in sizes), sum(characters for _, characters in sizes)


def _pixels(stored: Any) -> tuple[int, int]:
    """Return the pixels of all frames of a stored image, by its header, and its frames; zeros if it is none."""
    if isinstance(stored, dict):
        stored = stored.get("bytes")
    if isinstance(stored, np.ndarray):
        return (stored.shape[0] * stored.shape[1], 1) if stored.ndim >= 2 else (0, 0)
    if not isinstance(stored, bytes | bytearray | memoryview):
        return 0, 0
    # Pillow is loaded by who needs it.
    from PIL import Image

    try:
        with Image.open(io.BytesIO(stored)) as image:
            frames = int(getattr(image, "n_frames", 1))
            return image.width * image.height * frames, frames
    except Exception:
        # What its transform says of it is another matter.
        return 0, 0

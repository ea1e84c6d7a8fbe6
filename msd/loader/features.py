"""What is known of rows before anything is done to them: sizes, and what the headers of images say."""

# R = rows, F = features.

import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from msd.core.arrays import Float64Array
from msd.core.sample import RawSample
from msd.loader.transforms.config import ImageConfig, TransformConfig
from msd.sources.base import BadRow

NAMES = ("bytes", "characters", "pieces", "pixels", "frames")
"""As `msd.cost.features.FEATURES` names and means them."""
SPANS, SPAN = 4, 256
"""Of a long text so many stretches of so many characters are looked at: microseconds, however long it is."""
_PIECE = re.compile(r"\w+|[^\w\s]+")


class RowFeatures:
    """Reads features off rows, for the transforms that they are to go through."""

    def __init__(self, transforms: Sequence[TransformConfig]) -> None:
        """Note which fields hold images."""
        self._images = [one.field for one in transforms if isinstance(one, ImageConfig)]

    def of(self, rows: Sequence[RawSample | BadRow]) -> Float64Array:
        """Return [R, F]: bytes, characters, pieces, pixels, frames. A row that could not be read has zeros."""
        return np.array([self._one(row) for row in rows], dtype=np.float64).reshape(len(rows), len(NAMES))

    def _one(self, row: RawSample | BadRow) -> tuple[float, ...]:
        if isinstance(row, BadRow):
            return (0.0,) * len(NAMES)
        num_bytes, num_characters, num_pieces = _sum(map(_size, row.values()))
        pixels = frames = 0
        for field in self._images:
            value = row.get(field)
            for stored in value if isinstance(value, list | tuple) else [value]:
                of_image = _pixels(stored)
                pixels, frames = pixels + of_image[0], frames + of_image[1]
        return float(num_bytes), float(num_characters), num_pieces, float(pixels), float(frames)


def _size(value: Any) -> tuple[int, int, float]:
    """Return the bytes of a value, and the characters and pieces of its texts."""
    match value:
        case str():
            nbytes = len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
            return nbytes, len(value), _pieces(value)
        case bytes() | bytearray() | memoryview():
            return len(value), 0, 0.0
        case np.ndarray():
            return value.nbytes, 0, 0.0
        case dict():
            return _sum(map(_size, value.values()))
        case list() | tuple():
            if value and isinstance(value[0], int | float):
                return 8 * len(value), 0, 0.0
            return _sum(map(_size, value))
        case None:
            return 0, 0, 0.0
        case _:
            return 8, 0, 0.0


def _sum(sizes: Iterable[tuple[int, int, float]]) -> tuple[int, int, float]:
    num_bytes, num_characters, num_pieces = 0, 0, 0.0
    for nbytes, characters, pieces in sizes:
        num_bytes, num_characters, num_pieces = num_bytes + nbytes, num_characters + characters, num_pieces + pieces
    return num_bytes, num_characters, num_pieces


def _pieces(text: str) -> float:
    """Return how many words and runs of signs a text has, of a long one by stretches that lie evenly in it."""
    if len(text) <= SPANS * SPAN:
        return float(len(_PIECE.findall(text)))
    apart = (len(text) - SPAN) / (SPANS - 1)
    starts = [int(number * apart) for number in range(SPANS)]
    found = sum(len(_PIECE.findall(text, start, start + SPAN)) for start in starts)
    return found * len(text) / (SPANS * SPAN)


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

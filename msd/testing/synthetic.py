"""Sources that hold no data: rows with the lengths and image sizes of a stated law, for plans without payload.

sources:
  pairs:
    format: msd.testing.synthetic:HeavyTailed
    options: {name: pairs, rows: 1000000, text: [40, 1.0], images: 1.2, side: [448, 0.5]}
    transforms:
      - {kind: image, field: none, on_missing: skip, image_token: 151655}
      - {kind: function, function: "msd.testing.synthetic:blank"}
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from msd.core.arrays import Int32Array, UInt8Array
from msd.core.seeds import raw_words
from msd.loader.transforms.patches import PatchedImage, fit_size

PATCH, MERGE = 14, 2
"""Of the image transform these sources are made for."""
_PAYLOAD = bytes(16384)
"""Stands for what a row would hold: of rows that look tiny a loader reads a hundred thousand ahead."""
_NORMAL = NormalDist()
_LARGEST = 1 - 2.0**-53


class HeavyTailed:
    """Rows whose text lengths and image sides are log-normal; a row is `{"length": tokens, "grids": [(h, w), ...]}`.

    A log-normal law with median m and sigma s has mean m exp(s^2 / 2); sigma 1 puts one in a hundred at 10 medians,
    sigma 2 at 100.
    """

    def __init__(
        self,
        name: str,
        rows: int = 100_000,
        text: Sequence[float] = (256, 1.0),
        images: float | Sequence[float] = 0.0,
        side: Sequence[float] = (448, 0.5),
        max_tokens: int = 131_072,
        max_images: int = 8,
        max_pixels: int = 401_408,
    ) -> None:
        """State the law.

        Args:
            name: Seed of the draws: sources of one law and different names differ.
            rows: Rows of the source.
            text: Median tokens of a row's text, and sigma of their logarithm.
            images: Mean number of images of a row, 0.7 being one image in seven of ten rows; or the median of a
                log-normal number, rounded, and sigma of its logarithm.
            side: Median side of an image in pixels, and sigma of its logarithm.
            max_tokens: No text is longer.
            max_images: No row has more.
            max_pixels: No image is larger. The images of a row must fit a sequence, one token for 784 pixels.
        """
        self._name, self._num_rows = name, rows
        self._text, self._images, self._side = text, images, side
        self._max_tokens, self._max_images, self._max_pixels = max_tokens, max_images, max_pixels

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        draws = _uniform(2 + 2 * self._max_images, "synthetic", self._name, row)
        length = round(_log_normal(draws[0], *self._text))
        count = min(self._max_images, _count(draws[1], self._images))
        sides = [_log_normal(draw, *self._side) for draw in draws[2 : 2 + 2 * count]]
        grids = [_grid(tall, wide, self._max_pixels) for tall, wide in zip(sides[::2], sides[1::2], strict=True)]
        return {"length": min(max(1, length), self._max_tokens), "grids": grids, "payload": _PAYLOAD}


def blank(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample of that many tokens and images of those sizes, all zero and without memory of their own."""
    return {
        "input_ids": _zeros(sample["length"]),
        "images": [PatchedImage(_no_pixels(tall * wide), tall, wide) for tall, wide in sample["grids"]],
    }


def _zeros(length: int) -> Int32Array:
    return np.broadcast_to(np.int32(0), (length,))


def _no_pixels(num_patches: int) -> UInt8Array:
    return np.broadcast_to(np.uint8(0), (num_patches, PATCH * PATCH * 3))


def _grid(tall: float, wide: float, max_pixels: int) -> tuple[int, int]:
    """Return the patches of an image of those sides: what the image transform would resize it to."""
    unit = PATCH * MERGE
    height, width = fit_size(
        max(unit, round(tall)), max(unit, round(wide)), unit=unit, min_pixels=unit * unit, max_pixels=max_pixels
    )
    return height // PATCH, width // PATCH


def _count(draw: float, images: float | Sequence[float]) -> int:
    """Return the number of images of a row."""
    if isinstance(images, Sequence):
        return round(_log_normal(draw, *images))
    return int(images) + (draw < images - int(images))


def _uniform(count: int, *address: int | str) -> list[float]:
    """Return numbers between 0 and 1 that belong to an address, on every machine."""
    draws = ((raw_words(count, *address) >> np.uint64(11)).astype(np.float64) + 0.5) / float(1 << 53)
    found: list[float] = draws.tolist()
    return found


def _log_normal(draw: float, median: float, sigma: float) -> float:
    return median * math.exp(sigma * _NORMAL.inv_cdf(min(draw, _LARGEST)))

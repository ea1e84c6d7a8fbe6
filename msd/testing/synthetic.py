"""Sources that hold no data: rows with the lengths and image sizes of a stated law, for plans without payload.

sources:
  pairs:
    format: msd.testing.synthetic:HeavyTailed
    options: {name: pairs, rows: 1000000, text: [40, 1.0], images: 1.2, side: [448, 0.5]}
    transforms:
      - {kind: image, field: none, on_missing: skip, image_token: 151655}
      - {kind: function, function: "msd.testing.synthetic:blank"}
"""

# N = rows of the law that are drawn; a source of more rows repeats them.

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from msd.core.arrays import Float64Array, Int32Array, UInt8Array
from msd.core.seeds import rng_for
from msd.loader.transforms.patches import PatchedImage, fit_size

PATCH, MERGE = 14, 2
"""Of the image transform these sources are made for."""
_DRAWN = 4096
_NORMAL = NormalDist()


class HeavyTailed:
    """Rows whose text lengths and image sides are log-normal; a row is `{"length": tokens, "grids": [[h, w], ...]}`.

    A log-normal law with median m and sigma s has mean m exp(s^2 / 2); sigma 1 puts one in a hundred at 10 medians,
    sigma 2 at 100.
    """

    def __init__(
        self,
        name: str,
        rows: int = 100_000,
        text: Sequence[float] = (256, 1.0),
        images: float = 0.0,
        side: Sequence[float] = (448, 0.5),
        max_tokens: int = 131_072,
        max_pixels: int = 1_806_336,
    ) -> None:
        """Draw the law.

        Args:
            name: Seed of the draws: sources of one law and different names differ.
            rows: Rows of the source.
            text: Median tokens of a row's text, and sigma of their logarithm.
            images: Mean number of images of a row; it varies as 1 in `images` wherever that is not whole.
            side: Median side of an image in pixels, and sigma of its logarithm.
            max_tokens: No text is longer.
            max_pixels: No image is larger.
        """
        self._num_rows = rows
        generator = rng_for(0, "synthetic", name)
        self._length_N = np.clip(np.rint(_log_normal(generator, *text)), 1, max_tokens).astype(np.int64)
        whole = int(images)
        count_N = whole + (_uniform(generator) < images - whole).astype(np.int64)
        self._grids: list[list[tuple[int, int]]] = [[] for _ in range(_DRAWN)]
        for number in range(int(count_N.max())):
            tall_N, wide_N = _log_normal(generator, *side), _log_normal(generator, *side)
            for row in np.flatnonzero(count_N > number).tolist():
                self._grids[row].append(_grid(tall_N[row], wide_N[row], max_pixels))

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        place = row % _DRAWN
        return {"length": int(self._length_N[place]), "grids": self._grids[place]}


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


def _uniform(generator: np.random.Generator) -> Float64Array:
    """Return numbers between 0 and 1 from raw words, which every release of numpy draws alike."""
    words = np.asarray(generator.bit_generator.random_raw(_DRAWN), dtype=np.uint64)
    return (words >> np.uint64(11)).astype(np.float64) / float(1 << 53)


def _log_normal(generator: np.random.Generator, median: float, sigma: float) -> Float64Array:
    normal = [_NORMAL.inv_cdf(min(max(u, 1e-12), 1 - 1e-12)) for u in _uniform(generator).tolist()]
    return median * np.exp(sigma * np.array(normal))

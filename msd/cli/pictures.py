"""Images of a batch back from patches: as pictures, and as half blocks in a terminal."""

# P = patches, F = values of one patch (patch * patch * 3), H and W = pixels, I = images.

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from msd.core.arrays import UInt8Array
from msd.core.batch import RowImages

if TYPE_CHECKING:
    from rich.text import Text


def pictures(images: RowImages, merge: int) -> Iterator[tuple[int, UInt8Array]]:
    """Yield (document of the row, pixels [H, W, 3]) of every image that is no dummy.

    Args:
        images: Of one row.
        merge: Patches lie in groups of merge * merge; see the `image` transform.
    """
    end = 0
    for (frames, height, width), owner in zip(images.grids.tolist(), images.owner.tolist(), strict=True):
        start, end = end, end + frames * height * width
        if owner >= 0:
            yield owner, unpatched(images.pixels[start : start + height * width], height, width, merge)


def unpatched(pixels_PF: UInt8Array, height: int, width: int, merge: int) -> UInt8Array:
    """Return the image [H, W, 3] of patches on a grid of height x width, in groups of merge x merge."""
    patch = math.isqrt(pixels_PF.shape[1] // 3)
    grouped = pixels_PF.reshape(height // merge, width // merge, merge, merge, patch, patch, 3)
    return np.ascontiguousarray(grouped.transpose(0, 2, 4, 1, 3, 5, 6).reshape(height * patch, width * patch, 3))


def half_blocks(pixels_HW3: UInt8Array, max_columns: int = 48) -> "Text":
    """Return a picture as text: each character shows two pixels, one above the other."""
    from PIL import Image
    from rich.style import Style
    from rich.text import Text

    height, width = pixels_HW3.shape[:2]
    columns = min(max_columns, width)
    rows = max(2, 2 * round(columns * height / width / 2))
    small = np.asarray(Image.fromarray(pixels_HW3).resize((columns, rows), Image.Resampling.BOX))
    text = Text()
    for row in range(0, rows, 2):
        for top, bottom in zip(small[row].tolist(), small[row + 1].tolist(), strict=True):
            text.append("▀", Style(color=_hex(top), bgcolor=_hex(bottom)))
        text.append("\n")
    return text


def _hex(colour: list[int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)

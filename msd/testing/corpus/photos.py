"""Image-text pairs: the two photographs that scikit-learn ships, cropped and resized over a heavy-tailed size mix.

Captions state only what is known: which photograph, which region, which size, and colours that were counted.
"""

import importlib.util
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from msd.core.seeds import raw_words
from msd.errors import SourceError

PHOTOGRAPHS = ("china.jpg", "flower.jpg")
MEDIAN_PIXELS = 40_000
SPREAD = 1.1
"""Standard deviation of the logarithm of an image's area: one in fifty is ten times the median."""
MIN_PIXELS, MAX_PIXELS = 1_600, 1_200_000

_COLOURS = {
    "black": (10, 10, 10), "dark grey": (70, 70, 70), "grey": (128, 128, 128), "light grey": (195, 195, 195),
    "white": (245, 245, 245), "dark red": (110, 25, 25), "red": (205, 50, 45), "orange": (230, 135, 50),
    "brown": (120, 80, 50), "beige": (205, 185, 150), "yellow": (225, 205, 75), "olive": (110, 115, 50),
    "dark green": (40, 75, 40), "green": (85, 150, 75), "teal": (50, 125, 125), "light blue": (150, 190, 225),
    "blue": (65, 110, 185), "dark blue": (35, 50, 95), "purple": (125, 70, 140), "pink": (225, 150, 175),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Photo:
    """One image-text pair."""

    key: str
    encoded: bytes
    """JPEG, or an animation in WebP."""
    caption: str
    width: int
    height: int


def photographs() -> dict[str, Path]:
    """Return where the photographs lie, found without importing scikit-learn.

    Raises:
        SourceError: If the installed scikit-learn has no images.
    """
    spec = importlib.util.find_spec("sklearn")
    roots = list(spec.submodule_search_locations or []) if spec is not None else []
    found = {name: Path(root) / "datasets" / "images" / name for root in roots for name in PHOTOGRAPHS}
    if not found or not all(path.is_file() for path in found.values()):
        raise SourceError(
            "the photographs china.jpg and flower.jpg of scikit-learn were not found; "
            "install it complete: pip install scikit-learn"
        )
    return found


def make_photos(count: int, seed: int) -> Iterator[Photo]:
    """Yield `count` pairs; each depends on the seed and its own number alone."""
    originals = {}
    for name, path in photographs().items():
        with Image.open(path) as image:
            originals[name] = image.convert("RGB")
    for number in range(count):
        yield _photo(originals, number, seed)


def _photo(originals: dict[str, Image.Image], number: int, seed: int) -> Photo:
    # Draws by integer and basic arithmetic on raw words, so that no release of numpy changes them.
    draw = [int(word >> np.uint64(11)) / 2**53 for word in raw_words(8, seed, "corpus", "photo", number)]
    name = PHOTOGRAPHS[int(draw[0] * len(PHOTOGRAPHS))]
    original = originals[name]
    scale = 0.15 + 0.85 * draw[1]
    box_width = max(32, int(original.width * scale))
    box_height = max(32, int(original.height * min(1.0, scale * (0.6 + 0.8 * draw[2]))))
    left = int((original.width - box_width) * draw[3])
    top = int((original.height - box_height) * draw[4])
    crop = original.crop((left, top, left + box_width, top + box_height))

    normal = math.sqrt(-2.0 * math.log(1.0 - draw[5])) * math.cos(2.0 * math.pi * draw[6])
    area = min(MAX_PIXELS, max(MIN_PIXELS, MEDIAN_PIXELS * math.exp(SPREAD * normal)))
    width = max(16, round(math.sqrt(area * box_width / box_height)))
    height = max(16, round(area / width))
    image = crop.resize((width, height), Image.Resampling.BICUBIC)

    encoded = io.BytesIO()
    image.save(encoded, "JPEG", quality=60 + int(draw[7] * 35))
    place = f"columns {left} to {left + box_width} and rows {top} to {top + box_height} of {name}"
    caption = (
        f"Part of the photograph {name}: {place}, shown at {width} by {height} pixels. "
        f"Its commonest colours are {' and '.join(_dominant_colours(crop))}."
    )
    return Photo(f"{number:06d}", encoded.getvalue(), caption, width, height)


def _dominant_colours(image: Image.Image) -> list[str]:
    """Return the two commonest colour names over a small version of the image."""
    pixels = np.asarray(image.resize((24, 24), Image.Resampling.BOX), dtype=np.int32).reshape(-1, 3)
    named = np.array(list(_COLOURS.values()), dtype=np.int32)
    nearest = ((pixels[:, None, :] - named[None, :, :]) ** 2).sum(axis=2).argmin(axis=1)
    counted = np.bincount(nearest, minlength=len(named))
    best = np.argsort(-counted, kind="stable")[:2]
    return [list(_COLOURS)[index] for index in best.tolist() if counted[index]]

"""Short animations: a window that moves over one of the photographs, from a few frames to a hundred.

Decoding one costs hundreds of times what a row of text does, and differs widely: what sizing by cost is for.
"""

import io
from collections.abc import Iterator

import numpy as np
from PIL import Image

from msd.core.seeds import raw_words
from msd.testing.corpus.photos import PHOTOGRAPHS, Photo, photographs

FEWEST, MOST = 4, 96
"""Frames of an animation."""
SIDES = (96, 128, 160, 224)
FRAME_MS = 40


def make_frames(count: int, seed: int) -> Iterator[Photo]:
    """Yield `count` animations with a caption; each depends on the seed and its own number alone."""
    originals = {}
    for name, path in photographs().items():
        with Image.open(path) as image:
            originals[name] = image.convert("RGB")
    for number in range(count):
        yield _animation(originals, number, seed)


def _animation(originals: dict[str, Image.Image], number: int, seed: int) -> Photo:
    # Draws by integer and basic arithmetic on raw words, so that no release of numpy changes them.
    draw = [int(word >> np.uint64(11)) / 2**53 for word in raw_words(8, seed, "corpus", "frames", number)]
    name = PHOTOGRAPHS[int(draw[0] * len(PHOTOGRAPHS))]
    original, side = originals[name], SIDES[int(draw[1] * len(SIDES))]
    # Few long ones: the square of an even draw.
    num_frames = FEWEST + int((MOST - FEWEST) * draw[2] ** 2)
    room = original.width - side, original.height - side
    begins, ends = (draw[3], draw[4]), (draw[5], draw[6])
    frames = []
    for index in range(num_frames):
        done = index / max(1, num_frames - 1)
        left, top = (int(room[axis] * (begins[axis] + (ends[axis] - begins[axis]) * done)) for axis in range(2))
        frames.append(original.crop((left, top, left + side, top + side)))
    encoded = io.BytesIO()
    frames[0].save(
        encoded, "WEBP", save_all=True, append_images=frames[1:], duration=FRAME_MS, quality=40, method=0, kmax=9
    )
    caption = (
        f"A window of {side} by {side} pixels moves over the photograph {name} in {num_frames} frames, "
        f"{'to the right' if ends[0] > begins[0] else 'to the left'} and {'down' if ends[1] > begins[1] else 'up'}."
    )
    return Photo(f"{number:06d}", encoded.getvalue(), caption, side, side)

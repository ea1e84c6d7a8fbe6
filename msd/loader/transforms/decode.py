"""Encoded images to upright RGB pixels: the same on every machine, or a reason.

stored                                  becomes
RGB, YCbCr, L, 1, P                     RGB as Pillow converts it
CMYK (Adobe's inverted ones included)   RGB without a colour profile
alpha or a transparent colour           laid on white
16-bit grey (I;16*, I)                  its high byte
float grey (F)                          cut to [0, 255]
several frames                          as many as are wanted, evenly spaced; the first if one is
EXIF orientation 1-8                    applied
"""

import io
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from msd.core.text import text_of
from msd.errors import SourceError
from msd.loader.transforms.base import BadImage, WrongType
from msd.sources.descriptors import with_descriptors
from msd.sources.remote import NUM_RETRIES, is_lasting, retried

# Only formats with a signature of their own; none of them runs a program to be decoded, as PostScript would.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM", "QOI", "ICO")
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION = 0x0112


def decode_image(value: Any, *, max_pixels: int) -> Image.Image:
    """Return an upright RGB image, the first frame of an animation; see `decode_frames`."""
    return decode_frames(value, max_pixels=max_pixels, frames=1)[0]


def decode_frames(value: Any, *, max_pixels: int, frames: int, folder: str | None = None) -> list[Image.Image]:
    """Return the frames of an image, upright and RGB: mostly one.

    Args:
        value: Encoded bytes, a path, a mapping with `bytes` or `path`, or a Pillow image.
        max_pixels: An image that claims more is refused before it is decoded.
        frames: Of an animation at most so many, evenly spaced from the first one on.
        folder: That paths are relative to, and may not lead out of; None takes any.

    Raises:
        WrongType: If `value` is none of these, or a path leads out of the folder.
        BadImage: If the bytes are no image, claim too many pixels, or end early.
        OSError: If there is no such file, or none that may be read.
        SourceError: If the path cannot be reached for now, though tried again.
    """
    if isinstance(value, Image.Image):
        _check_size(value, max_pixels)
        return [_rgb(_upright(value))]
    content = _content(value, folder)
    with _opened(content) as image:
        _check_size(image, max_pixels)
        try:
            count = int(getattr(image, "n_frames", 1)) if frames > 1 else 1
            wanted = min(frames, count)
            found = []
            for number in (index * count // wanted for index in range(wanted)):
                if number:
                    image.seek(number)
                    # The pages of a file have sizes of their own.
                    _check_size(image, max_pixels)
                image.load()
                # An icon's directory may claim less than the image it holds.
                _check_size(image, max_pixels)
                found.append(_rgb(_upright(image)).copy() if wanted > 1 else _rgb(_upright(image)))
            return found
        except BadImage:
            raise
        except Exception as error:
            raise BadImage(
                f"{image.format} image of {len(content)} bytes cannot be decoded: {text_of(error)}"
            ) from None


def _content(value: Any, folder: str | None) -> bytes:
    if isinstance(value, Mapping):
        if value.get("bytes") is not None:
            return _content(value["bytes"], folder)
        if not value.get("path"):
            raise WrongType(f"an image mapping needs bytes or path, got keys {sorted(map(str, value))}")
        value = value["path"]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str | Path):
        return _file_content(str(value) if folder is None else _inside(folder, str(value)))
    raise WrongType(f"an image must be bytes, a path or a mapping with bytes, got {type(value).__name__}")


def _inside(folder: str, path: str) -> str:
    """Return where a path leads to, links followed, if that lies in a folder."""
    root, found = os.path.realpath(folder), os.path.realpath(os.path.join(folder, path))
    if os.path.commonpath([root, found]) != root:
        raise WrongType(f"the path {path!r} leads out of the folder of images")
    return found


def _file_content(path: str) -> bytes:
    def read() -> bytes:
        with with_descriptors(lambda: open(path, "rb", opener=_without_waiting)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise WrongType(f"{path} is not a regular file, so no image")
            return file.read()

    try:
        return retried(read, path)
    except OSError as error:
        if is_lasting(error):
            raise
        # A path that cannot be reached for now says nothing about the image: skipping it would lose samples.
        raise SourceError(
            f"{path} cannot be read ({text_of(error)}), tried {NUM_RETRIES + 1} times; see to its file system"
        ) from error


def _without_waiting(path: str, flags: int) -> int:
    # A pipe without a writer would wait for one.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _opened(content: bytes) -> Image.Image:
    """Return the image with its header read and nothing decoded.

    `Image.open` would warn about large images or not by a process-wide limit and warning filter; which samples are
    skipped must not depend on those, so the registry of formats is asked directly.
    """
    if not content:
        raise BadImage("0 bytes, so no image")
    Image.preinit()
    for name in _FORMATS:
        if name not in Image.OPEN:
            Image.init()
        factory, accepts = Image.OPEN.get(name, (None, None))
        if factory is None or not _is_accepted(accepts, content[:16]):
            continue
        try:
            opened: Image.Image = factory(io.BytesIO(content), "")
        except Exception as error:
            raise BadImage(f"{name} image of {len(content)} bytes has a broken header: {text_of(error)}") from None
        return opened
    raise BadImage(f"{len(content)} bytes that begin with {content[:8].hex(' ')} are no image of a known format")


def _is_accepted(accepts: Callable[[bytes], bool | str] | None, prefix: bytes) -> bool:
    try:
        # A string says that this build of Pillow lacks the decoder.
        return accepts is not None and accepts(prefix) is True
    except IndexError:
        return False


def _check_size(image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise BadImage(
            f"the image claims {width} x {height} pixels, above bomb_pixels {max_pixels}; "
            "raise bomb_pixels if it is genuine"
        )
    if width < 1 or height < 1:
        raise BadImage(f"the image claims {width} x {height} pixels")


def _upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:
        # A damaged EXIF block says nothing about the pixels, which are fine.
        orientation = 1
    turn = _UPRIGHT.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode == "I":
        wide = np.asarray(image).astype(np.int64)
        return Image.fromarray((np.clip(wide, 0, 0xFFFF) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        real = np.nan_to_num(np.asarray(image), nan=0.0)
        return Image.fromarray(np.clip(real, 0.0, 255.0).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        if image.mode == "La":
            image = image.convert("LA")
        clear = image.convert("RGBA")
        white = Image.new("RGBA", clear.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, clear).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")

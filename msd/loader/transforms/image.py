"""Images of a row to patches."""

# H, W = height and width in pixels.

from typing import Any

import numpy as np
from PIL import Image

from msd.core.text import text_of
from msd.loader.transforms.base import IMAGES, BadImage, Fields, MissingField, Place, Step, available
from msd.loader.transforms.config import ImageConfig
from msd.loader.transforms.decode import decode_frames
from msd.loader.transforms.patches import PatchedImage, fit_size, to_patches


class ImageStep(Step):
    """Decodes the images of a field and appends them to `images`."""

    kind = "image"

    def __init__(self, config: ImageConfig, *, after: bool) -> None:
        """Make the step.

        Args:
            config: What the user set.
            after: Whether an earlier transform makes images that these follow; otherwise a column `images` of the
                row is replaced.
        """
        self._config = config
        self._after = after

    def one(self, fields: Fields, place: Place) -> list[Fields]:
        """Return the sample with its images."""
        config = self._config
        value = fields.get(config.field)
        if value is None and config.on_missing == "fail":
            raise MissingField(
                f"no image in field {config.field!r}; this row has {available(fields)}. "
                "on_missing: skip makes it a sample of text"
            )
        stored = list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
        made = [frame for number, item in enumerate(stored) for frame in self._patched(item, number, len(stored))]
        earlier = fields.get(IMAGES) if self._after else None
        fields[IMAGES] = [*(earlier or []), *made]
        return [fields]

    def identity(self) -> dict[str, Any]:
        """Return the sizes, and what decodes."""
        config = self._config
        return {
            "field": config.field,
            "patch": config.patch,
            "merge": config.merge,
            "pixels": [config.min_pixels, config.max_pixels, config.bomb_pixels],
            "on_missing": config.on_missing,
            # As long as only first frames are taken nothing is said of it, as before there was a choice.
            **({} if config.frames == 1 else {"frames": config.frames}),
        }

    def _patched(self, stored: Any, number: int, num_images: int) -> list[PatchedImage]:
        config = self._config
        try:
            images = decode_frames(stored, max_pixels=config.bomb_pixels, frames=config.frames, folder=config.folder)
        except BadImage as error:
            raise BadImage(
                f"image {number} of {num_images}: {text_of(error)}" if num_images > 1 else text_of(error)
            ) from None
        return [self._cut(image) for image in images]

    def _cut(self, image: Image.Image) -> PatchedImage:
        """Return an image at a size of whole patches, as patches."""
        config = self._config
        height, width = fit_size(
            image.height,
            image.width,
            unit=config.patch * config.merge,
            min_pixels=config.min_pixels,
            max_pixels=config.max_pixels,
        )
        if (width, height) != image.size:
            image = image.resize((width, height), Image.Resampling.BICUBIC)
        pixels_HW3 = np.asarray(image)
        return PatchedImage(
            to_patches(pixels_HW3, patch=config.patch, merge=config.merge),
            height // config.patch,
            width // config.patch,
        )

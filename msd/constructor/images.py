"""Images of a row's documents, one after another."""

# N = documents of the row. I = images of the row. P = patches. F = values of one patch.

from collections.abc import Sequence

import numpy as np

from msd.core.arrays import Int32Array
from msd.core.batch import RowImages
from msd.core.sample import Sample, SampleImages
from msd.errors import ConfigError


def row_images(
    samples: Sequence[Sample], start_N: Int32Array, offset_N: Int32Array, *, with_pixels: bool = True
) -> RowImages | None:
    """Return the images of one row, or None when it has none.

    Args:
        samples: For each document of the row, the sample whose tokens it holds.
        start_N: First token of the sample that the document holds. Placeholders are a sample's first tokens and are
            never cut, so a piece that starts later owns no image.
        offset_N: Where each document starts in the row.
        with_pixels: False where they are encoded apart from the row, which then has their geometry alone.

    Raises:
        ConfigError: If patches of different sizes would meet in one row.
    """
    owned: list[tuple[int, Sample, SampleImages]] = [
        (document, sample, sample.images)
        for document, sample in enumerate(samples)
        if sample.images is not None and start_N[document] == 0 and len(sample.images.grids_I3)
    ]
    if not owned:
        return None
    if with_pixels:
        _check_patch_sizes(owned)
        pixels = np.concatenate([images.pixels_PF for _, _, images in owned])
    else:
        pixels = np.empty((0, 0), dtype=np.uint8)
    return RowImages(
        pixels=pixels,
        grids=np.concatenate([images.grids_I3 for _, _, images in owned]).astype(np.int32, copy=False),
        owner=np.repeat(
            np.array([document for document, _, _ in owned], dtype=np.int32),
            [len(images.grids_I3) for _, _, images in owned],
        ),
        starts=np.concatenate([images.starts_I + offset_N[document] for document, _, images in owned]).astype(
            np.int32, copy=False
        ),
    )


def dummy_images(*, patch: int, merge: int) -> RowImages:
    """Return one black image of a single merged patch that belongs to no document and has no tokens.

    Args:
        patch: Pixels of a patch's side.
        merge: One placeholder stands for merge * merge patches.
    """
    return RowImages(
        pixels=np.zeros((merge * merge, patch * patch * 3), dtype=np.uint8),
        grids=np.array([[1, merge, merge]], dtype=np.int32),
        owner=np.array([-1], dtype=np.int32),
        starts=np.array([-1], dtype=np.int32),
    )


def _check_patch_sizes(owned: Sequence[tuple[int, Sample, SampleImages]]) -> None:
    _, first, first_images = owned[0]
    for _, sample, images in owned:
        if images.pixels_PF.shape[1] != first_images.pixels_PF.shape[1]:
            raise ConfigError(
                f"sources {first.id.source!r} and {sample.id.source!r} give patches of "
                f"{first_images.pixels_PF.shape[1]} and {images.pixels_PF.shape[1]} values, which cannot share a row; "
                "give their image transforms the same patch"
            )

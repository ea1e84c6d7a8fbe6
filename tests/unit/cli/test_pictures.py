"""Pictures come back from patches as they went in."""

import numpy as np

from msd.cli.pictures import half_blocks, pictures, unpatched
from msd.core.batch import RowImages


def patched(pixels: np.ndarray, patch: int, merge: int) -> np.ndarray:
    """Patches one by one, in the order that the `image` transform documents."""
    height, width = pixels.shape[0] // patch, pixels.shape[1] // patch
    rows = []
    for group_row in range(0, height, merge):
        for group_column in range(0, width, merge):
            for row in range(group_row, group_row + merge):
                for column in range(group_column, group_column + merge):
                    rows.append(pixels[row * patch : (row + 1) * patch, column * patch : (column + 1) * patch].ravel())
    return np.stack(rows)


def test_unpatched_undoes_patching() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4 * 6, 6 * 6, 3), dtype=np.uint8)
    assert np.array_equal(unpatched(patched(pixels, 6, 2), 4, 6, 2), pixels)


def test_pictures_belong_to_their_documents_and_dummies_are_left_out() -> None:
    first = np.full((4, 4, 3), 7, dtype=np.uint8)
    second = np.full((4, 8, 3), 9, dtype=np.uint8)
    images = RowImages(
        pixels=np.concatenate([patched(image, 2, 2) for image in (first, second, first)]),
        grids=np.array([[1, 2, 2], [1, 2, 4], [1, 2, 2]], dtype=np.int32),
        owner=np.array([3, 5, -1], dtype=np.int32),
        starts=np.array([0, 10, 0], dtype=np.int32),
    )
    found = list(pictures(images, 2))
    assert [document for document, _ in found] == [3, 5]
    assert np.array_equal(found[1][1], second)


def test_half_blocks_show_two_pixels_a_character() -> None:
    pixels = np.zeros((4, 4, 3), dtype=np.uint8)
    pixels[1::2] = 255
    text = half_blocks(pixels, max_columns=4)
    assert text.plain == "▀▀▀▀\n▀▀▀▀\n"
    assert {str(span.style) for span in text.spans} == {"#000000 on #ffffff"}

import numpy as np
import pytest

from msd.loader.transforms.patches import fit_size, to_patches

UNIT = 28


def fit(height, width, low=784, high=200704, unit=UNIT):
    return fit_size(height, width, unit=unit, min_pixels=low, max_pixels=high)


@pytest.mark.parametrize(
    ("size", "fitted"),
    [
        ((448, 448), (448, 448)),
        ((41, 43), (28, 56)),
        ((42, 70), (56, 84)),
        ((896, 896), (448, 448)),
        ((1080, 1920), (336, 588)),
        ((1, 1), (28, 28)),
        ((1, 100_000), (28, 7168)),
        ((100_000, 1), (7168, 28)),
        ((3, 40), (28, 28)),
    ],
)
def test_an_image_becomes_the_nearest_size_that_fits(size, fitted):
    assert fit(*size) == fitted


def test_a_small_image_grows_to_the_smallest_area_asked_for():
    height, width = fit(30, 60, low=50_000)
    assert height * width >= 50_000
    assert (height, width) == (168, 336)


def test_the_largest_area_wins_over_the_smallest():
    height, width = fit(30, 61, low=200_704, high=200_704)
    assert 0 < height * width <= 200_704


@pytest.mark.parametrize("unit", [1, 7, 28, 32])
def test_any_shape_gives_whole_units_within_the_area(unit):
    sides = [1, 2, unit - 1 or 1, unit, unit + 1, 97, 640, 4_001, 60_000]
    for height in sides:
        for width in sides:
            tall, wide = fit(height, width, unit=unit, high=unit * unit * 37)
            assert tall >= unit
            assert wide >= unit
            assert tall % unit == wide % unit == 0
            assert tall * wide <= unit * unit * 37


@pytest.mark.parametrize("size", [(600, 900), (1234, 567), (3000, 2000)])
def test_the_aspect_ratio_is_kept_to_within_a_unit(size):
    tall, wide = fit(*size)
    exact = (200_704 / (size[0] * size[1])) ** 0.5
    assert abs(tall - size[0] * exact) <= UNIT
    assert abs(wide - size[1] * exact) <= UNIT


def test_patches_come_group_by_group_and_each_row_by_row():
    height, width, patch, merge = 12, 8, 2, 2
    pixels = np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3)
    patches = to_patches(pixels, patch=patch, merge=merge)
    expected = [
        pixels[top : top + patch, left : left + patch].reshape(-1)
        for group_top in range(0, height, patch * merge)
        for group_left in range(0, width, patch * merge)
        for top in range(group_top, group_top + patch * merge, patch)
        for left in range(group_left, group_left + patch * merge, patch)
    ]
    assert patches.tolist() == np.array(expected).tolist()
    assert patches.flags.c_contiguous

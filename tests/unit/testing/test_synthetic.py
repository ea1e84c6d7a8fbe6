"""Made-up sources follow the law they state, and give the same rows each time."""

import numpy as np
import pytest

import msd
from msd.testing.synthetic import HeavyTailed, blank


def column(source, name):
    return np.array([source[row][name] for row in range(4096)])


def test_lengths_are_log_normal_about_the_median():
    lengths = column(HeavyTailed("a", text=(256, 1.0), max_tokens=10**9), "length")
    assert np.median(lengths) == pytest.approx(256, rel=0.05)
    assert np.mean(lengths) == pytest.approx(256 * np.exp(0.5), rel=0.08)
    assert HeavyTailed("a", text=(256, 2.0), max_tokens=1000)[0]["length"] <= 1000


def test_images_have_the_mean_number_and_stay_below_the_largest_area():
    source = HeavyTailed("a", images=1.5, side=(448, 0.5), max_pixels=200_704)
    grids = [source[row]["grids"] for row in range(4096)]
    assert np.mean([len(found) for found in grids]) == pytest.approx(1.5, rel=0.03)
    areas = np.array([tall * wide * 14 * 14 for found in grids for tall, wide in found])
    assert areas.max() <= 200_704
    assert all(tall % 2 == 0 and wide % 2 == 0 for found in grids for tall, wide in found)


def test_the_number_of_images_may_be_heavy_tailed_too():
    source = HeavyTailed("a", images=[1.0, 1.0], max_images=6)
    counts = np.array([len(source[row]["grids"]) for row in range(2000)])
    assert counts.max() == 6
    assert np.median(counts) == 1
    assert 0.2 < np.mean(counts == 0) < 0.3  # below 0.5 of the median: the normal law at -0.69


def test_a_name_is_a_seed_and_a_row_is_the_same_each_time():
    one, again, other = HeavyTailed("a", rows=10**6), HeavyTailed("a", rows=10**6), HeavyTailed("b", rows=10**6)
    assert [one[row] for row in range(50)] == [again[row] for row in range(50)]
    assert [one[row] for row in range(50)] != [other[row] for row in range(50)]
    assert len(one) == 10**6


def test_a_blank_sample_takes_no_memory_of_its_own():
    sample = blank({"length": 10**6, "grids": [(100, 90)]})
    (image,) = sample["images"]
    assert sample["input_ids"].shape == (10**6,)
    assert image.pixels_PF.shape == (9000, 588)
    assert image.pixels_PF.strides == (0, 0)


def test_plans_hold_the_lengths_and_images_of_the_law():
    config = msd.Config(
        sources={
            "pairs": {
                "format": "msd.testing.synthetic:HeavyTailed",
                "options": {"name": "pairs", "rows": 2000, "text": [20, 0.5], "images": 2.0, "side": [112, 0.3]},
                "transforms": [
                    {"kind": "image", "field": "none", "on_missing": "skip", "image_token": 1},
                    {"kind": "function", "function": "msd.testing.synthetic:blank"},
                ],
            }
        },
        batch={"sequence_length": 1024, "global_batch_size": 8},
        mesh={"dp": 2},
        num_microbatches=2,
    )
    (plan,) = msd.plan(config, steps=1)
    assert (plan.num_images_D == 2).all()
    assert (plan.num_patches_D == 4 * plan.num_image_tokens_D).all()
    assert (plan.length_D > plan.num_image_tokens_D).all()

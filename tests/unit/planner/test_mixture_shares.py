"""From weights as written to shares: modes, groups, what a source that ended leaves."""

import math

import pytest

from msd.errors import ConfigError
from msd.planner.config import MixtureConfig
from msd.planner.config.mixture import GroupConfig, relative_weights
from msd.planner.mixture.schedule import MixtureSchedule
from msd.planner.mixture.shares import root, shares_of

ROWS = {"a": 100, "b": 400, "c": 1600, "d": 0}
NAMES = tuple(ROWS)


def share(weights=None, mode="explicit", temperature=1.0, rows=ROWS):
    found = shares_of(weights, NAMES, mode, temperature, rows)
    return dict(zip(NAMES, found.share_S, strict=True))


def group(weights, weight=1.0, **settings):
    return GroupConfig(weight=weight, weights=weights, **settings)


def test_proportional_shares_are_sizes_times_weights():
    """Answers ML-6."""
    assert share(mode="proportional") == {"a": 100 / 2100, "b": 400 / 2100, "c": 1600 / 2100, "d": 0.0}
    assert share({"a": 4.0, "b": 1.0}, mode="proportional") == {"a": 0.5, "b": 0.5, "c": 0.0, "d": 0.0}


def test_temperature_two_goes_by_the_square_root_of_the_size():
    found = share(mode="temperature", temperature=2.0)
    assert found == pytest.approx({"a": 10 / 70, "b": 20 / 70, "c": 40 / 70, "d": 0.0})


def test_temperature_one_is_proportional_and_a_large_one_is_equal():
    assert share(mode="temperature") == pytest.approx(share(mode="proportional"))
    equal = share({"a": 1.0, "b": 1.0}, mode="temperature", temperature=1e9)
    assert (equal["a"], equal["b"]) == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize(
    ("size", "temperature", "expected"), [(10, 2.0, math.sqrt(10)), (2, 3.0, 2 ** (1 / 3)), (10**12, 1.0, 1e12)]
)
def test_a_root_is_the_float_nearest_to_it(size, temperature, expected):
    assert abs(root(size, temperature) - expected) <= math.ulp(expected)


def test_the_root_of_a_size_is_pinned():
    # Every machine must find these bits, or the same configuration draws differently.
    assert root(123_456_789, 3.7).hex() == "0x1.338ea6606d17dp+7"


def test_shares_of_groups_multiply():
    found = share({"a": 0.6, "code": group({"b": 2.0, "rest": group({"c": 3.0, "d": 1.0})}, 0.4)})
    assert found == pytest.approx({"a": 0.6, "b": 0.4 * 2 / 3, "c": 0.4 / 3 * 0.75, "d": 0.4 / 3 * 0.25})


def test_a_group_is_as_large_as_its_sources_that_have_a_weight():
    weights = {"a": 1.0, "both": group({"b": 1.0, "c": 0.0})}
    assert share(weights, mode="proportional") == pytest.approx({"a": 0.2, "b": 0.8, "c": 0.0, "d": 0.0})


def test_each_group_has_its_own_mode():
    weights = {"a": 1.0, "both": group({"b": 1.0, "c": 1.0}, mode="temperature", temperature=2.0)}
    assert share(weights) == pytest.approx({"a": 0.5, "b": 0.5 / 3, "c": 1.0 / 3, "d": 0.0})


def test_what_a_source_leaves_goes_to_its_group_first():
    found = shares_of({"a": 0.5, "g": group({"b": 3.0, "c": 1.0}, 0.5)}, NAMES, "explicit", 1.0, {})
    assert found.over([True, False, True, True]) == pytest.approx((0.5, 0.0, 0.5, 0.0))
    assert found.over([False, True, True, True]) == pytest.approx((0.0, 0.375, 0.125, 0.0))


def test_what_a_whole_group_leaves_goes_to_the_group_around_it():
    tree = {"a": 0.5, "g": group({"b": 1.0, "h": group({"c": 1.0, "d": 1.0})}, 0.5)}
    found = shares_of(tree, NAMES, "explicit", 1.0, {})
    assert found.over([True, True, False, False]) == pytest.approx((0.5, 0.5, 0.0, 0.0))
    assert found.over([True, False, True, False]) == pytest.approx((0.5, 0.0, 0.5, 0.0))
    assert found.over([True, False, False, False]) == pytest.approx((0.5, 0.0, 0.0, 0.0))


def test_weights_without_sizes_multiply_along_the_tree():
    tree = {"a": 3.0, "g": group({"b": 2.0, "c": 6.0}, 4.0)}
    assert relative_weights(tree, NAMES) == {"a": 3.0, "b": 1.0, "c": 3.0, "d": 0.0}


@pytest.mark.parametrize(
    "mixture",
    [
        MixtureConfig(mode="proportional"),
        MixtureConfig(clock="epoch"),
        MixtureConfig(weights={"g": group({"a": 1.0}, mode="proportional")}),
    ],
)
def test_a_mixture_that_goes_by_sizes_needs_them(mixture):
    with pytest.raises(ConfigError, match="pass rows="):
        MixtureSchedule.of(["a"], mixture)

"""Weights mean what they say: bounds on what is drawn, for any lengths and weights."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msd.planner.mixture.schedule import WEIGHT_UNIT, quantise
from msd.planner.primitives.mix import Credits

PROFILE = settings(derandomize=True, deadline=None, max_examples=60)


def drift(weights, lengths, *, change_at=None, later=None):
    """Draw once for each of `lengths`; return the worst excess and worst lack over all draws, in longest samples."""
    credits, owed, drawn = Credits(len(weights)), np.zeros(len(weights), dtype=object), [0] * len(weights)
    over = under = 0
    for index, length in enumerate(lengths):
        if index in (0, change_at):
            now = weights if index == 0 else later
            credits.set_shares(now)
            weight_S = np.array(quantise(now).tolist(), dtype=object)
        source = credits.largest()
        credits.take(source, length)
        drawn[source] += length
        owed = owed + weight_S * length
        gap = owed - np.array([WEIGHT_UNIT * units for units in drawn], dtype=object)
        over, under = max(over, -min(gap)), max(under, max(gap))
        assert sum(gap) == 0
    longest = WEIGHT_UNIT * max(lengths)
    return over / longest, under / longest


weight = st.floats(0.001, 1000.0)
length = st.integers(1, 16384)


@PROFILE
@given(st.lists(weight, min_size=2, max_size=300), st.lists(length, min_size=1, max_size=300))
def test_no_source_is_ever_more_than_one_sample_over_its_share(weights, lengths):
    over, _ = drift(weights, lengths)
    assert over <= 1


@PROFILE
@given(st.lists(weight, min_size=2, max_size=40), st.lists(length, min_size=1, max_size=400))
def test_no_source_is_further_under_its_share_than_was_proved(weights, lengths):
    """Answers MX-3."""
    _, under = drift(weights, lengths)
    assert under <= sum(1 / k for k in range(1, len(weights)))


@PROFILE
@given(st.data(), st.integers(2, 30), st.lists(length, min_size=2, max_size=200))
def test_changing_weights_keep_the_bound_above(data, num_sources, lengths):
    first, later = (data.draw(st.lists(weight, min_size=num_sources, max_size=num_sources)) for _ in range(2))
    over, _ = drift(first, lengths, change_at=len(lengths) // 2, later=later)
    assert over <= 1


@PROFILE
@given(st.lists(st.one_of(st.just(0.0), weight), min_size=1, max_size=300))
def test_integer_weights_sum_to_the_unit_and_keep_zeros(shares):
    weight_S = quantise(shares)
    assert weight_S.sum() == (WEIGHT_UNIT if any(shares) else 0)
    assert [w > 0 for w in weight_S.tolist()] == [share > 0 for share in shares]


@pytest.mark.parametrize("seed", range(4))
def test_short_and_long_samples_at_equal_weights_give_equal_tokens(seed):
    """Answers TT-2."""
    rng = np.random.default_rng(seed)
    means, drawn, longest = (100, 10_000), [0, 0], 0
    credits = Credits(2)
    credits.set_shares([1.0, 1.0])
    for _ in range(3000):
        source = credits.largest()
        units = int(rng.integers(means[source] // 2, means[source] * 3 // 2))
        longest = max(longest, units)
        credits.take(source, units)
        drawn[source] += units
        assert abs(drawn[0] - drawn[1]) <= longest
    assert drawn[0] > 100 * means[0]


@PROFILE
@given(st.lists(weight, min_size=3, max_size=12), st.lists(length, min_size=1, max_size=60))
def test_a_dropped_source_leaves_its_credit_to_the_others(weights, lengths):
    credits = Credits(len(weights))
    credits.set_shares(weights)
    for units in lengths:
        credits.take(credits.largest(), units)
    credits.set_shares([0.0, *weights[1:]])
    credits.spread(0)
    left = credits.as_list()
    assert left[0] == 0
    assert sum(left) == 0


@PROFILE
@given(st.lists(weight, min_size=2, max_size=12), st.lists(length, min_size=2, max_size=60))
def test_credits_that_are_saved_and_loaded_draw_the_same(weights, lengths):
    whole, first = Credits(len(weights)), Credits(len(weights))
    for credits in (whole, first):
        credits.set_shares(weights)
    half = len(lengths) // 2
    for units in lengths[:half]:
        assert whole.largest() == first.largest()
        whole.take(whole.largest(), units)
        first.take(first.largest(), units)
    second = Credits(len(weights))
    second.load(first.as_list())
    second.set_shares(weights)
    for units in lengths[half:]:
        assert whole.largest() == second.largest()
        whole.take(whole.largest(), units)
        second.take(second.largest(), units)

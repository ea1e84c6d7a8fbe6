from itertools import product

import numpy as np
import pytest

from msd.planner.balancers import BALANCERS, karmarkar_karp, lpt, zigzag
from msd.planner.floors import capped_imbalance_floor, imbalance_floor, lockstep_floor


def column(*costs):
    return np.array(costs, dtype=np.int64)[:, None]


def loads(cost_SK, bucket_S, num_buckets):
    return [int(cost_SK[bucket_S == b].sum()) for b in range(num_buckets)]


def best_makespan(costs, num_buckets):
    return min(
        max(sum(c for c, b in zip(costs, chosen, strict=True) if b == bucket) for bucket in range(num_buckets))
        for chosen in product(range(num_buckets), repeat=len(costs))
    )


def test_lpt_gives_the_heaviest_first_to_the_lightest():
    cost_SK = column(7, 5, 4, 3, 1)
    assert loads(cost_SK, lpt(cost_SK, 2), 2) == [10, 10]


def test_lpt_keeps_capacity():
    bucket_S = lpt(column(100, 1, 1, 1, 1, 1), 2, capacity=3)
    assert np.bincount(bucket_S).tolist() == [3, 3]


def test_lpt_gives_the_same_with_a_capacity_that_never_binds_as_without():
    for seed in range(20):
        cost_S1 = np.random.default_rng(seed).integers(0, 9, (50, 1))
        assert lpt(cost_S1, 6).tolist() == lpt(cost_S1, 6, capacity=49).tolist()


def test_lpt_compares_modules_by_the_largest():
    cost_SK = np.array([[9, 0], [0, 9], [8, 0], [0, 8]])
    bucket_S = lpt(cost_SK, 2)
    assert max(cost_SK[bucket_S == 0].sum(axis=0).max(), cost_SK[bucket_S == 1].sum(axis=0).max()) == 9


@pytest.mark.parametrize("seed", range(6))
def test_floors_are_never_above_the_best_assignment(seed):
    rng = np.random.default_rng(seed)
    costs = rng.integers(1, 60, size=7).astype(np.float64)
    for num_buckets in (2, 3):
        best = best_makespan(costs.tolist(), num_buckets) / (costs.sum() / num_buckets) - 1
        assert 0 <= imbalance_floor(costs, num_buckets) <= best + 1e-12


def test_the_floor_knows_the_heaviest_document_and_the_pigeonhole():
    assert imbalance_floor(np.array([9.0, 1.0, 1.0, 1.0]), 2) == pytest.approx(9 / 6 - 1)
    assert imbalance_floor(np.array([5.0, 5.0, 5.0]), 2) == pytest.approx(10 / 7.5 - 1)


def test_full_buckets_raise_the_floor_above_the_heaviest_document():
    cost = np.array([10.0, 1.0, 1.0, 1.0])
    tokens = np.array([2, 2, 2, 2])
    assert imbalance_floor(cost, 2) == pytest.approx(10 / 6.5 - 1)
    assert capped_imbalance_floor(cost, tokens, 2, bucket_tokens=4) == pytest.approx(11 / 6.5 - 1)


@pytest.mark.parametrize("seed", range(5))
def test_the_lockstep_floor_is_never_above_the_best_layout(seed):
    # Every row is one document longer than half a row, so that all layouts can be tried: sorted bands are the best.
    rng = np.random.default_rng(seed)
    tokens = rng.integers(6, 11, size=6)
    cost = tokens.astype(np.float64) ** 2
    bands = np.sort(cost)[::-1].reshape(3, 2)
    best = bands.max(axis=1).sum() / (cost.sum() / 2) - 1
    floor = lockstep_floor(cost, tokens, num_buckets=2, num_microbatches=3, sequence_length=10)
    assert imbalance_floor(cost, 2) <= floor <= best + 1e-12


@pytest.mark.parametrize(("num_slots", "per_row", "num_documents"), [(2, 1, 6), (1, 2, 6), (2, 2, 5)])
@pytest.mark.parametrize("seed", range(8))
def test_the_lockstep_floor_is_never_above_the_best_of_all_layouts_that_fit(seed, num_slots, per_row, num_documents):
    draw = np.random.default_rng(seed)
    num_sequences, cap = 2 * num_slots * per_row, 10
    tokens = draw.integers(2, 11, size=num_documents)
    cost = tokens + tokens.astype(np.float64) ** draw.choice([1, 2, 3])
    best = np.inf
    for chosen in product(range(num_sequences), repeat=num_documents):
        if np.bincount(chosen, weights=tokens, minlength=num_sequences).max() > cap:
            continue
        rows = np.bincount(chosen, weights=cost, minlength=num_sequences).reshape(-1, per_row).sum(axis=1)
        best = min(best, np.sort(rows)[::-1].reshape(num_slots, 2)[:, 0].sum())
    if np.isfinite(best):
        floor = lockstep_floor(cost, tokens, 2, num_slots, cap, per_row)
        assert floor <= best / (cost.sum() / 2) - 1 + 1e-12


def test_rows_that_cannot_reach_the_slowest_of_their_slot_raise_the_lockstep_floor():
    # Four full rows: the long document alone costs 100, and no other row can cost more than two documents of 5.
    cost, tokens = np.array([100.0, *[26.0] * 6]), np.array([10, *[5] * 6])
    assert lockstep_floor(cost, tokens, 2, 2, 10) == pytest.approx((100 + 52) / 128 - 1)


def test_no_documents_or_no_cost_have_floor_zero():
    assert imbalance_floor(np.zeros(0), 4) == 0.0
    assert lockstep_floor(np.zeros(3), np.ones(3, dtype=np.int64), 2, 2, 8) == 0.0


@pytest.mark.parametrize("method", BALANCERS.values(), ids=BALANCERS)
@pytest.mark.parametrize("num_modules", [1, 2])
def test_methods_assign_every_item_within_capacity(method, num_modules):
    cost_SK = np.random.default_rng(1).integers(0, 1000, size=(23, num_modules))
    bucket_S = method(cost_SK, 4, capacity=6)
    assert np.bincount(bucket_S, minlength=4).max() <= 6
    assert sorted(set(bucket_S.tolist())) == [0, 1, 2, 3]


@pytest.mark.parametrize("method", BALANCERS.values(), ids=BALANCERS)
def test_ties_go_to_the_earlier_item_and_the_lower_bucket(method):
    assert method(column(5, 5, 5, 5), 2, capacity=2).tolist()[:2] == [0, 1]
    assert method(column(5, 5, 5, 5), 2).tolist() == method(column(5, 5, 5, 5), 2).tolist()


@pytest.mark.parametrize("method", BALANCERS.values(), ids=BALANCERS)
def test_methods_refuse_items_that_do_not_fit(method):
    with pytest.raises(ValueError, match="5 items do not fit 2 buckets of 2"):
        method(column(1, 1, 1, 1, 1), 2, capacity=2)


@pytest.mark.parametrize("method", BALANCERS.values(), ids=BALANCERS)
def test_nothing_is_assigned_to_nobody(method):
    assert method(np.zeros((0, 1), dtype=np.int64), 3).tolist() == []


def test_zigzag_deals_there_and_back():
    assert zigzag(column(9, 8, 7, 6, 5, 4), 3).tolist() == [0, 1, 2, 2, 1, 0]


def test_largest_differencing_solves_what_lpt_does_not():
    cost_SK = column(8, 7, 6, 5, 4)
    assert loads(cost_SK, lpt(cost_SK, 2), 2) == [17, 13]
    assert sorted(loads(cost_SK, karmarkar_karp(cost_SK, 2), 2)) == [14, 16]

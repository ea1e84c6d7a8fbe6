"""The methods beside an exact solver, on cases small enough for one."""

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from msd.planner.balancers import BALANCERS
from msd.planner.floors import imbalance_floor


def best_makespan(cost_S, num_buckets, capacity=None):
    """Return the least cost that the heaviest bucket can have: variables are (item in bucket) and the makespan."""
    num_items = len(cost_S)
    width = num_items * num_buckets + 1
    once = np.zeros((num_items, width))
    load = np.zeros((num_buckets, width))
    held = np.zeros((num_buckets, width))
    for item in range(num_items):
        for bucket in range(num_buckets):
            place = item * num_buckets + bucket
            once[item, place] = held[bucket, place] = 1
            load[bucket, place] = cost_S[item]
    load[:, -1] = -1
    constraints = [LinearConstraint(once, 1, 1), LinearConstraint(load, -np.inf, 0)]
    if capacity is not None:
        constraints.append(LinearConstraint(held, 0, capacity))
    is_whole = np.append(np.ones(width - 1), 0)
    upper = np.append(np.ones(width - 1), np.inf)
    found = milp(
        np.append(np.zeros(width - 1), 1), constraints=constraints, integrality=is_whole, bounds=Bounds(0, upper)
    )
    assert found.success
    return round(found.fun)


def heaviest(cost_S, bucket_S, num_buckets):
    return int(np.bincount(bucket_S, weights=cost_S, minlength=num_buckets).max())


CASES = [(seed, num_buckets, per_bucket) for seed in range(4) for num_buckets, per_bucket in ((2, 5), (3, 3), (4, 3))]


@pytest.mark.parametrize("has_capacity", [False, True])
@pytest.mark.parametrize(("seed", "num_buckets", "per_bucket"), CASES)
def test_methods_come_near_the_exact_optimum(seed, num_buckets, per_bucket, has_capacity):
    draw = np.random.default_rng(seed)
    cost_S = np.rint(draw.lognormal(5, 0.7, num_buckets * per_bucket)).astype(np.int64)
    capacity = per_bucket if has_capacity else None
    best = best_makespan(cost_S, num_buckets, capacity)
    assert best >= (1 + imbalance_floor(cost_S.astype(float), num_buckets)) * cost_S.sum() / num_buckets - 1e-6
    found = {
        name: heaviest(cost_S, method(cost_S[:, None], num_buckets, capacity=capacity), num_buckets)
        for name, method in BALANCERS.items()
    }
    assert all(load >= best for load in found.values())
    assert found["lpt"] <= (4 / 3 if capacity is None else 1.15) * best
    assert found["karmarkar_karp"] <= 1.12 * best
    assert found["zigzag"] <= 1.35 * best


def test_largest_differencing_is_nearer_than_lpt_on_average():
    over = dict.fromkeys(BALANCERS, 0.0)
    for seed in range(12):
        cost_S = np.rint(np.random.default_rng(seed).uniform(50, 500, 12)).astype(np.int64)
        best = best_makespan(cost_S, 3)
        for name, method in BALANCERS.items():
            over[name] += heaviest(cost_S, method(cost_S[:, None], 3), 3) / best - 1
    assert over["karmarkar_karp"] < over["lpt"] < over["zigzag"]

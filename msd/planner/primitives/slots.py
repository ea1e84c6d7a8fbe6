"""In which order a pipeline takes the slots of a step."""

# B = buckets. M = slots. N = orders that are compared.

import numpy as np

from msd.core.arrays import Float64Array, Int64Array
from msd.planner.primitives.objective import pipeline_time

_SWAPPED_UP_TO = 32
"""Slots of a step up to which pairs of them are swapped; beyond it the mountain stays as it is."""
_MAX_SWAPS = 8


def pipeline_order(cost_MB: Float64Array | Int64Array, num_stages: int) -> Int64Array:
    """Return the slots in the order that makes the 1F1B time of the slowest bucket small, int64 [M].

    Light slots stand at both ends, where the pipeline fills and drains and stages wait for one another; the heavy ones
    in the middle. Then the two slots whose swap helps most are swapped, as long as one helps. All buckets take their
    slots in this order, so neither their cost nor lockstep changes. The order given is kept where it is as good.

    Args:
        cost_MB: Integer cost of each row; a slot counts at its costliest.
        num_stages: Pipeline stages.
    """
    given = np.arange(len(cost_MB))
    slowest_M = cost_MB.max(axis=1)
    order = _swapped(_mountain(slowest_M), slowest_M, num_stages)
    is_better = pipeline_time(cost_MB[order].T, num_stages).max() < pipeline_time(cost_MB.T, num_stages).max()
    return order if is_better else given


def _mountain(cost_M: Float64Array | Int64Array) -> Int64Array:
    lightest_first = np.argsort(cost_M, kind="stable")
    return np.concatenate([lightest_first[0::2], lightest_first[1::2][::-1]])


def _swapped(order: Int64Array, cost_M: Float64Array | Int64Array, num_stages: int) -> Int64Array:
    if len(order) > _SWAPPED_UP_TO:
        return order
    left_N, right_N = np.triu_indices(len(order), 1)
    swaps = np.arange(len(left_N))
    time = pipeline_time(cost_M[order], num_stages)
    for _ in range(_MAX_SWAPS if len(left_N) else 0):
        orders_NM = np.repeat(order[None], len(left_N), axis=0)
        orders_NM[swaps, left_N], orders_NM[swaps, right_N] = order[right_N], order[left_N]
        time_N = pipeline_time(cost_M[orders_NM], num_stages)
        best = int(time_N.argmin())
        if time_N[best] >= time:
            break
        order, time = orders_NM[best], time_N[best]
    return order

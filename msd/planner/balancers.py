"""Even out cost over buckets.

Each method takes integer costs and returns a bucket index for each item. Pure; called by `primitives.balance`.
"""

# S = items (sequences). K = modules.

import heapq

import numpy as np

from msd.core.arrays import Int64Array

_JOINT_BUCKETS = 256


def lpt(cost_SK: Int64Array, num_buckets: int, *, capacity: int | None = None) -> Int64Array:
    """Assign the costliest item first, each to the bucket with the lowest load and room.

    Longest processing time (Graham 1969): the heaviest bucket is at most 4/3 - 1/(3 num_buckets) of the best possible
    when buckets have no capacity.

    Args:
        cost_SK: Cost of each item in each module. With several modules an item goes where the largest module of the
            bucket's load is least afterwards; over more than 256 buckets, where it is least before.
        num_buckets: Buckets to fill.
        capacity: Items that a bucket holds at most; None is any number.

    Returns:
        int64 [S]: bucket of each item. Ties go to the earlier item and the lower bucket.

    Raises:
        ValueError: If the items do not fit.
    """
    num_items = len(cost_SK)
    if capacity is not None and num_items > num_buckets * capacity:
        raise ValueError(f"{num_items} items do not fit {num_buckets} buckets of {capacity}")
    capacity = num_items if capacity is None else capacity
    heaviest_first = np.argsort(-cost_SK.max(axis=1, initial=0), kind="stable")
    if cost_SK.shape[1] > 1 and num_buckets <= _JOINT_BUCKETS:
        return _joint(cost_SK, heaviest_first, num_buckets, capacity)
    return _lightest_first(cost_SK, heaviest_first, num_buckets, capacity)


def _lightest_first(cost_SK: Int64Array, order: Int64Array, num_buckets: int, capacity: int) -> Int64Array:
    costs = cost_SK.tolist()
    loads = [[0] * cost_SK.shape[1] for _ in range(num_buckets)]
    room = [capacity] * num_buckets
    heap = [(0, bucket) for bucket in range(num_buckets)]
    bucket_S = np.zeros(len(cost_SK), dtype=np.int64)
    for item in order.tolist():
        _, bucket = heapq.heappop(heap)
        bucket_S[item] = bucket
        loads[bucket] = [load + cost for load, cost in zip(loads[bucket], costs[item], strict=True)]
        room[bucket] -= 1
        if room[bucket]:
            heapq.heappush(heap, (max(loads[bucket], default=0), bucket))
    return bucket_S


def _joint(cost_SK: Int64Array, order: Int64Array, num_buckets: int, capacity: int) -> Int64Array:
    load_BK = np.zeros((num_buckets, cost_SK.shape[1]), dtype=np.int64)
    count_B = np.zeros(num_buckets, dtype=np.int64)
    bucket_S = np.zeros(len(cost_SK), dtype=np.int64)
    for item in order.tolist():
        after_B = (load_BK + cost_SK[item]).max(axis=1)
        after_B[count_B == capacity] = np.iinfo(np.int64).max
        bucket = int(after_B.argmin())
        bucket_S[item] = bucket
        load_BK[bucket] += cost_SK[item]
        count_B[bucket] += 1
    return bucket_S

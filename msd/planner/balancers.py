"""Even out cost over buckets.

Each method takes integer costs and returns a bucket index for each item. Pure; called by `primitives.balance`.
"""

# S = items (sequences). K = modules.

import heapq

import numpy as np

from msd.core.arrays import Int64Array


def lpt(cost_SK: Int64Array, num_buckets: int, *, capacity: int | None = None) -> Int64Array:
    """Assign the costliest item first, each to the bucket with the lowest load and room.

    Longest processing time (Graham 1969): the heaviest bucket is at most 4/3 - 1/(3 num_buckets) of the best possible
    when buckets have no capacity.

    Args:
        cost_SK: Cost of each item in each module; with several, items and loads are compared by their largest.
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
    cost_lists = cost_SK.tolist()
    loads = [[0] * cost_SK.shape[1] for _ in range(num_buckets)]
    room = [num_items if capacity is None else capacity] * num_buckets
    heap = [(0, bucket) for bucket in range(num_buckets)]
    bucket_S = np.zeros(num_items, dtype=np.int64)
    heaviest_first = np.argsort(-cost_SK.max(axis=1, initial=0), kind="stable")
    for item in heaviest_first.tolist():
        _, bucket = heapq.heappop(heap)
        bucket_S[item] = bucket
        loads[bucket] = [load + cost for load, cost in zip(loads[bucket], cost_lists[item], strict=True)]
        room[bucket] -= 1
        if room[bucket]:
            heapq.heappush(heap, (max(loads[bucket], default=0), bucket))
    return bucket_S

"""Even out cost over buckets.

Each method takes integer costs and returns a bucket index for each item. Pure; called by `primitives.balance`.
"""

# S = items (sequences). K = modules. B = buckets.

import heapq
from collections.abc import Mapping
from typing import Protocol

import numpy as np

from msd.core.arrays import Int64Array

_JOINT_BUCKETS = 256


class Balancer(Protocol):
    """Assigns items to buckets."""

    def __call__(self, cost_SK: Int64Array, num_buckets: int, *, capacity: int | None = None) -> Int64Array:
        """Return the bucket of each item, int64 [S]."""
        ...


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
    _check_capacity(cost_SK, num_buckets, capacity)
    capacity = len(cost_SK) if capacity is None else capacity
    heaviest_first = _heaviest_first(cost_SK)
    if cost_SK.shape[1] > 1 and num_buckets <= _JOINT_BUCKETS:
        return _joint(cost_SK, heaviest_first, num_buckets, capacity)
    if cost_SK.shape[1] == 1 and capacity >= len(cost_SK):
        return _without_caps(cost_SK[:, 0], heaviest_first, num_buckets)
    return _lightest_first(cost_SK, heaviest_first, num_buckets, capacity)


def _lightest_first(cost_SK: Int64Array, order: Int64Array, num_buckets: int, capacity: int) -> Int64Array:
    if cost_SK.shape[1] == 1:
        return _lightest_by_one(cost_SK[:, 0], order, num_buckets, capacity)
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


def _without_caps(cost_S: Int64Array, order: Int64Array, num_buckets: int) -> Int64Array:
    """Return what `_lightest_first` does for one module and room for all, in a fraction of its time."""
    heap = [(0, bucket) for bucket in range(num_buckets)]
    buckets = []
    for cost in cost_S[order].tolist():
        load, bucket = heap[0]
        heapq.heapreplace(heap, (load + cost, bucket))
        buckets.append(bucket)
    bucket_S = np.empty(len(cost_S), dtype=np.int64)
    bucket_S[order] = buckets
    return bucket_S


def _lightest_by_one(cost_S: Int64Array, order: Int64Array, num_buckets: int, capacity: int) -> Int64Array:
    room = [capacity] * num_buckets
    heap = [(0, bucket) for bucket in range(num_buckets)]
    bucket_of = []
    for cost in cost_S[order].tolist():
        load, bucket = heap[0]
        bucket_of.append(bucket)
        room[bucket] -= 1
        if room[bucket]:
            heapq.heapreplace(heap, (load + cost, bucket))
        else:
            heapq.heappop(heap)
    bucket_S = np.empty(len(cost_S), dtype=np.int64)
    bucket_S[order] = bucket_of
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


def karmarkar_karp(cost_SK: Int64Array, num_buckets: int, *, capacity: int | None = None) -> Int64Array:
    """Assign by largest differencing: join the two partial assignments that differ most, heavy buckets to light ones.

    Karmarkar and Karp 1982, for any number of buckets. Without a capacity a partial assignment begins as one item. With
    one it begins as one item in every bucket, so that all buckets end with equal numbers of items, or one less.

    Args:
        cost_SK: Cost of each item in each module; buckets are compared by their largest module.
        num_buckets: Buckets to fill.
        capacity: Items that a bucket holds at most; None is any number.

    Returns:
        int64 [S]: bucket of each item. Ties go to the earlier item and the lower bucket.

    Raises:
        ValueError: If the items do not fit.
    """
    _check_capacity(cost_SK, num_buckets, capacity)
    num_items, num_modules = cost_SK.shape
    if not num_items:
        return np.zeros(0, dtype=np.int64)
    at_once = 1 if capacity is None else num_buckets
    order = _heaviest_first(cost_SK)
    heap: list[tuple[int, int, Int64Array, list[list[int]]]] = []
    for start in range(0, num_items, at_once):
        items = order[start : start + at_once].tolist()
        load_BK = np.zeros((num_buckets, num_modules), dtype=np.int64)
        load_BK[: len(items)] = cost_SK[items]
        held: list[list[int]] = [[item] for item in items] + [[] for _ in range(num_buckets - len(items))]
        heapq.heappush(heap, (-_spread(load_BK), start, load_BK, held))
    while len(heap) > 1:
        _, start, load_BK, held = heapq.heappop(heap)
        _, _, other_BK, other = heapq.heappop(heap)
        heaviest = np.argsort(-load_BK.max(axis=1, initial=0), kind="stable")
        lightest = np.argsort(other_BK.max(axis=1, initial=0), kind="stable")
        joined_BK = load_BK[heaviest] + other_BK[lightest]
        joined = [held[b] + other[o] for b, o in zip(heaviest.tolist(), lightest.tolist(), strict=True)]
        heapq.heappush(heap, (-_spread(joined_BK), start, joined_BK, joined))
    bucket_S = np.zeros(num_items, dtype=np.int64)
    for bucket, items in enumerate(heap[0][3]):
        bucket_S[items] = bucket
    return bucket_S


def zigzag(cost_SK: Int64Array, num_buckets: int, *, capacity: int | None = None) -> Int64Array:
    """Deal the costliest item first, to the buckets from the first to the last and back again.

    The cheapest method and the coarsest: it looks at the order of the items, not at what they cost.

    Args:
        cost_SK: Cost of each item in each module; items are compared by their largest module.
        num_buckets: Buckets to fill; their numbers of items differ by at most one.
        capacity: Items that a bucket holds at most; None is any number.

    Returns:
        int64 [S]: bucket of each item. Ties go to the earlier item.

    Raises:
        ValueError: If the items do not fit.
    """
    _check_capacity(cost_SK, num_buckets, capacity)
    turn, place = np.divmod(np.arange(len(cost_SK)), num_buckets)
    bucket_S = np.zeros(len(cost_SK), dtype=np.int64)
    bucket_S[_heaviest_first(cost_SK)] = np.where(turn % 2 == 0, place, num_buckets - 1 - place)
    return bucket_S


BALANCERS: Mapping[str, Balancer] = {"lpt": lpt, "karmarkar_karp": karmarkar_karp, "zigzag": zigzag}


def _heaviest_first(cost_SK: Int64Array) -> Int64Array:
    order: Int64Array = np.argsort(-cost_SK.max(axis=1, initial=0), kind="stable")
    return order


def _spread(load_BK: Int64Array) -> int:
    load_B = load_BK.max(axis=1, initial=0)
    return int(load_B.max() - load_B.min())


def _check_capacity(cost_SK: Int64Array, num_buckets: int, capacity: int | None) -> None:
    if capacity is not None and len(cost_SK) > num_buckets * capacity:
        raise ValueError(f"{len(cost_SK)} items do not fit {num_buckets} buckets of {capacity}")

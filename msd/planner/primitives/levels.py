"""Rows that come to cost what their slot's level says, by rounds of trades.

Ranks meet in every slot, so rows sorted by cost and cut into slots are the best a set of rows can be: what counts is
that the rows of a slot are level. Each slot has a level, the mean of its rows, or more where a document in it cannot
cost less; rows above their level give to rows below theirs, in whichever slot, as long as the slowest rows together
get cheaper.
"""

# D = documents. S = sequences. R = rows. Q = sequences of a row. K = modules. B = buckets. M = slots.
# N = pairs of rows. P = subsets of what a pair may trade.

from dataclasses import dataclass

import numpy as np

from msd.core.arrays import Float64Array, Int64Array
from msd.planner.floors import RowBounds, row_bounds
from msd.planner.primitives.layout import Grid
from msd.planner.primitives.trades import Holdings, scattered

_MAX_PAIRS = 512
"""Pairs of rows that trade in a round."""
_MAX_ROUNDS = 96
_PATIENCE = 14
"""Rounds without a gain after which it ends."""
_LEVEL = 1 / 3000
"""A row within this fraction of a mean row of its level is level ..."""
_GOOD_ENOUGH = 1 / 500
"""... and it ends where the slowest rows are on average within this fraction of a mean row of their levels."""
_GAIN = 0.999
"""A trade must lower the sum of both rows' squared distances from their levels at least to this part of it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Standing:
    """How far rows are from level."""

    slowest: int
    """Cost of the slowest rows of all slots together."""
    level_R: Float64Array
    excess_RK: Float64Array
    """By module, what a row costs above its level; negative below it."""
    excess_R: Float64Array
    """Of the costliest module."""
    over: float
    """What the slowest rows together are above their levels."""


def level_rows(
    sequences: list[list[int]], sequences_RQ: Int64Array, cost_DK: Int64Array, padded_D: Int64Array, grid: Grid
) -> list[list[int]]:
    """Return the documents of each sequence after trades that make the slowest row of each slot cheaper.

    Args:
        sequences: Documents of each sequence before.
        sequences_RQ: The sequences of each row; the same before and after.
        cost_DK: Integer cost of each document.
        padded_D: Extent of each document.
        grid: Numbers of buckets and slots; rows go to slots in order of cost.
    """
    if len(sequences_RQ) < 2:
        return sequences
    holdings = Holdings(sequences, cost_DK, padded_D, grid.sequence_length)
    bounds = _bounds(cost_DK, padded_D, grid)
    mean_row = float(cost_DK.sum(axis=0).max()) / len(sequences_RQ)
    best, best_D, gained_at = None, holdings.sequence_D, 0
    for turn in range(_MAX_ROUNDS):
        cost_RK = holdings.cost_SK[sequences_RQ].sum(axis=1)
        standing = _standing(cost_RK, bounds, grid)
        if best is None or standing.slowest < best:
            gained_at = turn if best is None or standing.slowest < best - mean_row / 4096 else gained_at
            best, best_D = standing.slowest, holdings.sequence_D.copy()
        giver_N, taker_N = _pairs(standing.excess_R, turn, _LEVEL * mean_row)
        is_level = standing.over <= _GOOD_ENOUGH * mean_row * grid.num_microbatches
        if is_level or not len(giver_N) or turn - gained_at > _PATIENCE:
            break
        _trade_rows(holdings, sequences_RQ, giver_N, taker_N, standing, turn)
    holdings.sequence_D = best_D
    return holdings.lists()


def _bounds(cost_DK: Int64Array, padded_D: Int64Array, grid: Grid) -> RowBounds | None:
    """Return what rows can cost; None with several modules, of which each has its own bounds."""
    if cost_DK.shape[1] > 1:
        return None
    shape = (grid.num_buckets, grid.num_microbatches, grid.sequence_length, grid.sequences_per_row)
    return row_bounds(cost_DK[:, 0].astype(np.float64), padded_D, *shape)


def _standing(cost_RK: Int64Array, bounds: RowBounds | None, grid: Grid) -> _Standing:
    value_R = cost_RK.max(axis=1)
    order = np.argsort(-value_R, kind="stable")
    value_MB = value_R[order].reshape(grid.num_microbatches, grid.num_buckets)
    level_M = value_MB.sum(axis=1) / grid.num_buckets
    aimed_R = np.repeat(level_M, grid.num_buckets)
    if bounds is not None:
        is_bound_M = bounds.least_M > level_M
        aimed_R = np.minimum(np.repeat(np.maximum(level_M, bounds.least_M), grid.num_buckets), bounds.most_R)
        # What rows under a bound are to take comes from the slots that have none.
        is_free_R = np.repeat(~is_bound_M, grid.num_buckets)
        if is_free_R.any():
            aimed_R -= is_free_R * (float(aimed_R.sum() - value_R.sum()) / int(is_free_R.sum()))
    level_R = np.empty(len(value_R))
    level_R[order] = aimed_R
    excess_RK = cost_RK - level_R[:, None]
    tops_M = aimed_R.reshape(value_MB.shape).max(axis=1)
    over = float(np.maximum(0.0, value_MB[:, 0] - tops_M).sum())
    return _Standing(int(value_MB[:, 0].sum()), level_R, excess_RK, excess_RK.max(axis=1), over)


def _pairs(excess_R: Float64Array, turn: int, level: float) -> tuple[Int64Array, Int64Array]:
    """Return rows that give and rows that take, each row once.

    In even turns the farthest above their level meet the farthest below it; in odd turns they meet any that are below,
    and now and then the farthest either way meet any others.
    """
    highest_first = np.argsort(-excess_R, kind="stable")
    num_above = int((excess_R > level).sum())
    if turn % 2 == 0:
        num_pairs = min(num_above, int((excess_R < -level).sum()), _MAX_PAIRS)
        return highest_first[:num_pairs], np.roll(highest_first[::-1][:num_pairs], turn // 2)
    if turn % 4 == 3:
        num_pairs = min(num_above, len(excess_R) // 2, _MAX_PAIRS)
        others = highest_first[num_pairs:]
        is_below = excess_R[others] < 0
        others = others[is_below] if is_below.sum() >= num_pairs else others
        return highest_first[:num_pairs], _any_of(others, num_pairs, turn)
    farthest_first = np.argsort(-np.abs(excess_R), kind="stable")
    num_pairs = min(int((np.abs(excess_R) > level).sum()), len(excess_R) // 2, _MAX_PAIRS)
    far_N, near_N = farthest_first[:num_pairs], _any_of(farthest_first[num_pairs:], num_pairs, turn)
    gives_N = excess_R[far_N] >= excess_R[near_N]
    return np.where(gives_N, far_N, near_N), np.where(gives_N, near_N, far_N)


def _any_of(rows: Int64Array, num_rows: int, turn: int) -> Int64Array:
    return rows[np.argsort(scattered(rows, turn), kind="stable")[:num_rows]]


def _trade_rows(
    holdings: Holdings,
    sequences_RQ: Int64Array,
    giver_N: Int64Array,
    taker_N: Int64Array,
    standing: _Standing,
    turn: int,
) -> None:
    per_row = sequences_RQ.shape[1]
    give_NK, take_NK = standing.excess_RK[giver_N], standing.excess_RK[taker_N]

    def score(change_K: list[Int64Array], pair_C: Int64Array) -> Float64Array:
        give_C, take_C = give_NK[pair_C, 0] - change_K[0], take_NK[pair_C, 0] + change_K[0]
        for k in range(1, len(change_K)):
            np.maximum(give_C, give_NK[pair_C, k] - change_K[k], out=give_C)
            np.maximum(take_C, take_NK[pair_C, k] + change_K[k], out=take_C)
        scored: Float64Array = give_C * give_C + take_C * take_C
        return scored

    before_N = standing.excess_R[giver_N] ** 2 + standing.excess_R[taker_N] ** 2
    holdings.trade(
        sequences_RQ[giver_N, turn % per_row],
        sequences_RQ[taker_N, turn // per_row % per_row],
        score,
        before_N * _GAIN,
        turn,
    )

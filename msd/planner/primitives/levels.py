"""Rows that come to cost what their slot's level says, by rounds of trades.

Ranks meet in every slot, so rows sorted by cost and cut into slots are the best a set of rows can be: what counts is
that the rows of a slot are level. Each slot has a level, half-way from the mean of its rows to the slowest, or more
where a document in it cannot cost less; rows above their level give to rows below theirs, in whichever slot, as long as
the slowest rows together get cheaper.
"""

# D = documents. S = sequences. R = rows. Q = sequences of a row. K = modules. B = buckets. M = slots.
# N = pairs of rows. P = subsets of what a pair may trade.

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from msd.core.arrays import Float64Array, Int64Array
from msd.planner.floors import CheapestFirst, RowBounds, least_tokens, row_bounds
from msd.planner.primitives.layout import Grid
from msd.planner.primitives.matches import match
from msd.planner.primitives.trades import Holdings, scattered

_MAX_PAIRS = 512
"""Pairs of rows that trade in a round, and sequences that look for documents in one."""
_MAX_ROUNDS = 200
_PATIENCE = 24
"""Rounds without a gain after which it ends."""
_DOCUMENTS_A_ROUND = 10
"""There is a round for so many documents, that planning costs about as much a sample whatever a step holds."""
_LEVEL = 1 / 3000
"""A row within this fraction of a mean row of its level is level ..."""
_GOOD_ENOUGH = 1 / 600
"""... and it ends where the slowest rows are on average within this fraction of a mean row of their levels."""
_BUCKET_GOOD_ENOUGH = 1 / 200
"""A costliest bucket within this fraction of the mean is left alone."""
_GAIN = 0.999
"""A trade must lower the sum of both rows' squared distances from their levels at least to this part of it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Standing:
    """How far rows are from what they aim at."""

    value: int
    """What is to be small."""
    excess_RK: Float64Array
    """By module, what a row costs above its level; negative below it."""
    is_level: bool

    @property
    def excess_R(self) -> Float64Array:
        """Of the costliest module."""
        excess: Float64Array = self.excess_RK.max(axis=1)
        return excess


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
    holdings = Holdings(sequences, cost_DK, padded_D, grid.sequence_length, grid.limits)
    # With several modules each would have bounds of its own.
    bounds = _Bounds(cost_DK[:, 0], padded_D, sequences_RQ, grid) if cost_DK.shape[1] == 1 else None

    def aim(cost_RK: Int64Array) -> _Standing:
        return _toward_levels(cost_RK, None if bounds is None else bounds.of(holdings.sequence_D), grid)

    return holdings.lists() if _trade(holdings, sequences_RQ, aim) else sequences


def level_buckets(
    sequences: list[list[int]], sequences_RQ: Int64Array, cost_DK: Int64Array, padded_D: Int64Array, grid: Grid
) -> list[list[int]]:
    """Return the documents of each sequence after trades that make the costliest bucket cheaper.

    What the costliest bucket loses counts a quarter more than what that adds to the slowest rows of slots. First rows
    take only as far as there is room below the slowest row of their slot. Then, where that was not enough, a row that
    takes more is a price that is paid once: all rows of the slot may take as much.

    Args:
        sequences: Documents of each sequence before.
        sequences_RQ: The sequences of each row, slot after slot and in each slot bucket after bucket.
        cost_DK: Integer cost of each document.
        padded_D: Extent of each document.
        grid: Numbers of buckets and slots.
    """
    holdings = Holdings(sequences, cost_DK, padded_D, grid.sequence_length, grid.limits)
    gentle = _trade(holdings, sequences_RQ, partial(_toward_buckets, grid=grid, is_gentle=True))
    firm = _trade(holdings, sequences_RQ, partial(_toward_buckets, grid=grid, is_gentle=False))
    return holdings.lists() if gentle or firm else sequences


def _trade(holdings: Holdings, sequences_RQ: Int64Array, aim: Callable[[Int64Array], _Standing]) -> bool:
    """Let rows trade for rounds, and leave the best that they came by; return whether that is not how they began."""
    mean_row = float(holdings.cost_SK.sum(axis=0).max()) / len(sequences_RQ)
    num_rounds = min(_MAX_ROUNDS, max(12, len(holdings.sequence_D) // _DOCUMENTS_A_ROUND))
    patience = min(_PATIENCE, 4 + num_rounds // 6)
    row_S = np.empty(sequences_RQ.size, dtype=np.int64)
    row_S[sequences_RQ] = np.arange(len(sequences_RQ))[:, None]
    best, best_D, best_at, gained_at = None, holdings.sequence_D, 0, 0
    for turn in range(num_rounds if len(sequences_RQ) > 1 else 0):
        standing = aim(holdings.cost_SK[sequences_RQ].sum(axis=1))
        if best is None or standing.value < best:
            gained_at = turn if best is None or standing.value < best - mean_row / 4096 else gained_at
            best, best_D, best_at = standing.value, holdings.sequence_D.copy(), turn
        giver_N, taker_N = _pairs(standing.excess_R, turn, _LEVEL * mean_row)
        if standing.is_level or turn - gained_at > patience:
            break
        if turn % 4 == 1:
            _match(holdings, sequences_RQ, row_S, standing, _LEVEL * mean_row)
        elif len(giver_N):
            _trade_rows(holdings, sequences_RQ, giver_N, taker_N, standing.excess_RK, turn)
    holdings.sequence_D = best_D
    return best_at > 0


class _Bounds:
    """What rows can cost, whichever documents they hold besides the long ones that they hold now."""

    def __init__(self, cost_D: Int64Array, padded_D: Int64Array, sequences_RQ: Int64Array, grid: Grid) -> None:
        shape = (grid.num_buckets, grid.num_microbatches, grid.sequence_length, grid.sequences_per_row)
        costs_D = cost_D.astype(np.float64)
        self._cheapest = CheapestFirst(costs_D, padded_D)
        self._rows = row_bounds(costs_D, padded_D, *shape, self._cheapest)
        self._long = np.flatnonzero(2 * padded_D > grid.sequence_length)
        self._cost, self._tokens = costs_D[self._long], padded_D[self._long]
        self._row_S = np.empty(sequences_RQ.size, dtype=np.int64)
        self._row_S[sequences_RQ] = np.arange(len(sequences_RQ))[:, None]
        row_tokens = grid.sequences_per_row * grid.sequence_length
        self._must_hold = least_tokens(padded_D, row_tokens, sequences_RQ.size * grid.sequence_length)

    def of(self, sequence_D: Int64Array) -> tuple[Float64Array, RowBounds]:
        """Return the least that each row can cost with the long documents that it holds, and the bounds of any rows."""
        row = self._row_S[sequence_D[self._long]]
        cost_R = np.bincount(row, weights=self._cost, minlength=self._num_rows)
        tokens_R = np.bincount(row, weights=self._tokens, minlength=self._num_rows).astype(np.int64)
        return cost_R + self._cheapest.cost_of(np.maximum(0, self._must_hold - tokens_R)), self._rows

    @property
    def _num_rows(self) -> int:
        return len(self._rows.most_R)


def _toward_levels(cost_RK: Int64Array, bounds: tuple[Float64Array, RowBounds] | None, grid: Grid) -> _Standing:
    value_R = cost_RK.max(axis=1)
    order = np.argsort(-value_R, kind="stable")
    value_MB = value_R[order].reshape(grid.num_microbatches, grid.num_buckets)
    level_MK = cost_RK[order].reshape(*value_MB.shape, -1).sum(axis=1) / grid.num_buckets
    aimed_RK = np.repeat(level_MK, grid.num_buckets, axis=0)
    if bounds is not None:
        level_M = level_MK[:, 0]
        least_R, rows = bounds
        least_M = np.maximum(rows.least_M, least_R[order].reshape(value_MB.shape).max(axis=1))
        is_bound_M = least_M > level_M
        lift_M = (value_MB[:, 0] - level_M) * ~is_bound_M / 2
        aimed_M = np.maximum(level_M + lift_M, least_M)
        aimed_R = np.minimum(np.repeat(aimed_M, grid.num_buckets), rows.most_R)
        # What rows under a bound are to take comes from the slots that have none.
        is_free_R = np.repeat(~is_bound_M, grid.num_buckets)
        if is_free_R.any():
            aimed_R -= is_free_R * (float(aimed_R.sum() - value_R.sum()) / int(is_free_R.sum()))
        aimed_RK = aimed_R[:, None]
    level_RK = np.empty(cost_RK.shape)
    level_RK[order] = aimed_RK
    over_M = value_MB[:, 0] - aimed_RK.reshape(len(value_MB), -1).max(axis=1)
    is_level = float(np.maximum(0.0, over_M).mean()) <= _GOOD_ENOUGH * float(value_R.mean())
    return _Standing(int(value_MB[:, 0].sum()), cost_RK - level_RK, is_level)


def _toward_buckets(cost_RK: Int64Array, grid: Grid, *, is_gentle: bool) -> _Standing:
    cost_MBK = cost_RK.reshape(grid.num_microbatches, grid.num_buckets, -1)
    load_BK = cost_MBK.sum(axis=0)
    mean_K = load_BK.sum(axis=0) / grid.num_buckets
    excess_BK = load_BK - mean_K
    costliest = int(load_BK.max())
    value = costliest + costliest // 4 + int(cost_MBK.max(axis=2).max(axis=1).sum())
    is_level = costliest - float(mean_K.max()) <= _BUCKET_GOOD_ENOUGH * float(mean_K.max())
    # Each row of a bucket is to give its part, half of it at a time: no more is paid than is needed.
    part_MBK = np.repeat((excess_BK / (2 * grid.num_microbatches))[None], grid.num_microbatches, axis=0)
    if is_gentle:
        room_MBK = cost_MBK.max(axis=1, keepdims=True) - cost_MBK
        part_MBK = np.where(excess_BK > 0, part_MBK, -room_MBK / 2)
    return _Standing(value, part_MBK.reshape(cost_RK.shape), is_level)


def _pairs(excess_R: Float64Array, turn: int, level: float) -> tuple[Int64Array, Int64Array]:
    """Return rows that give and rows that take, each row once.

    In even turns the farthest above their level meet the farthest below it; in odd turns they meet any that are below.
    """
    highest_first = np.argsort(-excess_R, kind="stable")
    num_above = int((excess_R > level).sum())
    if turn % 2 == 0:
        num_pairs = min(num_above, int((excess_R < -level).sum()), _MAX_PAIRS)
        return highest_first[:num_pairs], np.roll(highest_first[::-1][:num_pairs], turn // 2)
    num_pairs = min(num_above, len(excess_R) // 2, _MAX_PAIRS)
    others = highest_first[num_pairs:]
    is_below = excess_R[others] < 0
    others = others[is_below] if is_below.sum() >= num_pairs else others
    return highest_first[:num_pairs], _any_of(others, num_pairs, turn)


def _any_of(rows: Int64Array, num_rows: int, turn: int) -> Int64Array:
    return rows[np.argsort(scattered(rows, turn), kind="stable")[:num_rows]]


def _match(holdings: Holdings, sequences_RQ: Int64Array, row_S: Int64Array, standing: _Standing, worth: float) -> None:
    """Let the sequences of the rows farthest from their levels look for documents that fit."""
    farthest_first = np.argsort(-np.abs(standing.excess_R), kind="stable")
    num_rows = max(1, _MAX_PAIRS // sequences_RQ.shape[1])
    match(holdings, sequences_RQ[farthest_first[:num_rows]].ravel(), row_S, standing.excess_RK, worth**2)


def _trade_rows(
    holdings: Holdings,
    sequences_RQ: Int64Array,
    giver_N: Int64Array,
    taker_N: Int64Array,
    excess_RK: Float64Array,
    turn: int,
) -> None:
    held_S = np.bincount(holdings.sequence_D, minlength=sequences_RQ.size)
    give_NK, take_NK = excess_RK[giver_N], excess_RK[taker_N]

    def score(change_K: list[Int64Array], pair_C: Int64Array) -> Float64Array:
        scored = np.zeros(len(pair_C))
        for k, change_C in enumerate(change_K):
            scored += (give_NK[pair_C, k] - change_C) ** 2 + (take_NK[pair_C, k] + change_C) ** 2
        return scored

    holdings.trade(
        _one_of(sequences_RQ[giver_N], held_S, turn),
        _one_of(sequences_RQ[taker_N], held_S, turn + _MAX_ROUNDS),
        score,
        ((give_NK**2).sum(axis=1) + (take_NK**2).sum(axis=1)) * _GAIN,
        turn,
    )


def _one_of(sequences_NQ: Int64Array, held_S: Int64Array, turn: int) -> Int64Array:
    """Return one sequence of each row, any but those of a single document, which has nothing to trade with."""
    num_rows, per_row = sequences_NQ.shape
    first_N = scattered(sequences_NQ[:, 0], turn) % per_row
    turned_NQ = np.take_along_axis(sequences_NQ, (first_N[:, None] + np.arange(per_row)) % per_row, axis=1)
    chosen_N: Int64Array = turned_NQ[np.arange(num_rows), (held_S[turned_NQ] > 1).argmax(axis=1)]
    return chosen_N

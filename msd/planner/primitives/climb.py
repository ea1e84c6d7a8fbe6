"""Lower the slowest row of each slot by trades of whole sequences, as long as they help."""

# K = modules. M = slots. B = buckets. P, Q = what the two sides of a trade may give.

from collections.abc import Iterator

import numpy as np

from msd.core.arrays import Int64Array
from msd.planner.primitives.exchange import Place, Rows

_PARTNERS = 12
"""Rows that are asked to trade before a row counts as stuck."""
_WORTH_A_TRADE = 4096
"""A trade must lower the slowest row by at least this fraction of a mean row ..."""
_GOOD_ENOUGH = 1500
"""... and what is within this fraction of its mean is left alone."""

_NONE = np.iinfo(np.int64).min


def even_slots(rows: Rows, *, max_tries: int) -> None:
    """Lower the slowest row of each slot the worst slot first, until nothing helps or the tries are used up.

    A slot whose slowest row cannot be lowered is *stuck*: its other rows may then rise to that row for free, which lets
    other slots give to it. The slowest rows of all slots together never get slower.
    """
    mean_row = int(rows.value_MB.mean())
    stuck_M = np.zeros(len(rows.rows), dtype=np.bool_)
    tries = 0
    while tries < max_tries:
        top_M = rows.value_MB.max(axis=1)
        level_M = np.where(stuck_M, top_M, rows.value_MB.sum(axis=1) // rows.value_MB.shape[1])
        excess_M = top_M - level_M
        slot = int(excess_M.argmax())
        if excess_M[slot] <= mean_row // _GOOD_ENOUGH:
            return
        giver = (slot, int(rows.value_MB[slot].argmax()))
        # Room is asked for in the module that makes the giver slow; the score sees to the others.
        room_MB = level_M[:, None] - rows.cost_MBK[:, :, int(rows.cost_MBK[giver].argmax())]
        room_MB[giver] = _NONE
        limit = int(excess_M[slot]) - max(1, mean_row // _WORTH_A_TRADE)
        for taker in _by_room(room_MB):
            tries += 1
            if _trade_in_slots(rows, giver, taker, level_M, limit):
                break
        else:
            stuck_M[slot] = True


def _by_room(room_MB: Int64Array) -> Iterator[Place]:
    """Yield the rows with the most room, without those that have `_NONE`."""
    for _ in range(_PARTNERS):
        slot, bucket = divmod(int(room_MB.argmax()), room_MB.shape[1])
        if room_MB[slot, bucket] == _NONE:
            return
        yield slot, bucket
        room_MB[slot, bucket] = _NONE


def _trade_in_slots(rows: Rows, giver: Place, taker: Place, level_M: Int64Array, limit: int) -> bool:
    """Trade so that the larger of both rows' heights above their slots' levels is least."""
    give_K = rows.cost_MBK[giver] - level_M[giver[0]]
    take_K = rows.cost_MBK[taker] - level_M[taker[0]]
    slots = sorted({giver[0], taker[0]})
    before = int(rows.value_MB[slots].max(axis=1).sum())

    def score(given_PK: Int64Array, taken_QK: Int64Array) -> Int64Array:
        return _larger(give_K, take_K, given_PK, taken_QK)

    def is_allowed(change_K: Int64Array) -> bool:
        after_MB = rows.value_MB[slots]
        after_MB[slots.index(giver[0]), giver[1]] = (rows.cost_MBK[giver] - change_K).max()
        after_MB[slots.index(taker[0]), taker[1]] = (rows.cost_MBK[taker] + change_K).max()
        return int(after_MB.max(axis=1).sum()) <= before

    return rows.trade(giver, taker, score, is_allowed, limit)


def _larger(give_K: Int64Array, take_K: Int64Array, given_PK: Int64Array, taken_QK: Int64Array) -> Int64Array:
    """Return the larger of both sides after each trade, [P, Q], each side being its largest module."""
    larger_PQ: Int64Array = np.full((len(given_PK), len(taken_QK)), np.iinfo(np.int64).min)
    for k in range(len(give_K)):
        change_PQ = given_PK[:, None, k] - taken_QK[None, :, k]
        np.maximum(larger_PQ, give_K[k] - change_PQ, out=larger_PQ)
        np.maximum(larger_PQ, take_K[k] + change_PQ, out=larger_PQ)
    return larger_PQ

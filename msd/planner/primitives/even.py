"""Rows whose slots, buckets, or all of them cost the same: from packed sequences, by deals and trades.

Sequences go to rows by cost, then rows trade sequences and documents under the cap of a sequence.
"""

# D = documents. S = sequences. K = modules. B = buckets. M = slots. R = rows.

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from msd.core.arrays import BoolArray, Int64Array
from msd.planner.balancers import Balancer
from msd.planner.primitives.climb import even_slots
from msd.planner.primitives.exchange import Rows, sums
from msd.planner.primitives.layout import Grid, Layout, by_slot
from msd.planner.primitives.levels import level_buckets, level_rows
from msd.planner.primitives.objective import lockstep_excess

_MAX_TRIES = 400
_LEVEL_ALREADY = 0.003
"""Excess of lockstep up to which rows are not traded for less."""


def evened_slots(
    sequences: list[list[int]], cost_DK: Int64Array, padded_D: Int64Array, grid: Grid, deal: Balancer, *, cuts: bool
) -> Rows:
    """Return rows such that the buckets of each slot cost the same: rows of like cost share a slot."""
    if grid.sequences_per_row == 1:
        of_row = [[s] for s in range(len(sequences))]
    else:
        of_row = _dealt(sequences, cost_DK, grid, deal, cuts=cuts)
    sequences, of_row = _leveled(sequences, of_row, cost_DK, padded_D, grid, cuts=cuts)
    return Rows(sequences, _bands(of_row, sequences, cost_DK, grid), cost_DK)


def evener_buckets(rows: Rows, cost_DK: Int64Array, padded_D: Int64Array, grid: Grid) -> Rows:
    """Return rows whose buckets are evener, as far as that is worth its price in lockstep."""
    sequences_RQ = np.array([row for slot in rows.rows for row in slot], dtype=np.int64)
    sequences = level_buckets(rows.sequences, sequences_RQ, cost_DK, padded_D, grid)
    return Rows(sequences, rows.rows, cost_DK)


def evened_buckets(
    sequences: list[list[int]], cost_DK: Int64Array, padded_D: Int64Array, grid: Grid, deal: Balancer, *, cuts: bool
) -> Rows:
    """Return rows such that buckets cost the same, and the rows of a bucket about the same."""
    per_bucket = grid.num_microbatches * grid.sequences_per_row
    bucket_S = deal(_weighted(sequences, cost_DK), grid.num_buckets, capacity=per_bucket)
    whole = [np.flatnonzero(bucket_S == bucket).tolist() for bucket in range(grid.num_buckets)]
    one_slot = replace(grid, num_microbatches=1, sequences_per_row=per_bucket)
    sequences, buckets = _leveled(sequences, whole, cost_DK, padded_D, one_slot, cuts=cuts)
    slots: list[list[list[int]]] = [[] for _ in range(grid.num_microbatches)]
    for held in buckets:
        cost_SK = _weighted([sequences[s] for s in held], cost_DK)
        slot_S = deal(cost_SK, grid.num_microbatches, capacity=grid.sequences_per_row)
        for slot in range(grid.num_microbatches):
            slots[slot].append([held[place] for place in np.flatnonzero(slot_S == slot).tolist()])
    return Rows(sequences, slots, cost_DK)


def evened_rows(
    sequences: list[list[int]], cost_DK: Int64Array, padded_D: Int64Array, grid: Grid, deal: Balancer, *, cuts: bool
) -> Rows:
    """Return rows that all cost the same, as far as they can; rows of like cost share a slot."""
    num_rows = grid.num_buckets * grid.num_microbatches
    row_S = deal(_weighted(sequences, cost_DK), num_rows, capacity=grid.sequences_per_row)
    of_row = [np.flatnonzero(row_S == row).tolist() for row in range(num_rows)]
    one_slot = replace(grid, num_buckets=num_rows, num_microbatches=1)
    sequences, of_row = _leveled(sequences, of_row, cost_DK, padded_D, one_slot, cuts=cuts)
    return Rows(sequences, _bands(of_row, sequences, cost_DK, grid), cost_DK)


def grouped_rows(layout: Layout, together_D: BoolArray, cost_DK: Int64Array, padded_D: Int64Array, grid: Grid) -> Rows:
    """Return the rows of a layout with those that hold such documents in the first slots, each group by cost."""
    of_row = [row for slot in layout.rows for row in slot]
    value_R = layout.cost_MB(cost_DK).ravel()
    has_R = np.bincount(layout.row_D, weights=together_D, minlength=len(of_row)) > 0
    order = np.lexsort((-value_R, ~has_R)).tolist()
    slots = by_slot([of_row[row] for row in order], grid)
    return Rows(layout.sequences, slots, cost_DK)


def _leveled(
    sequences: list[list[int]],
    of_row: list[list[int]],
    cost_DK: Int64Array,
    padded_D: Int64Array,
    grid: Grid,
    *,
    cuts: bool,
) -> tuple[list[list[int]], list[list[int]]]:
    """Return sequences and rows after trades of whole sequences, then of documents unless these were cut."""
    if grid.sequences_per_row > 1:
        rows = Rows(sequences, _bands(of_row, sequences, cost_DK, grid), cost_DK)
        even_slots(rows, max_tries=min(_MAX_TRIES, 8 * len(of_row)))
        of_row = [row for slot in rows.rows for row in slot]
        if lockstep_excess(rows.value_MB) <= _LEVEL_ALREADY:
            return sequences, of_row
    if not cuts:
        sequences = level_rows(sequences, np.array(of_row, dtype=np.int64), cost_DK, padded_D, grid)
    return sequences, of_row


def _dealt(
    sequences: list[list[int]], cost_DK: Int64Array, grid: Grid, deal: Balancer, *, cuts: bool
) -> list[list[int]]:
    """Return rows of several sequences, of like cost within bands of one row a bucket.

    Sequences of like cost, dealt within each band, give level slots at once, unless long documents stand out: then
    rows dealt from all sequences have more to trade with, and the long ones are apart. With several modules trades come
    less far, so that what bands give counts more.
    """
    cost_SK, num_rows = _weighted(sequences, cost_DK), grid.num_buckets * grid.num_microbatches
    anywhere = _rows_of(deal(cost_SK, num_rows, capacity=grid.sequences_per_row), range(len(sequences)), num_rows)
    if not all(sequences):
        # Bands would leave the empty sequences to the last rows alone; over all rows each gets its share.
        return anywhere
    costliest_first = np.argsort(-cost_SK.max(axis=1), kind="stable")
    banded: list[list[int]] = []
    for band in costliest_first.reshape(grid.num_microbatches, -1):
        row_S = deal(cost_SK[band], grid.num_buckets, capacity=grid.sequences_per_row)
        banded.extend(_rows_of(row_S, band.tolist(), grid.num_buckets))
    excess = {id(rows): _banded_excess(rows, cost_SK, grid) for rows in (banded, anywhere)}
    if cuts:
        return min(banded, anywhere, key=lambda rows: excess[id(rows)])
    is_joint = cost_SK.shape[1] > 1
    return banded if is_joint or excess[id(banded)] <= _LEVEL_ALREADY else anywhere


def _rows_of(row_S: Int64Array, sequences: Sequence[int], num_rows: int) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(num_rows)]
    for sequence, row in zip(sequences, row_S.tolist(), strict=True):
        rows[row].append(sequence)
    return rows


def _banded_excess(of_row: list[list[int]], cost_SK: Int64Array, grid: Grid) -> float:
    """Return the lockstep excess of rows once those of like cost share a slot."""
    value_R = cost_SK[np.array(of_row, dtype=np.int64)].sum(axis=1).max(axis=1)
    return lockstep_excess(np.sort(value_R)[::-1].reshape(grid.num_microbatches, -1))


def _bands(
    of_row: list[list[int]], sequences: list[list[int]], cost_DK: Int64Array, grid: Grid
) -> list[list[list[int]]]:
    """Return rows by slot, the costliest slot first: of all ways to group rows, the one with the least lockstep."""
    value_R = sums(cost_DK, [[d for s in row for d in sequences[s]] for row in of_row]).max(axis=1).tolist()
    order = sorted(range(len(of_row)), key=lambda row: (-value_R[row], row))
    return by_slot([of_row[row] for row in order], grid)


def arrange_buckets(rows: Rows) -> None:
    """Give each slot's rows to buckets so that buckets cost the same; lockstep does not change."""
    num_slots, num_buckets, _ = rows.cost_MBK.shape
    load_BK = np.zeros_like(rows.cost_MBK[0])
    turn_MB = np.zeros((num_slots, num_buckets), dtype=np.int64)
    spread_M = rows.value_MB.max(axis=1) - rows.value_MB.min(axis=1)
    for slot in np.argsort(-spread_M, kind="stable").tolist():
        lightest_first = np.argsort(load_BK.max(axis=1), kind="stable")
        turn_MB[slot, lightest_first] = np.argsort(-rows.value_MB[slot], kind="stable")
        load_BK += rows.cost_MBK[slot, turn_MB[slot]]
    cost_MBK = np.take_along_axis(rows.cost_MBK, turn_MB[:, :, None], axis=1)
    for _ in range(min(256, 4 * num_buckets)):
        if not _swap_rows(cost_MBK, turn_MB):
            break
    rows.rows = [[rows.rows[slot][b] for b in turn_MB[slot].tolist()] for slot in range(num_slots)]
    rows.cost_MBK = cost_MBK
    rows.value_MB = cost_MBK.max(axis=2)


def _swap_rows(cost_MBK: Int64Array, turn_MB: Int64Array) -> bool:
    """Swap one row of the costliest bucket with the row of another bucket in the same slot, if that helps."""
    load_BK = cost_MBK.sum(axis=0)
    heavy = int(load_BK.max(axis=1).argmax())
    change_MBK = cost_MBK[:, heavy : heavy + 1] - cost_MBK
    after_MB = np.maximum((load_BK[heavy] - change_MBK).max(axis=2), (load_BK + change_MBK).max(axis=2))
    slot, other = divmod(int(after_MB.argmin()), after_MB.shape[1])
    if after_MB[slot, other] >= load_BK[heavy].max():
        return False
    for array in (cost_MBK, turn_MB):
        array[slot, [heavy, other]] = array[slot, [other, heavy]]
    return True


def _weighted(sequences: list[list[int]], cost_DK: Int64Array) -> Int64Array:
    """Return costs of sequences, at least 1 where there is a document, so that no row stays without one by a tie."""
    return sums(cost_DK, sequences) + np.array([bool(docs) for docs in sequences], dtype=np.int64)[:, None]

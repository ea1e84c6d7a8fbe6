"""Even out cost over buckets, and over the buckets of each slot; never changes what a step holds.

It starts from the sequences that packing made, which always fit: sequences go to rows by cost, then rows trade
sequences and documents under the cap of a sequence.
"""

# D = documents. S = sequences. K = modules. B = buckets. M = slots. Q = sequences of a row.

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from msd.core.arrays import Float64Array, Int64Array
from msd.errors import ConfigError
from msd.planner.balancers import lpt
from msd.planner.primitives.climb import even_buckets, even_slots
from msd.planner.primitives.exchange import Rows, sums
from msd.planner.primitives.layout import Grid, Layout, by_slot, finished, packed_layout

METHODS = ("lpt", "none")
ACROSS = ("bucket", "microbatch")
_MAX_TRIES = 1200
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Balance:
    """Op of a graph: what is evened out, and how."""

    method: Literal["lpt", "none"] = "lpt"
    across: tuple[str, ...] = ACROSS
    min_gain: float = 0.0
    """Relative gain of the objective below which the packed layout is kept."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"balance has no method {self.method!r}; the methods are {', '.join(METHODS)}")
        unknown = [name for name in self.across if name not in ACROSS]
        if unknown or not self.across:
            raise ConfigError(f"balance across must name {' or '.join(ACROSS)}, got {list(self.across)}")

    def __str__(self) -> str:
        return f"balance({self.method!r}, across={list(self.across)})"


def balance(
    sequences: Sequence[list[int]],
    cost_DK: Int64Array,
    share_K: Float64Array,
    padded_D: Int64Array,
    grid: Grid,
    op: Balance,
    *,
    cuts: bool,
) -> Layout:
    """Return a layout of the same documents with evener cost.

    With several modules two layouts are tried: one that evens out the largest module of each row, and one that goes on
    from it and evens out their sum. Ranks meet in one module after the other, so the better one is that in which the
    modules' excesses, each counted by its share of the cost, are less.

    Args:
        sequences: Documents of each sequence, as packed.
        cost_DK: Integer costs with equal column sums; see `primitives.cost.scaled`.
        share_K: What each module has of the cost of the step; sums to 1.
        padded_D: Extent of each document.
        grid: Rows to fill.
        op: What to even out.
        cuts: Whether packing cut parts: then sequences stay as they are and only change places.
    """
    packed = packed_layout(sequences, grid)
    if op.method == "none" or not cost_DK.shape[1] or grid.num_buckets == 1:
        return packed

    def objective(layout: Layout) -> float:
        modules = enumerate(share_K.tolist())
        return math.fsum(share * _objective(layout.cost_MB(cost_DK[:, [k]]), op.across) for k, share in modules)

    balanced = _evened(packed.sequences, cost_DK, padded_D, grid, op, cuts=cuts)
    if cost_DK.shape[1] > 1:
        total_D1 = np.rint((cost_DK * share_K).sum(axis=1)).astype(np.int64)[:, None]
        summed = _evened(balanced.sequences, total_D1, padded_D, grid, op, cuts=cuts)
        balanced = min(balanced, summed, key=objective)
    before = objective(packed)
    gain = (before - objective(balanced)) / before if before > 0 else 0.0
    return balanced if gain >= op.min_gain else packed


def _evened(
    sequences: list[list[int]], cost_DK: Int64Array, padded_D: Int64Array, grid: Grid, op: Balance, *, cuts: bool
) -> Layout:
    own = [list(docs) for docs in sequences]
    if "microbatch" in op.across:
        rows = _even_slots(own, cost_DK, padded_D, grid, cuts=cuts)
        if "bucket" in op.across:
            _arrange_buckets(rows)
            rows = rows if cuts else _evener_buckets(rows)
    else:
        rows = _even_buckets(own, cost_DK, padded_D, grid, cuts=cuts)
    return finished(rows.sequences, rows.rows)


def _even_slots(
    sequences: list[list[int]], cost_DK: Int64Array, padded_D: Int64Array, grid: Grid, *, cuts: bool
) -> Rows:
    """Return rows such that the buckets of each slot cost the same: rows of like cost share a slot."""
    of_row = _rows_by_cost(sequences, cost_DK, grid)
    num_tries = min(_MAX_TRIES, 24 * len(of_row))
    for _ in range(_ROUNDS):
        rows = Rows(sequences, _bands(of_row, sequences, cost_DK, grid), cost_DK, padded_D, grid.sequence_length)
        before = rows.value_MB.max(axis=1).sum()
        _trade(rows, grid.sequences_per_row, num_tries // _ROUNDS, cuts=cuts)
        of_row = [row for slot in rows.rows for row in slot]
        if rows.value_MB.max(axis=1).sum() > before - before // 2000:
            break
    return rows


def _evener_buckets(rows: Rows) -> Rows:
    """Return rows whose buckets are evener, if that is worth its price in lockstep; else the same rows."""
    tried = rows.copy()
    even_buckets(tried, max_tries=_MAX_TRIES // 8)
    return tried if _objective(tried.value_MB, ACROSS) < _objective(rows.value_MB, ACROSS) else rows


def _even_buckets(
    sequences: list[list[int]], cost_DK: Int64Array, padded_D: Int64Array, grid: Grid, *, cuts: bool
) -> Rows:
    """Return rows such that buckets cost the same, and the rows of a bucket about the same."""
    per_bucket = grid.num_microbatches * grid.sequences_per_row
    bucket_S = lpt(_weighted(sequences, cost_DK), grid.num_buckets, capacity=per_bucket)
    whole = [np.flatnonzero(bucket_S == bucket).tolist() for bucket in range(grid.num_buckets)]
    buckets = Rows(sequences, [whole], cost_DK, padded_D, grid.sequence_length)
    _trade(buckets, per_bucket, min(_MAX_TRIES, 12 * grid.num_buckets * grid.num_microbatches), cuts=cuts)
    slots: list[list[list[int]]] = [[] for _ in range(grid.num_microbatches)]
    for held in buckets.rows[0]:
        cost_SK = _weighted([sequences[s] for s in held], cost_DK)
        slot_S = lpt(cost_SK, grid.num_microbatches, capacity=grid.sequences_per_row)
        for slot in range(grid.num_microbatches):
            slots[slot].append([held[place] for place in np.flatnonzero(slot_S == slot).tolist()])
    return Rows(sequences, slots, cost_DK, padded_D, grid.sequence_length)


def _trade(rows: Rows, sequences_per_row: int, num_tries: int, *, cuts: bool) -> None:
    if sequences_per_row > 1:
        even_slots(rows, whole_sequences=True, max_tries=num_tries)
    if not cuts:
        even_slots(rows, whole_sequences=False, max_tries=num_tries)


def _rows_by_cost(sequences: list[list[int]], cost_DK: Int64Array, grid: Grid) -> list[list[int]]:
    """Return rows whose costs are alike within bands of one row a bucket."""
    per_row, num_rows = grid.sequences_per_row, grid.num_buckets * grid.num_microbatches
    if per_row == 1:
        return [[s] for s in range(len(sequences))]
    if not all(sequences):
        # Bands would leave the empty sequences to the last rows alone; over all rows each gets its share.
        row_S = lpt(_weighted(sequences, cost_DK), num_rows, capacity=per_row)
        return [np.flatnonzero(row_S == row).tolist() for row in range(num_rows)]
    cost_SK = sums(cost_DK, sequences)
    costliest_first = np.argsort(-cost_SK.max(axis=1), kind="stable")
    of_row: list[list[int]] = []
    for band in costliest_first.reshape(grid.num_microbatches, -1):
        row_S = lpt(cost_SK[band], grid.num_buckets, capacity=per_row)
        of_row.extend(band[row_S == row].tolist() for row in range(grid.num_buckets))
    return of_row


def _bands(
    of_row: list[list[int]], sequences: list[list[int]], cost_DK: Int64Array, grid: Grid
) -> list[list[list[int]]]:
    """Return rows by slot, the costliest slot first: of all ways to group rows, the one with the least lockstep."""
    value_R = sums(cost_DK, [[d for s in row for d in sequences[s]] for row in of_row]).max(axis=1).tolist()
    order = sorted(range(len(of_row)), key=lambda row: (-value_R[row], row))
    return by_slot([of_row[row] for row in order], grid)


def _arrange_buckets(rows: Rows) -> None:
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


def _objective(cost_MB: Float64Array | Int64Array, across: tuple[str, ...]) -> float:
    """Return what is evened out, as the sum of the excesses over 1."""
    mean = cost_MB.sum() / cost_MB.shape[1]
    if not mean:
        return 0.0
    bucket = float(cost_MB.sum(axis=0).max() / mean) - 1.0
    lockstep = float(cost_MB.max(axis=1).sum() / mean) - 1.0
    return bucket * ("bucket" in across) + lockstep * ("microbatch" in across)


def _weighted(sequences: list[list[int]], cost_DK: Int64Array) -> Int64Array:
    """Return costs of sequences, at least 1 where there is a document, so that no row stays without one by a tie."""
    return sums(cost_DK, sequences) + np.array([bool(docs) for docs in sequences], dtype=np.int64)[:, None]

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

from msd.core.arrays import BoolArray, Float64Array, Int64Array
from msd.errors import ConfigError
from msd.planner.balancers import BALANCERS
from msd.planner.primitives.even import (
    arrange_buckets,
    evened_buckets,
    evened_rows,
    evened_slots,
    evener_buckets,
    grouped_rows,
)
from msd.planner.primitives.layout import Grid, Layout, finished, packed_layout
from msd.planner.primitives.objective import bucket_excess, lockstep_excess, pipeline_excess
from msd.planner.primitives.slots import pipeline_order

METHODS = (*BALANCERS, "none")
ACROSS = ("bucket", "microbatch")
OBJECTIVES = ("auto", "cost", "lockstep", "pipeline")
_NEEDS = {"cost": "bucket", "lockstep": "microbatch", "pipeline": "bucket"}
"""Across what must be evened out for an objective to be reached."""

Method = Literal["lpt", "karmarkar_karp", "zigzag", "none"]
Objective = Literal["auto", "cost", "lockstep", "pipeline"]


@dataclass(frozen=True, slots=True)
class Balance:
    """Op of a graph: what is evened out, and how."""

    method: Method = "lpt"
    """How sequences are dealt before rows trade."""
    across: tuple[str, ...] = ACROSS
    min_gain: float = 0.0
    """Relative gain of the objective below which the packed layout is kept."""
    objective: Objective = "auto"
    """`cost` of buckets, `lockstep` over slots, time of the `pipeline`; auto is the sum of those that apply."""
    modules: tuple[str, ...] = ()
    """Modules whose cost counts; none names all that have a cost."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"balance has no method {self.method!r}; the methods are {', '.join(METHODS)}")
        unknown = [name for name in self.across if name not in ACROSS]
        if unknown or not self.across:
            raise ConfigError(f"balance across must name {' or '.join(ACROSS)}, got {list(self.across)}")
        if self.objective not in OBJECTIVES:
            raise ConfigError(f"balance has no objective {self.objective!r}; they are {', '.join(OBJECTIVES)}")
        needed = _NEEDS.get(self.objective)
        if needed is not None and needed not in self.across:
            raise ConfigError(
                f"balance objective {self.objective!r} needs {needed!r} in across, got {list(self.across)}; add it"
            )

    def __str__(self) -> str:
        objective = "" if self.objective == "auto" else f", objective={self.objective!r}"
        modules = f", modules={list(self.modules)}" if self.modules else ""
        return f"balance({self.method!r}, across={list(self.across)}{objective}{modules})"


def balance(
    sequences: Sequence[list[int]],
    cost_DK: Int64Array,
    share_K: Float64Array,
    padded_D: Int64Array,
    grid: Grid,
    op: Balance,
    *,
    cuts: bool,
    together_D: BoolArray | None = None,
) -> Layout:
    """Return a layout of the same documents with evener cost.

    With several modules two layouts are tried: one that evens out the largest module of each row, and one that goes on
    from it and evens out their sum. Ranks meet in one module after the other, so the better one is that in which the
    modules' excesses, each counted by its share of the cost, are less. With pipeline stages a layout whose rows all
    cost the same is tried beside them, and slots are put into the order in which 1F1B takes least time.

    Args:
        sequences: Documents of each sequence, as packed.
        cost_DK: Integer costs with equal column sums; see `primitives.cost.scaled`.
        share_K: What each module has of the cost of the step; sums to 1.
        padded_D: Extent of each document.
        grid: Rows to fill.
        op: What to even out.
        cuts: Whether packing cut parts: then sequences stay as they are and only change places.
        together_D: Documents whose rows share slots where that is no worse; it saves other rows their dummies.
    """
    packed = packed_layout(sequences, grid)
    if op.method == "none" or not cost_DK.shape[1] or grid.num_buckets * grid.num_stages == 1:
        return packed
    total_D = np.rint((cost_DK * share_K).sum(axis=1)).astype(np.int64)

    def objective(layout: Layout) -> float:
        return _objective(layout, cost_DK, share_K, total_D, grid, op)

    shape = _shape(op, grid)
    tried = [_evened(packed.sequences, cost_DK, padded_D, grid, op, shape, cuts=cuts)]
    if cost_DK.shape[1] > 1:
        tried.append(_evened(tried[0].sequences, total_D[:, None], padded_D, grid, op, shape, cuts=cuts))
    if grid.num_stages > 1:
        tried.append(_evened(packed.sequences, total_D[:, None], padded_D, grid, op, "rows", cuts=cuts))
    if together_D is not None:
        tried = [_together(layout, together_D, cost_DK, padded_D, grid, op) for layout in tried] + tried
    if grid.num_stages > 1:
        tried = [_in_pipeline_order(layout, total_D, grid) for layout in tried]
    balanced = min(tried, key=objective)
    before = objective(packed)
    gain = (before - objective(balanced)) / before if before > 0 else 0.0
    return balanced if gain >= op.min_gain else packed


def _shape(op: Balance, grid: Grid) -> str:
    """Return what is made even first: the buckets of each slot, or buckets as a whole."""
    return "slots" if "microbatch" in op.across and op.objective != "cost" else "buckets"


def _evened(
    sequences: list[list[int]],
    cost_DK: Int64Array,
    padded_D: Int64Array,
    grid: Grid,
    op: Balance,
    shape: str,
    *,
    cuts: bool,
) -> Layout:
    own, deal = [list(docs) for docs in sequences], BALANCERS[op.method]
    make = {"slots": evened_slots, "buckets": evened_buckets, "rows": evened_rows}[shape]
    rows = make(own, cost_DK, padded_D, grid, deal, cuts=cuts)
    if shape != "buckets" and "bucket" in op.across:
        arrange_buckets(rows)
        if shape == "slots" and op.objective != "lockstep" and not cuts:
            rows = evener_buckets(rows, cost_DK, padded_D, grid)
    return finished(rows.sequences, rows.rows)


def _together(
    layout: Layout, together_D: BoolArray, cost_DK: Int64Array, padded_D: Int64Array, grid: Grid, op: Balance
) -> Layout:
    """Return the layout with the rows that hold such documents in as few slots as they fill."""
    rows = grouped_rows(layout, together_D, cost_DK, padded_D, grid)
    if "bucket" in op.across:
        arrange_buckets(rows)
    return finished(rows.sequences, rows.rows)


def _in_pipeline_order(layout: Layout, total_D: Int64Array, grid: Grid) -> Layout:
    order = pipeline_order(layout.cost_MB(total_D[:, None]).astype(np.int64), grid.num_stages)
    return Layout(layout.sequences, [layout.rows[slot] for slot in order.tolist()])


def _objective(
    layout: Layout, cost_DK: Int64Array, share_K: Float64Array, total_D: Int64Array, grid: Grid, op: Balance
) -> float:
    """Return what is to be small, as the sum of the excesses over 1."""
    excesses = []
    if op.objective == "cost" or (op.objective == "auto" and "bucket" in op.across):
        excesses.append(bucket_excess)
    if op.objective == "lockstep" or (op.objective == "auto" and "microbatch" in op.across):
        excesses.append(lockstep_excess)
    cost_by_module = [layout.cost_MB(cost_DK[:, [k]]) for k in range(len(share_K))] if excesses else []
    found = math.fsum(
        share * math.fsum(excess(cost_MB) for excess in excesses)
        for share, cost_MB in zip(share_K.tolist(), cost_by_module, strict=False)
    )
    if op.objective == "pipeline" or (op.objective == "auto" and grid.num_stages > 1):
        found += pipeline_excess(layout.cost_MB(total_D[:, None]), grid.num_stages)
    return found

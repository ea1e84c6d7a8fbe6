"""Long documents in slots of their own, which all ranks meet together."""

# D = documents. S = sequences. K = modules.

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from msd.core.arrays import BoolArray, Float64Array, Int64Array
from msd.core.checks import whole_number
from msd.errors import ConfigError
from msd.planner.primitives.balance import Balance, balance
from msd.planner.primitives.even import arrange_buckets
from msd.planner.primitives.exchange import Rows, sums
from msd.planner.primitives.layout import Grid, Layout, finished
from msd.planner.primitives.slots import pipeline_order


@dataclass(frozen=True, slots=True)
class Gather:
    """Op of a graph: documents of at least so many tokens lie in as few slots as the sequences that hold them fill."""

    min_tokens: int

    def __post_init__(self) -> None:
        if whole_number(self.min_tokens, name="gather: min_tokens") < 2:
            raise ConfigError(f"gather: min_tokens must be at least 2, got {self.min_tokens}")

    def __str__(self) -> str:
        return f"gather(min_tokens={self.min_tokens})"


def balance_gathered(
    sequences: Sequence[list[int]],
    cost_DK: Int64Array,
    share_K: Float64Array,
    padded_D: Int64Array,
    grid: Grid,
    op: Balance,
    long_D: BoolArray,
    *,
    cuts: bool,
    together_D: BoolArray | None = None,
) -> Layout:
    """Return a layout whose first slots hold all long documents; these slots and the others are evened out apart.

    Where sequences with long documents do not fill their last slot, the costliest of the others do. With pipeline
    stages slots change places once more.

    Args:
        sequences: Documents of each sequence, as packed.
        cost_DK: As `balance` takes it, and so are `share_K`, `padded_D`, `op`, `cuts` and `together_D`.
        share_K: See there.
        padded_D: See there.
        grid: Rows to fill.
        op: What to even out.
        long_D: Which documents are long.
        cuts: See there.
        together_D: See there.
    """
    per_slot = grid.num_buckets * grid.sequences_per_row
    is_long_S = np.array([bool(long_D[docs].any()) for docs in sequences])
    num_slots = -(-int(is_long_S.sum()) // per_slot)
    order = np.lexsort((-sums(cost_DK, sequences).sum(axis=1), ~is_long_S)).tolist()
    first = num_slots * per_slot
    parts = [(order[:first], num_slots), (order[first:], grid.num_microbatches - num_slots)]
    found: list[list[int]] = []
    slots: list[list[list[int]]] = []
    for chosen, count in parts:
        if count:
            docs = [d for s in chosen for d in sequences[s]]
            part = balance(
                _renumbered([sequences[s] for s in chosen]),
                cost_DK[docs],
                share_K,
                padded_D[docs],
                replace(grid, num_microbatches=count, limits=grid.limits_of(docs)),
                op,
                cuts=cuts,
                together_D=None if together_D is None else together_D[docs],
            )
            slots += [[[len(found) + s for s in row] for row in slot] for slot in part.rows]
            found += [[docs[d] for d in held] for held in part.sequences]
    return _ordered(found, slots, cost_DK, grid, op)


def _renumbered(sequences: Sequence[list[int]]) -> list[list[int]]:
    """Return sequences whose documents are numbered one after another."""
    ends = np.cumsum([len(docs) for docs in sequences]).tolist()
    return [list(range(end - len(docs), end)) for docs, end in zip(sequences, ends, strict=True)]


def _ordered(
    sequences: list[list[int]],
    slots: list[list[list[int]]],
    cost_DK: Int64Array,
    grid: Grid,
    op: Balance,
) -> Layout:
    """Return the layout with rows given to buckets, and slots taken by a pipeline, as costs of all parts ask."""
    if "bucket" in op.across and op.method != "none" and cost_DK.shape[1]:
        rows = Rows(sequences, slots, cost_DK)
        arrange_buckets(rows)
        slots = rows.rows
    layout = finished(sequences, slots)
    if grid.num_stages == 1 or op.method == "none":
        return layout
    total_D1 = cost_DK.sum(axis=1)[:, None]
    turn = pipeline_order(layout.cost_MB(total_D1).astype(np.int64), grid.num_stages)
    return Layout(layout.sequences, [layout.rows[slot] for slot in turn.tolist()])

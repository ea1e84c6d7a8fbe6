"""Rows of a step and what lies in them: the value that balancing takes and returns."""

# D = documents. K = modules. B = buckets. M = slots.

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from msd.core.arrays import Float64Array, Int64Array


class Limit(NamedTuple):
    """A cap of every sequence besides its length."""

    load_D: Int64Array
    """What each document takes of it."""
    cap: int


@dataclass(frozen=True, slots=True)
class Grid:
    """The rows of a step."""

    num_buckets: int
    num_microbatches: int
    sequences_per_row: int
    sequence_length: int
    limits: tuple[Limit, ...] = field(default=(), compare=False)
    """What a sequence may hold besides tokens."""

    def limits_of(self, documents: Sequence[int]) -> tuple[Limit, ...]:
        """Return the limits of a layout of these documents alone, in their order."""
        return tuple(Limit(limit.load_D[documents], limit.cap) for limit in self.limits)

    num_stages: int = 1
    """Pipeline stages that each row passes through."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where the documents of a step lie."""

    sequences: list[list[int]]
    """Documents of each sequence, in order of offset."""
    rows: list[list[list[int]]]
    """Sequences of each row by [slot][bucket], in order, empty ones last."""
    row_D: Int64Array = field(init=False)
    """Row of each document: slot * buckets + bucket."""

    def __post_init__(self) -> None:
        row_D = np.empty(sum(map(len, self.sequences)), dtype=np.int64)
        of_row = [[d for s in row for d in self.sequences[s]] for slot in self.rows for row in slot]
        members = np.array([d for row in of_row for d in row], dtype=np.int64)
        row_D[members] = np.repeat(np.arange(len(of_row)), [len(row) for row in of_row])
        object.__setattr__(self, "row_D", row_D)

    def total_MB(self, value_D: Float64Array) -> Float64Array:
        """Return the sum of a column over each row."""
        num_rows = len(self.rows) * len(self.rows[0])
        total_R: Float64Array = np.bincount(self.row_D, weights=value_D, minlength=num_rows).astype(np.float64)
        return total_R.reshape(len(self.rows), -1)

    def cost_MB(self, cost_DK: Int64Array) -> Float64Array:
        """Return the joint cost of each row: its largest module. Integers up to 2**53 stay exact."""
        modules = [self.total_MB(cost_DK[:, k].astype(np.float64)) for k in range(cost_DK.shape[1])]
        largest_MB: Float64Array = np.max(modules, axis=0)
        return largest_MB


def packed_layout(sequences: Sequence[list[int]], grid: Grid) -> Layout:
    """Return the layout in the order of packing: rows one after another, over all buckets, then the next slot.

    Where sequences are empty (the last step of finite data) each row takes them in turn, so that no row is empty while
    another has two documents' sequences.
    """
    num_rows = grid.num_buckets * grid.num_microbatches
    if all(sequences):
        of_row = [list(range(r * grid.sequences_per_row, (r + 1) * grid.sequences_per_row)) for r in range(num_rows)]
    else:
        of_row = [list(range(r, len(sequences), num_rows)) for r in range(num_rows)]
    return finished([list(docs) for docs in sequences], by_slot(of_row, grid))


def by_slot(of_row: list[list[int]], grid: Grid) -> list[list[list[int]]]:
    """Return rows by [slot][bucket] from a list of them, slot after slot."""
    return [of_row[slot * grid.num_buckets : (slot + 1) * grid.num_buckets] for slot in range(grid.num_microbatches)]


def finished(sequences: list[list[int]], rows: list[list[list[int]]]) -> Layout:
    """Return the layout with the empty sequences of each row last."""
    if all(sequences):
        return Layout(sequences, rows)
    return Layout(sequences, [[sorted(row, key=lambda s: not sequences[s]) for row in slot] for slot in rows])

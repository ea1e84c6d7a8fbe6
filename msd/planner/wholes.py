"""Rows that were packed before: each is one thing to a layout, and several documents to a plan."""

# D = documents of the step. U = units: documents, and rows that were packed before. S = sequences.

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from msd.core.arrays import BoolArray, Int64Array
from msd.core.written import Written
from msd.planner.piece import Piece
from msd.planner.primitives.layout import Grid, Layout, by_slot, finished

Number = TypeVar("Number", bound=np.generic)


class Units:
    """What a layout moves about, and the documents that each unit holds."""

    def __init__(self, sequences: Sequence[Sequence[Piece]], *, may_be_whole: bool) -> None:
        """Take the units of a step, sequence after sequence.

        Args:
            sequences: Of the step, as packed.
            may_be_whole: Whether some source has rows that were packed before; else each unit is one document.
        """
        self._sequences = sequences
        pieces = [piece for sequence in sequences for piece in sequence] if may_be_whole else []
        self._first_U: Int64Array | None = None
        self.whole_U: BoolArray | None = None
        """Which units are rows that were packed before; None if no unit is."""
        if any(piece.inner for piece in pieces):
            count_U = np.array([len(piece.documents) for piece in pieces], dtype=np.int64)
            self._first_U = np.cumsum(count_U) - count_U
            self._count_U = count_U
            self.whole_U = np.array([bool(piece.inner) for piece in pieces])

    def summed(self, value_D: npt.NDArray[Number]) -> npt.NDArray[Number]:
        """Return the sum of a column over the documents of each unit."""
        if self._first_U is None:
            return value_D
        summed: npt.NDArray[Number] = np.add.reduceat(value_D, self._first_U)
        return summed

    def any(self, value_D: BoolArray) -> BoolArray:
        """Return for each unit whether a document of it has what a column tells."""
        if self._first_U is None:
            return value_D
        found: BoolArray = np.logical_or.reduceat(value_D, self._first_U)
        return found

    def extents(self, padded_D: Int64Array, sequence_length: int) -> Int64Array:
        """Return the room that each unit takes: all of a sequence, if it is a row that was packed before."""
        if self.whole_U is None:
            return padded_D
        return np.where(self.whole_U, sequence_length, self.summed(padded_D)).astype(np.int64)

    def documents(
        self, order_U: Int64Array, columns_U: Sequence[Int64Array], padded_D: Int64Array
    ) -> tuple[Int64Array, list[Int64Array], Int64Array]:
        """Return the documents of units: which they are, the columns of their units, and where they begin in them.

        Args:
            order_U: The units, in order.
            columns_U: Of the units, in that order.
            padded_D: Extent of each document.
        """
        if self._first_U is None:
            return order_U, list(columns_U), np.zeros(len(order_U), dtype=np.int64)
        first_U, count_U = self._first_U[order_U], self._count_U[order_U]
        begin_U = np.cumsum(count_U) - count_U
        order_D = np.repeat(first_U - begin_U, count_U) + np.arange(int(count_U.sum()))
        before_D = np.cumsum(padded_D) - padded_D
        within_D = before_D[order_D] - np.repeat(before_D[first_U], count_U)
        return order_D, [np.repeat(column_U, count_U) for column_U in columns_U], within_D

    def as_written(self, grid: Grid, written: "Mapping[int, tuple[Written, int]]") -> Layout | None:
        """Return the layout in which the step was written, or None unless it holds the rows of one written step.

        Args:
            grid: Rows to fill; others than those of the written step have no such layout.
            written: What rows were packed with, and rows of an epoch, by source.
        """
        if self.whole_U is None or not self.whole_U.all():
            return None
        held = [sequence[0] for sequence in self._sequences if sequence]
        source = held[0].source
        terms, rows_per_epoch = written[source]
        num_sequences = len(self._sequences)
        shape = (terms.num_buckets, terms.num_microbatches, terms.sequences_per_step)
        if shape != (grid.num_buckets, grid.num_microbatches, num_sequences):
            return None
        places = [
            (piece.ordinal // rows_per_epoch, *divmod(piece.ordinal % rows_per_epoch, num_sequences)) for piece in held
        ]
        steps = {(piece.source, epoch, step) for piece, (epoch, step, _) in zip(held, places, strict=True)}
        cells = [cell for _, _, cell in places]
        if len(steps) > 1 or len(set(cells)) < len(cells):
            return None
        # Rows that hold nothing were passed over when the step was drawn: its empty sequences stand for them.
        empty = iter(number for number, sequence in enumerate(self._sequences) if not sequence)
        full = iter(number for number, sequence in enumerate(self._sequences) if sequence)
        at = dict(zip(cells, full, strict=True))
        by_bucket = [at[cell] if cell in at else next(empty) for cell in range(num_sequences)]
        size = grid.sequences_per_row
        rows = [
            by_bucket[first : first + size]
            for slot in range(grid.num_microbatches)
            for bucket in range(grid.num_buckets)
            for first in [(bucket * grid.num_microbatches + slot) * size]
        ]
        return finished(self.numbered(), by_slot(rows, grid))

    def numbered(self) -> list[list[int]]:
        """Return the units of each sequence, by number."""
        ends = np.cumsum([len(sequence) for sequence in self._sequences]).tolist()
        return [list(range(end - len(s), end)) for s, end in zip(self._sequences, ends, strict=True)]

"""Rows of a source by ordinal, read block by block."""

# N = rows of one window, in sequence order. Q = rows that are asked for.

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from msd.core.arrays import Int64Array
from msd.core.order import SourceOrder, Window
from msd.core.sample import RawSample
from msd.core.text import encodable
from msd.errors import SourceError
from msd.sources.base import BadRow, BlockReader

Row: TypeAlias = RawSample | BadRow
_KEPT_WINDOWS = 2


class RowReader:
    """Reads the rows that come next ahead of time, and any others one by one.

    Neighbours in a shuffled window lie in different blocks, and a block is opened as a whole. So the rows of a
    window that come next are read together, each block once, as far as the byte budget goes; in a window larger than
    the budget blocks are read again for the rows that follow.
    """

    def __init__(self, order: SourceOrder, reader: BlockReader, *, read_bytes: int) -> None:
        """Read from `reader` in the sequence of `order`.

        Args:
            order: The sequence of the source.
            reader: Of the same source.
            read_bytes: Raw rows held ahead, by the index's sizes; at least the rows that are asked for.
        """
        self._order = order
        self._reader = reader
        self._read_bytes = read_bytes
        self._ahead: list[Row] = []
        self._ahead_from = 0
        self._windows: dict[tuple[int, int], tuple[Int64Array, Int64Array]] = {}
        self.num_rows_read = 0
        self.num_block_reads = 0

    def take(self, start: int, stop: int, *, limit: int) -> list[Row]:
        """Return the rows of ordinals `start .. stop - 1` of one window, and forget them.

        Args:
            start: First ordinal.
            stop: After the last ordinal.
            limit: Ordinal from which on nothing will be asked for; nothing beyond it is read ahead.

        Raises:
            SourceError: If a block cannot be read.
        """
        rows: list[Row] = []
        while start < stop:
            if not 0 <= start - self._ahead_from < len(self._ahead):
                self._read_ahead(start, stop, limit)
            del self._ahead[: start - self._ahead_from]
            taken = self._ahead[: stop - start]
            del self._ahead[: len(taken)]
            start += len(taken)
            self._ahead_from = start
            rows += taken
        return rows

    def pick(self, ordinals: Sequence[int]) -> list[Row]:
        """Return the rows at these ordinals, in this order, whatever windows they lie in.

        Raises:
            SourceError: If a block cannot be read.
        """
        places = [self._place(ordinal) for ordinal in ordinals]
        block_Q = np.array([block for block, _ in places], dtype=np.int64)
        row_Q = np.array([row for _, row in places], dtype=np.int64)
        return self._read(block_Q, row_Q)

    def where(self, ordinal: int) -> tuple[str, int]:
        """Return the shard's name, as it can be sent and printed, and the row number within it."""
        blocks = self._order.blocks
        block, row = self._place(ordinal)
        return encodable(blocks.shards[blocks.shard_B[block]].name), int(blocks.first_row_B[block]) + row

    def forget(self) -> None:
        """Drop what was read ahead."""
        self._ahead = []
        self._windows = {}

    def _place(self, ordinal: int) -> tuple[int, int]:
        window = self._order.window_at(ordinal)
        block_N, row_N = self._rows_of(window)
        position = ordinal - window.first_ordinal
        return int(block_N[position]), int(row_N[position])

    def _read_ahead(self, start: int, stop: int, limit: int) -> None:
        window = self._order.window_at(start)
        block_N, row_N = self._rows_of(window)
        span = max(stop - start, self._read_bytes // self._row_bytes(window))
        until = min(window.first_ordinal + window.num_rows, limit, start + span)
        inside = slice(start - window.first_ordinal, until - window.first_ordinal)
        # Let go of what is held before as much again is read.
        self._ahead = []
        self._ahead = self._read(block_N[inside], row_N[inside])
        self._ahead_from = start

    def _row_bytes(self, window: Window) -> int:
        blocks = self._order.blocks
        inside = self._order.window_blocks_of(window)
        return max(1, int(blocks.nbytes_B[inside].sum()) // max(1, int(blocks.num_rows_B[inside].sum())))

    def _rows_of(self, window: Window) -> tuple[Int64Array, Int64Array]:
        key = (window.epoch, window.number)
        if key not in self._windows:
            while len(self._windows) >= _KEPT_WINDOWS:
                del self._windows[next(iter(self._windows))]
            self._windows[key] = self._order.window_rows(window)
        return self._windows[key]

    def _read(self, block_Q: Int64Array, row_Q: Int64Array) -> list[Row]:
        """Return rows in the order asked, each block read once and forwards."""
        turn_Q = np.lexsort((row_Q, block_Q))
        firsts = np.flatnonzero(np.diff(block_Q[turn_Q], prepend=-1)).tolist()
        found: dict[int, Row] = {}
        for first, end in zip(firsts, [*firsts[1:], len(turn_Q)], strict=True):
            chosen = turn_Q[first:end]
            block = int(block_Q[chosen[0]])
            rows = self._reader.read_block(block, row_Q[chosen])
            if len(rows) != len(chosen):
                shard = self._order.blocks.shards[self._order.blocks.shard_B[block]].name
                raise SourceError(
                    f"source {self._order.source!r}: {len(chosen)} rows of {shard!r} were asked for, its reader gave "
                    f"{len(rows)}; the data changed since it was indexed, or the reader has a fault"
                )
            found.update(zip(chosen.tolist(), rows, strict=True))
            self.num_block_reads += 1
            self.num_rows_read += len(rows)
        return [found[position] for position in range(len(found))]

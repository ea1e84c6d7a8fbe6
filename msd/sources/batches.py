"""Blocks of rows out of Arrow batches: a unit is read in pieces, and consecutive pieces go on where the last ended."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from msd.core.arrays import Int64Array
from msd.core.index import BlockTable
from msd.core.sample import RawSample
from msd.sources.base import BadRow
from msd.sources.columns import rows_of
from msd.sources.files import OpenFiles, changed, reading
from msd.sources.shard import ShardReader, first_block_of_unit

OpenUnit = Callable[[int], Iterator[Any]]
"""Returns the record batches of the unit that begins with a block, from its first row on."""


class UnitRows:
    """Gives the rows of any block of a unit; blocks in rising order are read without starting again."""

    def __init__(self, blocks: BlockTable, open_unit: OpenUnit) -> None:
        """Read through `open_unit`; nothing is opened yet."""
        self._blocks = blocks
        self._open_unit = open_unit
        self._first_B = first_block_of_unit(blocks)
        self.close()

    def close(self) -> None:
        """Forget the position and what is held."""
        self._unit_block = -1
        self._batches: Iterator[Any] = iter(())
        self._table: Any = None
        self._row = 0
        self._held_block = -1
        self._held: Any = None

    def is_single(self, block: int) -> bool:
        """Return whether a block is all of its unit."""
        first, after = self._first_B[block], block + 1
        return bool(first == block and (after == self._blocks.num_blocks or self._first_B[after] == after))

    def table(self, block: int) -> Any:
        """Return the rows of a block as an Arrow table; fewer than the index says if the unit ends early."""
        if block == self._held_block:
            return self._held
        first_block = int(self._first_B[block])
        begin = int(self._blocks.first_row_B[block] - self._blocks.first_row_B[first_block])
        if first_block != self._unit_block or begin < self._row:
            self.close()
            self._unit_block, self._batches = first_block, self._open_unit(first_block)
        pieces, wanted = [], int(self._blocks.num_rows_B[block])
        while wanted:
            if self._table is None or self._table.num_rows == 0:
                batch = next(self._batches, None)
                if batch is None:
                    break
                self._table = batch
            skipped = min(begin - self._row, self._table.num_rows)
            if skipped:
                self._table, self._row = self._table.slice(skipped), self._row + skipped
                continue
            piece = self._table.slice(0, wanted)
            pieces.append(piece)
            self._table = self._table.slice(piece.num_rows)
            self._row, begin, wanted = self._row + piece.num_rows, begin + piece.num_rows, wanted - piece.num_rows
        self._held_block, self._held = block, pa.Table.from_batches(pieces) if pieces else None
        return self._held


def unit_reader(source: str, blocks: BlockTable, units: UnitRows, files: OpenFiles[Any]) -> ShardReader:
    """Return the reader of a columnar source whose units read from `files`."""

    def read(block: int, row_N: Int64Array) -> list[RawSample | BadRow]:
        shard = blocks.shards[blocks.shard_B[block]]
        with reading(shard.path, pa.ArrowException):
            table = units.table(block)
        if table is None or table.num_rows < blocks.num_rows_B[block]:
            raise changed(shard, f"a block of {blocks.num_rows_B[block]} rows is shorter")
        rows = rows_of(table, row_N)
        if units.is_single(block):
            # Nothing goes on from here, and what is decoded would stay in memory for every source that was read.
            units.close()
        return rows

    def close() -> None:
        units.close()
        files.close()

    return ShardReader(source, read, close)

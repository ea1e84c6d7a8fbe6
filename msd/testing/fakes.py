"""Stand-ins for what is slow or outside: readers that hold their rows in memory."""

from collections.abc import Sequence

from msd.core.arrays import Int64Array
from msd.core.index import BlockTable
from msd.core.sample import RawSample
from msd.errors import SourceError
from msd.sources.base import BadRow
from msd.testing.blocks import made_up_blocks


class ListReader:
    """A `BlockReader` over lists, which remembers what was asked of it."""

    def __init__(self, blocks: Sequence[Sequence[RawSample | BadRow]], *, unreadable: Sequence[int] = ()) -> None:
        """Hold the rows of each block.

        Args:
            blocks: Rows by block.
            unreadable: Blocks whose shard cannot be read.
        """
        self._blocks = [list(rows) for rows in blocks]
        self.unreadable = set(unreadable)
        self.reads: list[tuple[int, list[int]]] = []
        """(block, rows) of each call, in order."""
        self.num_closed = 0

    def read_block(self, block: int, row_N: Int64Array) -> list[RawSample | BadRow]:
        """Return rows of a block."""
        if block in self.unreadable:
            raise SourceError(f"block {block} cannot be read; restore its shard")
        self.reads.append((block, row_N.tolist()))
        return [self._blocks[block][row] for row in row_N.tolist()]

    def close(self) -> None:
        """Count the call."""
        self.num_closed += 1


def list_source(
    rows: Sequence[RawSample | BadRow], *, rows_per_block: int = 8, block_bytes: int = 1 << 16
) -> tuple[BlockTable, ListReader]:
    """Return the index of a source that holds `rows` in one shard, and its reader."""
    blocks = [rows[first : first + rows_per_block] for first in range(0, len(rows), rows_per_block)]
    return made_up_blocks([len(block) for block in blocks], block_bytes=block_bytes), ListReader(blocks)

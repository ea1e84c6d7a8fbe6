"""What indexing one shard gives, and how the shards of a source become its block table."""

# B = blocks, of one shard or of the source; in file order.

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from msd.core.arrays import Int64Array
from msd.core.index import BlockTable, Shard, Split
from msd.core.sample import RawSample
from msd.core.text import encodable
from msd.errors import SourceError
from msd.sources.base import BadRow, BlockReader
from msd.sources.config import ReaderConfig
from msd.sources.files import Opener, ShardFile
from msd.sources.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardIndex:
    """The blocks of one shard; rows are numbered on from one block to the next."""

    unit_B: Int64Array
    """From 0 within the shard; does not decrease."""
    num_rows_B: Int64Array
    offset_B: Int64Array
    nbytes_B: Int64Array
    schema: Schema | None = None
    """Kinds of the columns, for formats that declare them."""

    @classmethod
    def of(cls, blocks: Iterable[tuple[int, int, int, int]], schema: Schema | None = None) -> "ShardIndex":
        """Return the index of (unit, rows, offset, bytes) blocks."""
        column_B4 = np.array(list(blocks), dtype=np.int64).reshape(-1, 4)
        unit_B, num_rows_B, offset_B, nbytes_B = column_B4.T.copy()
        return cls(unit_B=unit_B, num_rows_B=num_rows_B, offset_B=offset_B, nbytes_B=nbytes_B, schema=schema)

    @property
    def num_rows(self) -> int:
        """Rows of the shard."""
        return int(self.num_rows_B.sum())


class IndexShard(Protocol):
    """Indexes one shard of a format."""

    def __call__(self, file: ShardFile, config: ReaderConfig, opener: Opener) -> ShardIndex:
        """Return the blocks of `file`.

        Raises:
            SourceError: If the file is not of the format, or not whole: naming it and the remedy.
        """
        ...


class MakeReader(Protocol):
    """Makes the reader of a format."""

    def __call__(self, source: str, config: ReaderConfig, blocks: BlockTable, opener: Opener) -> BlockReader:
        """Return a reader of the source's blocks; no file is opened yet."""
        ...


class ShardReader:
    """A reader whose errors name the source."""

    def __init__(
        self,
        source: str,
        read: Callable[[int, Int64Array], list[RawSample | BadRow]],
        close: Callable[[], None],
    ) -> None:
        """Read through `read`, which may hold files open until `close`."""
        self._source = source
        self._read = read
        self._close = close

    def read_block(self, block: int, row_N: Int64Array) -> list[RawSample | BadRow]:
        """Return the rows at indices `row_N` (from 0, within the block, any order), in that order."""
        try:
            return self._read(block, row_N) if len(row_N) else []
        except SourceError as error:
            raise SourceError(encodable(f"sources.{self._source}: {error}")) from error.__cause__

    def close(self) -> None:
        """Close open files; they are opened again when needed."""
        self._close()


def block_table(parts: Sequence[tuple[Shard, ShardIndex]], *, split: tuple[float, float] = (0.0, 1.0)) -> BlockTable:
    """Return the table of a source from its shards, in their order."""
    first_unit = 0
    columns: list[tuple[Int64Array, ...]] = [(np.empty(0, dtype=np.int64),) * 6]
    for number, (_, index) in enumerate(parts):
        num_blocks = len(index.unit_B)
        columns.append(
            (
                np.full(num_blocks, number, dtype=np.int64),
                index.unit_B + first_unit,
                np.cumsum(index.num_rows_B) - index.num_rows_B,
                index.num_rows_B,
                index.offset_B,
                index.nbytes_B,
            )
        )
        first_unit += int(index.unit_B[-1]) + 1 if num_blocks else 0
    shard_B, unit_B, first_row_B, num_rows_B, offset_B, nbytes_B = (
        np.concatenate(column) for column in zip(*columns, strict=True)
    )
    return BlockTable(
        shards=tuple(shard for shard, _ in parts),
        shard_B=shard_B.astype(np.int32),
        unit_B=unit_B.astype(np.int32),
        first_row_B=first_row_B,
        num_rows_B=num_rows_B,
        offset_B=offset_B,
        nbytes_B=nbytes_B,
        split=Split(low=split[0], high=split[1]),
    )


def first_block_of_unit(blocks: BlockTable) -> Int64Array:
    """Return, for each block, the first block of its unit: where decoding has to begin."""
    return np.searchsorted(blocks.unit_B, blocks.unit_B, side="left").astype(np.int64, copy=False)


def entry_cost(blocks: BlockTable) -> Int64Array:
    """Return, for each block, the bytes that must be decoded and thrown away to enter its unit there.

    Zero for every block with random access; in a compressed stream or an oversized row group, all that lies before.
    """
    before_B = np.cumsum(blocks.nbytes_B) - blocks.nbytes_B
    return (before_B - before_B[first_block_of_unit(blocks)]).astype(np.int64, copy=False)

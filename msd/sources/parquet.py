"""Parquet: a row group within the block cap is a block; a larger one is a unit of several blocks in file order."""

import itertools
from collections.abc import Iterator
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from msd.core.index import BlockTable
from msd.errors import SourceError
from msd.sources.batches import UnitRows, unit_reader
from msd.sources.columns import schema_of
from msd.sources.config import ReaderConfig
from msd.sources.files import Opener, OpenFiles, ShardFile, closed_on_error, open_shard, reading
from msd.sources.magic import not_the_format
from msd.sources.shard import ShardIndex, ShardReader

# A row group over the cap is decoded through a buffer instead of being read whole.
_BUFFER_BYTES = 256 << 10
_MOST_GROUP_ROWS = 1 << 40
_MOST_GROUP_BYTES = 1 << 40


def index_shard(file: ShardFile, config: ReaderConfig, opener: Opener) -> ShardIndex:
    """Return the blocks of a Parquet file from its footer; a block's offset is its row group."""
    with reading(file.path, pa.ArrowException), opener.open(file.path) as raw:
        head = raw.read(8)
        if not head.startswith(b"PAR1"):
            raise not_the_format(file.path, "a Parquet file", head)
        raw.seek(max(0, file.nbytes - 4))
        if raw.read(4) != b"PAR1":
            raise SourceError(
                f"{file.path} is truncated: it does not end as a Parquet file does (PAR1), after {file.nbytes} bytes; "
                "fetch or write it again"
            )
        raw.seek(0)
        parquet = pq.ParquetFile(raw, pre_buffer=False)
        metadata = parquet.metadata
        schema = schema_of(parquet.schema_arrow, file.path)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        sizes = check_sizes([(group.num_rows, group.total_byte_size) for group in groups], file.path)
        return ShardIndex.of(_blocks(sizes, config.block_bytes), schema)


def check_sizes(groups: list[tuple[int, int]], path: str) -> list[tuple[int, int]]:
    """Return (rows, bytes) of row groups as a footer states them, unless no machine could hold that.

    Raises:
        SourceError: Naming the file, and the row group.
    """
    for number, (num_rows, nbytes) in enumerate(groups):
        if not (0 <= num_rows < _MOST_GROUP_ROWS and 0 <= nbytes < _MOST_GROUP_BYTES):
            raise SourceError(
                f"{path} is damaged: its footer states {num_rows} rows and {nbytes} bytes for row group {number}; "
                "fetch or write it again"
            )
    return groups


def cut_rows(num_rows: int, nbytes: int, block_bytes: int) -> list[tuple[int, int]]:
    """Return (rows, bytes) of the blocks that rows of about equal size are cut into, none over `block_bytes`."""
    num_blocks = max(1, min(num_rows, -(-nbytes // block_bytes)))
    edges = [num_rows * block // num_blocks for block in range(num_blocks + 1)]
    return [
        (end - start, nbytes * end // num_rows - nbytes * start // num_rows) for start, end in itertools.pairwise(edges)
    ]


def _blocks(groups: list[tuple[int, int]], block_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    unit = 0
    for number, (num_rows, nbytes) in enumerate(groups):
        if num_rows == 0:
            continue
        for rows, cut_bytes in cut_rows(num_rows, nbytes, block_bytes):
            yield unit, rows, number, cut_bytes
        unit += 1


def make_reader(source: str, config: ReaderConfig, blocks: BlockTable, opener: Opener) -> ShardReader:
    """Return a reader of Parquet blocks with the engine that the source names."""

    def open_one(number: int) -> ParquetShard:
        shard = blocks.shards[number]
        raw = open_shard(opener, shard)
        with reading(shard.path, pa.ArrowException), closed_on_error(raw):
            if config.engine == "fastparquet":
                from msd.sources.fastparquet_engine import FastParquetShard

                return FastParquetShard(raw, shard.path, config.columns)
            return PyArrowShard(raw, config.columns)

    files: OpenFiles[ParquetShard] = OpenFiles(open_one, lambda shard: shard.close())

    def open_unit(first_block: int) -> Iterator[Any]:
        after = first_block + 1
        is_large = after < blocks.num_blocks and blocks.unit_B[after] == blocks.unit_B[first_block]
        opened = files.get(int(blocks.shard_B[first_block]))
        batch_rows = int(blocks.num_rows_B[first_block]) if is_large else None
        return opened.batches(int(blocks.offset_B[first_block]), batch_rows)

    return unit_reader(source, blocks, UnitRows(blocks, open_unit), files)


class ParquetShard(Protocol):
    """An open Parquet file."""

    def batches(self, group: int, batch_rows: int | None) -> Iterator[Any]:
        """Return the record batches of a row group: all rows at once, or about `batch_rows` at a time."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class PyArrowShard:
    """A Parquet file read by pyarrow, without threads and without pandas."""

    def __init__(self, raw: BinaryIO, columns: list[str] | None) -> None:
        """Read the footer of `raw`."""
        self._raw = raw
        self._columns = None if columns is None else list(dict.fromkeys(columns))
        self._whole = pq.ParquetFile(raw, pre_buffer=False)

    def batches(self, group: int, batch_rows: int | None) -> Iterator[Any]:
        """Return the record batches of a row group: all rows at once, or about `batch_rows` at a time."""
        if batch_rows is None:
            table = self._whole.read_row_group(group, columns=self._columns, use_threads=False)
            return map(self._chosen, table.to_batches())
        buffered = pq.ParquetFile(self._raw, metadata=self._whole.metadata, pre_buffer=False, buffer_size=_BUFFER_BYTES)
        return map(
            self._chosen,
            buffered.iter_batches(batch_size=batch_rows, row_groups=[group], columns=self._columns, use_threads=False),
        )

    def _chosen(self, batch: Any) -> Any:
        # For pyarrow, `x.y` also names field y of column x.
        return batch if self._columns is None else batch.select(self._columns)

    def close(self) -> None:
        """Close the file."""
        self._raw.close()

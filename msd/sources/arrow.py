"""Arrow IPC files and streams, Feather V2, and what `datasets` saves: record batches, read like row groups.

A stream without dictionaries has random access too: the byte at which each record batch begins is indexed. One with
dictionaries needs the messages before, so all of it is one unit.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from msd.core.index import BlockTable
from msd.errors import SourceError
from msd.sources.batches import UnitRows, unit_reader
from msd.sources.columns import schema_of
from msd.sources.config import ReaderConfig
from msd.sources.files import (
    Opener,
    OpenFiles,
    ShardFile,
    closed_on_error,
    is_local,
    not_the_format,
    open_shard,
    reading,
)
from msd.sources.parquet import cut_rows
from msd.sources.shard import ShardIndex, ShardReader

_FILE_MAGIC = b"ARROW1"
_CONTINUATION = b"\xff\xff\xff\xff"


def index_shard(file: ShardFile, config: ReaderConfig, opener: Opener) -> ShardIndex:
    """Return the blocks of an Arrow file; a block's offset is its record batch, or in a stream its first byte."""
    with reading(file.path, pa.ArrowException), opener.open(file.path) as raw:
        head = raw.read(8)
        if not head.startswith((_FILE_MAGIC, _CONTINUATION)):
            raise not_the_format(file.path, "an Arrow IPC file or stream", head)
        with _source(raw, file.path) as source:
            if head.startswith(_FILE_MAGIC):
                return _index_file(file, source, config.block_bytes)
            return _index_stream(file, source, config.block_bytes)


def make_reader(source: str, config: ReaderConfig, blocks: BlockTable, opener: Opener) -> ShardReader:
    """Return a reader of Arrow blocks. Local files are mapped into memory, so that only the rows asked for are read."""

    def open_one(number: int) -> _ArrowShard:
        shard = blocks.shards[number]
        raw = open_shard(opener, shard)
        with reading(shard.path, pa.ArrowException), closed_on_error(raw):
            return _ArrowShard(raw, shard.path, config.columns)

    files: OpenFiles[_ArrowShard] = OpenFiles(open_one, lambda shard: shard.close())

    def open_unit(first_block: int) -> Iterator[Any]:
        opened = files.get(int(blocks.shard_B[first_block]))
        return opened.batches(int(blocks.offset_B[first_block]))

    return unit_reader(source, blocks, UnitRows(blocks, open_unit), files)


class _ArrowShard:
    """An open Arrow file."""

    def __init__(self, raw: BinaryIO, path: str, columns: list[str] | None) -> None:
        self._raw = raw
        self._columns = columns
        self._source = _source(raw, path)
        self._is_file = raw.read(6) == _FILE_MAGIC
        self._source.seek(0)
        self._reader = pa.ipc.open_file(self._source) if self._is_file else pa.ipc.open_stream(self._source)

    def batches(self, offset: int) -> Iterator[Any]:
        """Yield the record batch at `offset`; at byte 0 of a stream, all of them."""
        if self._is_file:
            yield self._chosen(self._reader.get_batch(offset))
        elif offset:
            self._source.seek(offset)
            yield self._chosen(pa.ipc.read_record_batch(pa.ipc.read_message(self._source), self._reader.schema))
        else:
            self._source.seek(0)
            yield from map(self._chosen, pa.ipc.open_stream(self._source))

    def close(self) -> None:
        """Close the file; rows that were given stay valid."""
        self._source.close()
        self._raw.close()

    def _chosen(self, batch: Any) -> Any:
        return batch if self._columns is None else batch.select(self._columns)


def _source(raw: BinaryIO, path: str) -> Any:
    return pa.memory_map(path) if is_local(path) else pa.PythonFile(raw, mode="r")


def _index_file(file: ShardFile, source: Any, block_bytes: int) -> ShardIndex:
    reader = pa.ipc.open_file(source)
    sizes = []
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        sizes.append((number, batch.num_rows, batch.nbytes))
    return ShardIndex.of(_blocks(sizes, block_bytes), schema_of(reader.schema, file.path))


def _index_stream(file: ShardFile, source: Any, block_bytes: int) -> ShardIndex:
    schema = pa.ipc.open_stream(source).schema
    source.seek(0)
    sizes, has_dictionaries = [], False
    while (message := _next_message(source, file)) is not None:
        offset, message = message
        if message.type == "dictionary":
            has_dictionaries = True
            break
        if message.type == "record batch":
            batch = pa.ipc.read_record_batch(message, schema)
            sizes.append((offset, batch.num_rows, batch.nbytes))
    if not has_dictionaries:
        return ShardIndex.of(_blocks(sizes, block_bytes), schema_of(schema, file.path))
    source.seek(0)
    sizes = [(0, batch.num_rows, batch.nbytes) for batch in pa.ipc.open_stream(source)]
    blocks = [(0, rows, 0, nbytes) for _, rows, _, nbytes in _blocks(sizes, block_bytes)]
    return ShardIndex.of(blocks, schema_of(schema, file.path))


def _next_message(source: Any, file: ShardFile) -> tuple[int, Any] | None:
    """Return (first byte, message), or None at the end of the stream."""
    offset = source.tell()
    if offset >= file.nbytes or source.read(8) == _CONTINUATION + bytes(4):
        return None
    source.seek(offset)
    try:
        return offset, pa.ipc.read_message(source)
    except (pa.ArrowException, EOFError, OSError) as error:
        raise SourceError(
            f"{file.path} is truncated or damaged: no whole message at byte {offset} ({error}); fetch or write it again"
        ) from None


def _blocks(sizes: list[tuple[int, int, int]], block_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    unit = 0
    for offset, num_rows, nbytes in sizes:
        if num_rows:
            for rows, cut_bytes in cut_rows(num_rows, nbytes, block_bytes):
                yield unit, rows, offset, cut_bytes
            unit += 1

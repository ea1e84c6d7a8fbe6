"""Arrow IPC files and streams, Feather V2, and what `datasets` saves: record batches, read like row groups.

A stream without dictionaries has random access too: the byte at which each record batch begins is indexed. One with
dictionaries needs the messages before, so all of it is one unit.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from msd.core.index import BlockTable, Shard
from msd.core.text import text_of
from msd.errors import SourceError
from msd.sources.batches import UnitRows, unit_reader
from msd.sources.columns import schema_of
from msd.sources.config import ReaderConfig
from msd.sources.descriptors import Lent, with_descriptors
from msd.sources.files import (
    Opener,
    OpenFiles,
    ShardFile,
    check_unchanged,
    closed_on_error,
    is_local,
    open_shard,
    reading,
)
from msd.sources.magic import not_the_format
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
        with reading(shard.path, pa.ArrowException):
            return _ArrowShard(opener, shard, config.columns)

    files: OpenFiles[_ArrowShard] = OpenFiles(open_one, lambda shard: shard.close())

    def open_unit(first_block: int) -> Iterator[Any]:
        opened = files.get(int(blocks.shard_B[first_block]))
        return opened.batches(int(blocks.offset_B[first_block]))

    return unit_reader(source, blocks, UnitRows(blocks, open_unit), files)


class _Mapped(NamedTuple):
    source: Any
    reader: Any
    is_file: bool
    raw: BinaryIO | None
    """Below `source`, if that is no map of a local file."""

    def close(self) -> None:
        self.source.close()
        if self.raw is not None:
            self.raw.close()


class _ArrowShard:
    """An Arrow file of a source. A map holds a descriptor, so it too may be closed for others between two batches."""

    def __init__(self, opener: Opener, shard: Shard, columns: list[str] | None) -> None:
        self._opener = opener
        self._shard = shard
        self._columns = columns
        self._lent: Lent[_Mapped] = Lent(self._open, _Mapped.close)
        with self._lent.use():
            pass

    def batches(self, offset: int) -> Iterator[Any]:
        """Yield the record batch at `offset`; at byte 0 of a stream, all of them."""
        with self._used() as mapped:
            if mapped.is_file:
                batch = mapped.reader.get_batch(offset)
            elif offset:
                mapped.source.seek(offset)
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(mapped.source), mapped.reader.schema)
            else:
                batch = None
        if batch is not None:
            yield self._chosen(batch)
            return
        at, stream, num_given = None, None, 0
        while True:
            with self._used() as mapped:
                if mapped is not at or stream is None:
                    # Opened for the first time, or again: what was given is passed over.
                    mapped.source.seek(0)
                    at, stream = mapped, iter(pa.ipc.open_stream(mapped.source))
                    for _ in range(num_given):
                        next(stream, None)
                batch = next(stream, None)
            if batch is None:
                return
            num_given += 1
            yield self._chosen(batch)

    def close(self) -> None:
        """Close the file; rows that were given stay valid."""
        self._lent.close()

    @contextmanager
    def _used(self) -> Iterator[_Mapped]:
        with self._lent.use() as mapped:
            if mapped.raw is None:
                # Touching a map of a file that became shorter ends the process.
                check_unchanged(self._shard, os.stat(self._shard.path))
            yield mapped

    def _open(self) -> _Mapped:
        raw = None if is_local(self._shard.path) else open_shard(self._opener, self._shard)
        source = _source(raw, self._shard.path)
        with closed_on_error(source):
            if raw is None:
                check_unchanged(self._shard, os.stat(self._shard.path))
            is_file = source.read(6) == _FILE_MAGIC
            source.seek(0)
            return _Mapped(source, pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source), is_file, raw)

    def _chosen(self, batch: Any) -> Any:
        return batch if self._columns is None else batch.select(self._columns)


def _source(raw: BinaryIO | None, path: str) -> Any:
    return with_descriptors(lambda: pa.memory_map(path)) if is_local(path) else pa.PythonFile(raw, mode="r")


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
            f"{file.path} is truncated or damaged: no whole message at byte {offset} ({text_of(error)}); fetch or "
            "write it again"
        ) from None


def _blocks(sizes: list[tuple[int, int, int]], block_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    unit = 0
    for offset, num_rows, nbytes in sizes:
        if num_rows:
            for rows, cut_bytes in cut_rows(num_rows, nbytes, block_bytes):
                yield unit, rows, offset, cut_bytes
            unit += 1

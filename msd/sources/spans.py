"""Bytes of blocks: at their place in a plain file, or within the decoded unit of a compressed one."""

from typing import BinaryIO

from msd.core.index import BlockTable
from msd.sources.files import Opener, OpenFiles, changed, open_shard, reading
from msd.sources.shard import entry_cost
from msd.sources.streams import PlainCursor, StreamCursor, codec_of


class SpanReader:
    """Reads the bytes of any block of line or tar files. Blocks of a compressed unit are cheap in rising order.

    A few files are open, each with a decoder that stands behind the block last read, and the bytes of that block are
    kept: asking again for rows of the same block decodes nothing.
    """

    def __init__(self, blocks: BlockTable, opener: Opener) -> None:
        """Read `blocks`; nothing is opened yet."""
        self._blocks = blocks
        self._opener = opener
        self._entry_B = entry_cost(blocks)
        self._open: OpenFiles[_OpenShard] = OpenFiles(self._open_shard, _OpenShard.close)

    def read(self, block: int) -> bytes:
        """Return the bytes of a block.

        Raises:
            SourceError: If the file is gone, damaged, or not the one that was indexed.
        """
        blocks = self._blocks
        number = int(blocks.shard_B[block])
        shard = blocks.shards[number]
        offset, nbytes = int(blocks.offset_B[block]), int(blocks.nbytes_B[block])
        with reading(shard.path):
            data = self._open.get(number).read(block, offset, int(self._entry_B[block]), nbytes)
        if len(data) != nbytes:
            self._open.drop(number)
            raise changed(shard, f"a block of {nbytes} bytes ends after {len(data)}")
        return data

    def close(self) -> None:
        """Close open files."""
        self._open.close()

    def _open_shard(self, number: int) -> "_OpenShard":
        shard = self._blocks.shards[number]
        return _OpenShard(open_shard(self._opener, shard), shard.path)


class _OpenShard:
    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file = file
        self._path = path
        self._codec = codec_of(file.read(4))
        self._cursor: PlainCursor | StreamCursor = PlainCursor(file)
        self._unit_start = -1
        self._held_block = -1
        self._held = b""

    def close(self) -> None:
        self._file.close()

    def read(self, block: int, offset: int, entry: int, nbytes: int) -> bytes:
        if block == self._held_block:
            return self._held
        if self._codec is None:
            data = self._cursor.read(offset, nbytes)
        else:
            if offset != self._unit_start or not self._cursor.can_read(entry):
                self._cursor = StreamCursor(self._file, self._codec, path=self._path, start=offset)
                self._unit_start = offset
            data = self._cursor.read(entry, nbytes)
            self._cursor.forget(entry + nbytes)
        self._held_block, self._held = block, data
        return data

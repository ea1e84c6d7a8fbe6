"""Rewrites compressed JSON lines so that any part can be read without decoding what lies before it."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import zstandard

from msd.core.index import Shard
from msd.errors import SourceError
from msd.sources.config import ReaderConfig, ShuffleConfig
from msd.sources.files import Opener, ShardFile, reading
from msd.sources.jsonl import index_shard
from msd.sources.shard import block_table
from msd.sources.spans import SpanReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """What a rewrite gave."""

    num_rows: int
    num_frames: int
    nbytes: int
    """Stored size."""


def rewrite_seekable(path: str, out: str, frame_bytes: int = 1 << 20, *, level: int = 3) -> Rewritten:
    """Write the lines of `path` (.gz, .zst or plain) to `out`: Zstandard frames, each of whole lines.

    `out` appears when it is complete, or not at all; `path` is left alone.

    Args:
        path: A JSON-lines file: local path or URL.
        out: A local path, best ending in `.jsonl.zst`.
        frame_bytes: Cap of the decoded bytes of a frame; a longer line is a frame of its own. With the source's
            `block_bytes`, every block has random access.
        level: Zstandard compression level.

    Raises:
        SourceError: If `path` cannot be read or is not whole, or `out` cannot be written.
    """
    if os.path.realpath(path) == os.path.realpath(out):
        raise SourceError(f"{path} would be overwritten by its rewrite; give another name for the result")
    num_frames, compressor = 0, zstandard.ZstdCompressor(level=level, write_checksum=True)
    index, spans = _spans(path, frame_bytes)
    folder = os.path.dirname(os.path.abspath(out))
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".writing-")
        with os.fdopen(descriptor, "wb") as file:
            for data in spans:
                file.write(compressor.compress(data))
                num_frames += 1
            nbytes = file.tell()
        os.replace(temporary, out)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise SourceError(f"cannot write {out}: {error.strerror}; choose a writable directory") from None
        raise
    return Rewritten(num_rows=index, num_frames=num_frames, nbytes=nbytes)


def _spans(path: str, frame_bytes: int) -> tuple[int, Iterator[bytes]]:
    """Return the number of rows and the bytes of each frame to be; the file is decoded twice, a frame at a time."""
    opener = Opener()
    with reading(path), opener.open(path) as file:
        nbytes = file.seek(0, os.SEEK_END)
    config = ReaderConfig(path=path, format="jsonl", shuffle=ShuffleConfig(block_bytes=frame_bytes))
    index = index_shard(ShardFile(path, path, nbytes, ""), config, opener)
    blocks = block_table([(Shard(name=path, path=path, nbytes=nbytes, num_rows=index.num_rows), index)])

    def read() -> Iterator[bytes]:
        reader = SpanReader(blocks, opener)
        for block in range(blocks.num_blocks):
            yield reader.read(block)
        reader.close()

    return index.num_rows, read()

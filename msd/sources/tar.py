"""WebDataset archives: consecutive members with one key are one row, a field by extension.

A member's key is its path up to the first dot of the base name, its field what follows, in lower case. What is no
part of a row by that convention is passed over: directories, links, hidden members, members without an extension, and
members named `__like_this__`.
"""

import posixpath
from collections.abc import Iterator
from typing import Any

from msd.core.arrays import Int64Array
from msd.core.index import BlockTable
from msd.core.sample import RawSample
from msd.core.text import text_of
from msd.errors import SourceError
from msd.sources.base import BadRow
from msd.sources.config import ReaderConfig
from msd.sources.files import Opener, ShardFile, changed, reading
from msd.sources.jsonl import parse_json
from msd.sources.magic import not_the_format
from msd.sources.shard import ShardIndex, ShardReader
from msd.sources.spans import SpanReader
from msd.sources.streams import PlainCursor, StreamCursor, codec_of
from msd.sources.tar_members import Member, checksums, tar_members

_TEXT = ("txt", "text", "caption")


def index_shard(file: ShardFile, config: ReaderConfig, opener: Opener) -> ShardIndex:
    """Return the blocks of an archive, cut between rows; a compressed archive is one unit."""
    with reading(file.path), opener.open(file.path) as raw:
        head = raw.read(512)
        codec = codec_of(head)
        if not head or (codec is None and head[257:262] != b"ustar" and not _is_old_tar(head)):
            raise not_the_format(file.path, "a tar archive", head)
        cursor = PlainCursor(raw) if codec is None else StreamCursor(raw, codec, path=file.path)
        members = tar_members(cursor.read, path=file.path, nbytes=file.nbytes if codec is None else None)
        blocks = list(_blocks(members, config.block_bytes, path=file.path))
        cursor.drain()
    if codec is None:
        return ShardIndex.of((unit, rows, start, nbytes) for unit, (rows, start, nbytes) in enumerate(blocks))
    return ShardIndex.of((0, rows, 0, nbytes) for rows, _, nbytes in blocks)


def make_reader(source: str, config: ReaderConfig, blocks: BlockTable, opener: Opener) -> ShardReader:
    """Return a reader of archive blocks."""
    spans = SpanReader(blocks, opener)

    def read(block: int, row_N: Int64Array) -> list[RawSample | BadRow]:
        shard = blocks.shards[blocks.shard_B[block]]
        data = spans.read(block)
        members = tar_members(lambda begin, size: data[begin : begin + size], path=shard.path, nbytes=len(data))
        rows = list(_rows(members))
        if len(rows) != blocks.num_rows_B[block]:
            raise changed(shard, f"a block of {blocks.num_rows_B[block]} rows has {len(rows)}")
        return [_row(rows[row][0], rows[row][1], data) for row in row_N.tolist()]

    return ShardReader(source, read, spans.close)


def key_and_field(member_name: str) -> tuple[str, str] | None:
    """Return the key and the field of a member, or None if it is no part of a row."""
    folder, base = posixpath.split(member_name.removeprefix("./"))
    stem, dot, field = base.partition(".")
    if not stem or not dot or not field or (base.startswith("__") and base.endswith("__")):
        return None
    return posixpath.join(folder, stem), field.lower()


def _blocks(members: Iterator[Member], block_bytes: int, *, path: str) -> Iterator[tuple[int, int, int]]:
    """Yield (rows, start, bytes): from the archive's first byte to the end of its last row, without gaps."""
    block_start, num_rows, row_start, row_end = 0, 0, 0, 0
    key: str | None = None
    passed_over: str | None = None
    for member in members:
        parts = key_and_field(member.name) if member.is_file else None
        if parts is not None and parts[0] != key:
            key = parts[0]
            # The row before ends here. It closes its block, or the block before it, when both exceed the cap.
            if num_rows > 1 and member.start - block_start > block_bytes:
                yield num_rows - 1, block_start, row_start - block_start
                block_start, num_rows = row_start, 1
            row_start = member.start if num_rows else block_start
            num_rows += 1
        elif parts is None and member.is_file:
            passed_over = passed_over or member.name
        row_end = member.end
    if not num_rows and passed_over is not None:
        raise SourceError(
            f"{path} has no row: no member is named key.extension (the first is {passed_over!r}); name them so, or "
            "leave the archive out"
        )
    if num_rows > 1 and row_end - block_start > block_bytes:
        yield num_rows - 1, block_start, row_start - block_start
        block_start, num_rows = row_start, 1
    if num_rows:
        yield num_rows, block_start, row_end - block_start


def _rows(members: Iterator[Member]) -> Iterator[tuple[str, list[tuple[str, Member]]]]:
    key: str | None = None
    fields: list[tuple[str, Member]] = []
    for member in members:
        parts = key_and_field(member.name) if member.is_file else None
        if parts is None:
            continue
        if parts[0] != key:
            if key is not None:
                yield key, fields
            key, fields = parts[0], []
        fields.append((parts[1], member))
    if key is not None:
        yield key, fields


def _row(key: str, fields: list[tuple[str, Member]], data: bytes) -> RawSample | BadRow:
    row: RawSample = {"__key__": key}
    for field, member in fields:
        if field in row:
            return BadRow(f"row {key!r} has two members for field {field!r}")
        try:
            row[field] = _value(field, data[member.data_start : member.data_start + member.size])
        except (ValueError, RecursionError) as error:
            return BadRow(f"member {member.name!r} cannot be decoded: {text_of(error)[:200] or type(error).__name__}")
    return row


def _value(field: str, data: bytes) -> Any:
    ending = field.rpartition(".")[2]
    if ending in _TEXT:
        return data.decode("utf-8")
    if ending == "json":
        return parse_json(data)
    return int(data) if ending == "cls" else data


def _is_old_tar(head: bytes) -> bool:
    """Return whether a header without the ustar magic is one of the first tar format: its checksum holds."""
    field = head[148:156].strip(b" \0")
    return field.isdigit() and not field.strip(b"01234567") and int(field, 8) in checksums(head)

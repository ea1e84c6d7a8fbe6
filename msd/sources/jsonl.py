"""JSON lines: plain, gzip or Zstandard. One object a line; a line that is none is a bad row, never an error."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import msgspec

from msd.core.arrays import Int64Array
from msd.core.index import BlockTable
from msd.core.sample import RawSample
from msd.core.text import text_of
from msd.errors import SourceError
from msd.sources.base import BadRow
from msd.sources.config import ReaderConfig
from msd.sources.files import Opener, ShardFile, changed, reading
from msd.sources.lines import BOM, LineScanner, rows_of_block
from msd.sources.magic import describe, not_the_format
from msd.sources.shard import ShardIndex, ShardReader
from msd.sources.spans import SpanReader
from msd.sources.streams import codec_of, decode

_CHUNK_BYTES = 1 << 20


def index_shard(file: ShardFile, config: ReaderConfig, opener: Opener) -> ShardIndex:
    """Return the blocks of a JSON-lines file, cut at line ends.

    Plain text: every block is a unit, its offset that of its first byte. gzip: the file is one unit. Zstandard: each
    frame that begins with a line is a unit. The offset of a compressed block is where its unit begins in the file.
    """
    with reading(file.path), opener.open(file.path) as raw:
        head = raw.read(512)
        codec = codec_of(head)
        _check_head(file.path, head, codec)
        raw.seek(0)
        if codec is None:
            return ShardIndex.of(_plain_blocks(iter(lambda: raw.read(_CHUNK_BYTES), b""), config.block_bytes))
        chunks = decode(raw, codec, path=file.path)
        return ShardIndex.of(_stream_blocks(file.path, chunks, config.block_bytes, by_member=codec == "zstd"))


def make_reader(source: str, config: ReaderConfig, blocks: BlockTable, opener: Opener) -> ShardReader:
    """Return a reader of JSON-lines blocks."""
    spans = SpanReader(blocks, opener)

    def read(block: int, row_N: Int64Array) -> list[RawSample | BadRow]:
        lines = rows_of_block(spans.read(block))
        if len(lines) != blocks.num_rows_B[block]:
            shard = blocks.shards[blocks.shard_B[block]]
            raise changed(shard, f"a block of {blocks.num_rows_B[block]} rows has {len(lines)}")
        return [parse_line(lines[row]) for row in row_N.tolist()]

    return ShardReader(source, read, spans.close)


def parse_line(line: bytes) -> RawSample | BadRow:
    """Return the object on a line, or why there is none.

    What `json.loads` takes is taken: NaN and infinities, lone surrogates, a key that stands twice (the last counts);
    also a byte order mark before the object.
    """
    line = line.removeprefix(BOM)
    try:
        value = parse_json(line)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else text_of(error)
        return BadRow(f"line is not JSON: {reason[:200]}")
    if not isinstance(value, dict):
        return BadRow(f"line is not a JSON object but {_json_name(value)}")
    return value


def parse_json(text: bytes) -> Any:
    """Return the value of a JSON text: as msgspec reads it, else as the standard library does, which takes more.

    Raises:
        ValueError: If it is not JSON, or not UTF-8.
        RecursionError: If it is nested too deeply.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return json.loads(text.decode("utf-8"))


def _check_head(path: str, head: bytes, codec: str | None) -> None:
    lower = path.lower()
    if not head:
        raise not_the_format(path, "JSON lines", head)
    if lower.endswith((".gz", ".zst")) and codec is None:
        raise SourceError(
            f"{path} is named as compressed but starts with {head[:8]!r}; rename it to what it is, or fetch it again"
        )
    if codec is not None and lower.endswith((".jsonl", ".ndjson", ".jsonlines", ".json")):
        packed = ".gz" if codec == "gzip" else ".zst"
        raise SourceError(f"{path} holds {codec} data under a plain name; rename it to end in {packed}")
    if codec is None:
        _check_text(path, head)


def _check_text(path: str, head: bytes) -> None:
    if describe(head) is not None and not head.startswith(b"{"):
        raise not_the_format(path, "JSON lines", head)
    first = head.removeprefix(BOM).lstrip()
    if first.startswith(b"[") and first[1:].lstrip()[:1] in (b"{", b""):
        raise SourceError(
            f"{path} is one JSON array, not JSON lines; write one object a line (jq -c '.[]' does), or load it "
            "in Python and pass the list"
        )


def _plain_blocks(chunks: Iterator[bytes], block_bytes: int) -> Iterator[tuple[int, int, int, int]]:
    scanner, unit, offset = LineScanner(block_bytes), 0, 0
    found = (block for chunk in chunks for block in scanner.feed(chunk))
    for num_rows, nbytes in itertools.chain(found, _at_end(scanner)):
        yield unit, num_rows, offset, nbytes
        unit, offset = unit + 1, offset + nbytes


def _at_end(scanner: LineScanner) -> Iterator[tuple[int, int]]:
    yield from scanner.finish()


def _stream_blocks(
    path: str, chunks: Iterator[tuple[int, bytes]], block_bytes: int, *, by_member: bool
) -> Iterator[tuple[int, int, int, int]]:
    scanner, unit, unit_start, is_first = LineScanner(block_bytes), 0, 0, True
    for member, chunk in chunks:
        if is_first:
            _check_text(path, chunk[:512])
            unit_start, is_first = member if by_member else 0, False
        elif by_member and member != unit_start and scanner.is_at_line_start:
            blocks = scanner.finish()
            yield from ((unit, num_rows, unit_start, nbytes) for num_rows, nbytes in blocks)
            unit, unit_start = unit + 1, member
        yield from ((unit, num_rows, unit_start, nbytes) for num_rows, nbytes in scanner.feed(chunk))
    yield from ((unit, num_rows, unit_start, nbytes) for num_rows, nbytes in scanner.finish())


def _json_name(value: Any) -> str:
    names: dict[type, str] = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")

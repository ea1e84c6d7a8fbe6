"""A source written by the user: a class or factory, called with the source's `options`.

What it returns has a length and items (`__len__` and `__getitem__`), which gives random access, or can only be
iterated: then it is one stream, made anew for each pass and counted by a first one. Either way it must give the same
rows each time. A row is a mapping, or a string, which becomes `{"text": string}`.
"""

from collections.abc import Iterator
from typing import Any

from msd.core.arrays import Int64Array
from msd.core.dotted import import_dotted
from msd.core.index import BlockTable, Shard
from msd.core.sample import RawSample
from msd.core.text import text_of
from msd.errors import SourceError
from msd.sources.base import BadRow
from msd.sources.config import ReaderConfig
from msd.sources.memory import estimated_bytes, row_bytes, row_of
from msd.sources.shard import ShardIndex, ShardReader, first_block_of_unit


def index_rows(name: str, config: ReaderConfig) -> list[tuple[Shard, ShardIndex]]:
    """Return the one shard that a user's class is.

    Raises:
        SourceError: If the class cannot be called or read, or its first row is no row: naming the class.
    """
    made, label = _make(name, config)
    if _has_items(made):
        num_rows = _length(name, made, label)
        if num_rows:
            _check_first(name, _item(made, 0, label))
        size = estimated_bytes(num_rows, lambda row_N: [_item(made, row, label) for row in row_N.tolist()])
        per_block = max(1, config.block_bytes // size)
        starts = range(0, num_rows, per_block)
        rows = [min(per_block, num_rows - start) for start in starts]
        blocks = [(unit, num, start, num * size) for unit, (start, num) in enumerate(zip(starts, rows, strict=True))]
    else:
        blocks = list(_stream_blocks(name, _iterate(name, made, label), config.block_bytes))
    _close(made)
    index = ShardIndex.of(blocks)
    shard = Shard(name=label, path=f"class:{label}", nbytes=int(index.nbytes_B.sum()), num_rows=index.num_rows)
    return [(shard, index)]


def make_reader(source: str, config: ReaderConfig, blocks: BlockTable) -> ShardReader:
    """Return a reader of a user's class; it is made at the first read."""
    reader = _UserRows(source, config, blocks)
    return ShardReader(source, reader.read, reader.close)


class _UserRows:
    def __init__(self, source: str, config: ReaderConfig, blocks: BlockTable) -> None:
        self._source = source
        self._config = config
        self._blocks = blocks
        self._entry_row_B = blocks.first_row_B - blocks.first_row_B[first_block_of_unit(blocks)]
        self._made: Any = None
        self._label = ""
        self._stream: Iterator[RawSample | BadRow] | None = None
        self._row = 0
        self._held_block = -1
        self._held: list[RawSample | BadRow] = []

    def read(self, block: int, row_N: Int64Array) -> list[RawSample | BadRow]:
        if self._made is None:
            self._made, self._label = _make(self._source, self._config)
        if _has_items(self._made):
            first = int(self._blocks.offset_B[block])
            return [_item(self._made, first + row, self._label) for row in row_N.tolist()]
        if block != self._held_block:
            self._hold(block)
        return [self._copy(self._held[row]) for row in row_N.tolist()]

    def close(self) -> None:
        _close(self._made)
        self._made = self._stream = None
        self._held_block, self._held = -1, []

    def _hold(self, block: int) -> None:
        first, num_rows = int(self._blocks.first_row_B[block]), int(self._blocks.num_rows_B[block])
        if self._stream is None or first < self._row:
            if self._stream is not None:
                self.close()
                self._made, self._label = _make(self._source, self._config)
            self._stream, self._row = _iterate(self._source, self._made, self._label), 0
        held: list[RawSample | BadRow] = []
        while self._row < first + num_rows:
            row = next(self._stream, None)
            if row is None:
                raise SourceError(
                    f"{self._label} gave {self._row} rows, fewer than when it was indexed; it must give the same rows "
                    "each time it is iterated"
                )
            if self._row >= first:
                held.append(row)
            self._row += 1
        self._held_block, self._held = block, held

    @staticmethod
    def _copy(row: RawSample | BadRow) -> RawSample | BadRow:
        return row if isinstance(row, BadRow) else dict(row)


def _make(name: str, config: ReaderConfig) -> tuple[Any, str]:
    given = config.cls if config.cls is not None else config.format
    target = import_dotted(given, name=f"sources.{name}.cls") if isinstance(given, str) else given
    label = f"{getattr(target, '__module__', '')}:{getattr(target, '__qualname__', type(target).__qualname__)}"
    if not callable(target):
        raise SourceError(f"sources.{name}: {label} is not a class or function; give one, or pass the object as `rows`")
    try:
        made = target(**config.options)
    except Exception as error:
        raise SourceError(
            f"sources.{name}: {label} could not be made with options {config.options!r} "
            f"({type(error).__name__}: {text_of(error)}); correct `options` or the class"
        ) from error
    if not _has_items(made) and not hasattr(made, "__iter__"):
        raise SourceError(
            f"sources.{name}: {label} returned a {type(made).__name__}, which has neither __len__ and __getitem__ nor "
            "__iter__; give it one of them"
        )
    return made, label


def _has_items(made: Any) -> bool:
    return hasattr(made, "__len__") and hasattr(made, "__getitem__")


def _length(name: str, made: Any, label: str) -> int:
    try:
        return len(made)
    except Exception as error:
        raise SourceError(
            f"sources.{name}: len() of {label} raised {type(error).__name__}: {text_of(error)}; correct the class"
        ) from error


def _item(made: Any, number: int, label: str) -> RawSample | BadRow:
    try:
        item = made[number]
    except Exception as error:
        return BadRow(f"{label}[{number}] raised {type(error).__name__}: {text_of(error)[:200]}")
    return row_of(item, f"{label}[{number}]")


def _iterate(name: str, made: Any, label: str) -> Iterator[RawSample | BadRow]:
    number = 0
    try:
        for item in made:
            yield row_of(item, f"row {number} of {label}")
            number += 1
    except Exception as error:
        raise SourceError(
            f"sources.{name}: {label} raised {type(error).__name__} after {number} rows: {text_of(error)}; correct the "
            "class, or let it skip what it cannot read"
        ) from error


def _stream_blocks(
    name: str, rows: Iterator[RawSample | BadRow], block_bytes: int
) -> Iterator[tuple[int, int, int, int]]:
    num_rows = nbytes = first = 0
    for number, row in enumerate(rows):
        if number == 0:
            _check_first(name, row)
        size = len(row.reason) if isinstance(row, BadRow) else len(row_bytes(row))
        if num_rows and nbytes + size > block_bytes:
            yield 0, num_rows, first, nbytes
            num_rows, nbytes, first = 0, 0, number
        num_rows, nbytes = num_rows + 1, nbytes + size
    if num_rows:
        yield 0, num_rows, first, nbytes


def _check_first(name: str, row: RawSample | BadRow) -> None:
    if isinstance(row, BadRow):
        raise SourceError(f"sources.{name}: {row.reason}")


def _close(made: Any) -> None:
    close = getattr(made, "close", None)
    if callable(close):
        close()

"""Rows given from Python: a list of dictionaries, a dictionary of columns, a DataFrame, an Arrow table, a dataset.

The content is part of the source's identity: the shard's name carries its hash, so a run that is resumed on other
rows is refused. Of objects that are neither plain values nor arrays only the type is hashed.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from msd.core.arrays import Int64Array
from msd.core.index import BlockTable, Shard
from msd.core.sample import RawSample
from msd.core.text import text_of
from msd.errors import SourceError
from msd.sources.base import BadRow
from msd.sources.config import ReaderConfig
from msd.sources.files import reading
from msd.sources.shard import ShardIndex, ShardReader

_HASHED_ROWS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """What every kind of rows offers."""

    kind: str
    num_rows: int
    take: Callable[[Int64Array], list[RawSample | BadRow]]
    """Returns the rows at these numbers; an item that is no mapping is bad."""
    is_plain: bool = True
    """Whether reading every row once, to hash it, is cheap: not for objects that compute their items."""


def index_rows(name: str, config: ReaderConfig) -> list[tuple[Shard, ShardIndex]]:
    """Return the one shard that the rows are, cut by their estimated bytes.

    Raises:
        SourceError: If the rows are of no kind that can be read, or an item is no mapping: naming its number and type.
    """
    rows = _rows(name, config)
    size_R, digest = _sizes(name, rows)
    blocks: list[tuple[int, int, int, int]] = []
    first = 0
    ends_R = np.cumsum(size_R)
    while first < rows.num_rows:
        start = int(ends_R[first - 1]) if first else 0
        after = max(first + 1, int(np.searchsorted(ends_R, start + config.block_bytes, side="right")))
        blocks.append((len(blocks), after - first, first, int(ends_R[after - 1]) - start))
        first = after
    nbytes = int(size_R.sum())
    shard = Shard(name=f"memory-{digest}", path=f"memory:{rows.kind}", nbytes=nbytes, num_rows=rows.num_rows)
    return [(shard, ShardIndex.of(blocks))]


def make_reader(source: str, config: ReaderConfig, blocks: BlockTable) -> ShardReader:
    """Return a reader of rows given from Python. Each read gives new dictionaries; their values are shared."""
    rows = _rows(source, config)

    def read(block: int, row_N: Int64Array) -> list[RawSample | BadRow]:
        return rows.take(row_N + blocks.offset_B[block])

    return ShardReader(source, read, lambda: None)


def row_of(item: Any, where: str) -> RawSample | BadRow:
    """Return an item as a row: a mapping as it is, a string as its `text`."""
    if isinstance(item, Mapping):
        return dict(item)
    if isinstance(item, str):
        return {"text": item}
    return BadRow(f"{where} is a {type(item).__name__}, not a mapping; give dictionaries or strings")


def row_bytes(row: RawSample) -> bytes:
    """Return bytes that differ where rows differ, about as long as the row is large."""
    try:
        return _ENCODER.encode(row)
    except (TypeError, ValueError, OverflowError, RecursionError):
        # Integers over 64 bits, keys of odd types, text with lone surrogates.
        return _text_of(row).encode("utf-8", "backslashreplace")


def _plain(value: Any) -> Any:
    """Return a stand-in that can be encoded for a value that cannot."""
    if isinstance(value, np.ndarray | np.generic):
        return [str(value.dtype), list(value.shape), value.tobytes()] if value.dtype != object else value.tolist()
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, Mapping):
        return dict(value)
    if callable(getattr(value, "tobytes", None)):
        return [kind, value.tobytes()]
    return kind


def _text_of(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_text_of(key)}: {_text_of(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text_of, value))}]"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_text_of, value)))}}}"
    return repr(value if isinstance(value, str | bytes | int | float | None) else _plain(value))


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain, order="deterministic")


def _sizes(name: str, rows: _Rows) -> tuple[Int64Array, str]:
    """Return the estimated bytes of each row, and a hash of all of them."""
    summary = hashlib.blake2b(f"{rows.kind} {rows.num_rows}".encode(), digest_size=8)
    if not rows.is_plain:
        size = estimated_bytes(rows.num_rows, rows.take)
        return np.full(rows.num_rows, size, dtype=np.int64), summary.hexdigest()
    size_R = np.zeros(rows.num_rows, dtype=np.int64)
    for first in range(0, rows.num_rows, _HASHED_ROWS):
        numbers = np.arange(first, min(first + _HASHED_ROWS, rows.num_rows))
        for number, row in zip(numbers.tolist(), rows.take(numbers), strict=True):
            if isinstance(row, BadRow):
                raise SourceError(f"sources.{name}.rows: {row.reason}")
            encoded = row_bytes(row)
            size_R[number] = len(encoded)
            summary.update(encoded)
    return size_R, summary.hexdigest()


def estimated_bytes(num_rows: int, take: Callable[[Int64Array], list[RawSample | BadRow]]) -> int:
    """Return the bytes of a row as 16 of them, evenly spread, say; rounded up to a power of two to be steady."""
    if num_rows == 0:
        return 1
    numbers = np.unique(np.linspace(0, num_rows - 1, num=16).astype(np.int64))
    sizes = [len(row_bytes(row)) for row in take(numbers) if not isinstance(row, BadRow)]
    return 1 << (max(1, sum(sizes) // max(1, len(sizes))) - 1).bit_length()


def _rows(name: str, config: ReaderConfig) -> _Rows:
    given = config.rows
    package = type(given).__module__.partition(".")[0]
    if isinstance(given, list | tuple):
        return _Rows("rows", len(given), _taker(given))
    if package == "pyarrow":
        return _arrow_rows(name, given, config)
    if package == "pandas" and hasattr(given, "columns"):
        return _Rows("rows", len(given), lambda row_N: _frame_rows(given.iloc[row_N]))
    if package == "datasets" and hasattr(given, "with_format"):
        return _dataset_rows(name, given, config)
    if isinstance(given, Mapping):
        return _column_rows(name, given)
    if hasattr(given, "__len__") and hasattr(given, "__getitem__") and not isinstance(given, str | bytes):
        return _Rows(f"{type(given).__module__}.{type(given).__qualname__}", len(given), _taker(given), is_plain=False)
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        raise SourceError(
            f"sources.{name}.rows is a {type(given).__name__}, which can be read only once; pass list(...) of it, or "
            "the function that makes it as `cls`"
        )
    raise SourceError(
        f"sources.{name}.rows is a {type(given).__name__}; give a list of dictionaries, a dictionary of columns, a "
        "DataFrame, an Arrow table or a datasets.Dataset"
    )


def _taker(items: Any) -> Callable[[Int64Array], list[RawSample | BadRow]]:
    def one(number: int) -> RawSample | BadRow:
        try:
            item = items[number]
        except Exception as error:
            return BadRow(
                f"item {number} of {type(items).__name__} raised {type(error).__name__}: {text_of(error)[:200]}"
            )
        return row_of(item, f"item {number}")

    return lambda row_N: [one(number) for number in row_N.tolist()]


def _arrow_rows(name: str, given: Any, config: ReaderConfig) -> _Rows:
    import pyarrow as pa

    from msd.sources.columns import rows_of, schema_of
    from msd.sources.schema import check_same_schema

    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    if not isinstance(given, pa.Table):
        raise SourceError(f"sources.{name}.rows is a pyarrow {type(given).__name__}; give a Table or a RecordBatch")
    check_same_schema([(f"sources.{name}.rows", schema_of(given.schema, f"sources.{name}.rows"))], config.columns)
    table = given if config.columns is None else given.select(config.columns)
    return _Rows("rows", table.num_rows, lambda row_N: rows_of(table, row_N))


def _frame_rows(frame: Any) -> list[RawSample | BadRow]:
    """Return rows of a DataFrame; what is missing in a column that is not of floats is None."""
    import pandas as pd

    names = [str(column) for column in frame.columns]
    columns = []
    for number in range(len(names)):
        series = frame.iloc[:, number]
        values = series.tolist()
        if getattr(series.dtype, "kind", "O") != "f":
            values = [None if pd.api.types.is_scalar(value) and pd.isna(value) else value for value in values]
        columns.append(values)
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _dataset_rows(name: str, given: Any, config: ReaderConfig) -> _Rows:
    if isinstance(given, Mapping):
        raise SourceError(
            f"sources.{name}.rows is a {type(given).__name__} with splits {', '.join(map(str, given))}; pass one"
        )
    if not hasattr(given, "__len__"):
        raise SourceError(
            f"sources.{name}.rows is a {type(given).__name__}, which has no length; pass a function that makes it as "
            "`cls`, or a datasets.Dataset"
        )
    from msd.sources.columns import rows_of

    chosen = given if config.columns is None else given.select_columns(config.columns)
    table = chosen.with_format("arrow")

    def take(row_N: Int64Array) -> list[RawSample | BadRow]:
        with reading(f"sources.{name}.rows"):
            found = table[row_N.tolist()]
        return rows_of(found, np.arange(len(row_N)))

    return _Rows("rows", len(given), take)


def _column_rows(name: str, given: Mapping[Any, Any]) -> _Rows:
    lengths = {
        str(key): len(column)
        for key, column in given.items()
        if isinstance(column, Sequence | np.ndarray) and not isinstance(column, str | bytes)
    }
    if len(lengths) != len(given) or len(set(lengths.values())) > 1:
        found = ", ".join(f"{key}: {lengths.get(str(key), type(column).__name__)}" for key, column in given.items())
        raise SourceError(
            f"sources.{name}.rows is a mapping, so it must hold columns of one length, got {{{found}}}; pass a list of "
            "dictionaries for rows"
        )

    def take(row_N: Int64Array) -> list[RawSample | BadRow]:
        return [{str(key): column[number] for key, column in given.items()} for number in row_N.tolist()]

    return _Rows("rows", next(iter(lengths.values()), 0), take)

"""Arrow columns to rows of plain Python and NumPy values."""

# N = rows asked for.

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from msd.core.arrays import Int64Array
from msd.core.sample import RawSample
from msd.core.text import text_of
from msd.errors import SourceError
from msd.sources.base import BadRow
from msd.sources.schema import Kind, Schema


def rows_of(table: Any, row_N: Int64Array) -> list[RawSample | BadRow]:
    """Return rows of an Arrow table or record batch.

    Numbers, strings, bytes, booleans, dates, decimals, structs (dict) and lists come as Python values; a list of
    numbers without nulls comes as a read-only NumPy array of its type. Times finer than a microsecond are cut to it,
    as `datetime` holds no more. A row with a value that Python cannot hold (text that is not UTF-8, the year 20000) is
    bad.
    """
    if table.num_columns == 0:
        return [{} for _ in row_N]
    names = table.schema.names
    taken = table.take(pa.array(row_N))
    columns = [_values(name, column) for name, column in zip(names, taken.columns, strict=True)]
    rows: list[RawSample | BadRow] = []
    for values in zip(*columns, strict=True):
        bad = next((value for value in values if isinstance(value, BadRow)), None)
        rows.append(bad if bad is not None else dict(zip(names, values, strict=True)))
    return rows


def schema_of(schema: Any, path: str) -> Schema:
    """Return the kinds of an Arrow schema's columns.

    Raises:
        SourceError: If two columns have the same name.
    """
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise SourceError(f"{path} has {schema.names.count(name)} columns named {name!r}; rename all but one")
    return {field.name: kind_of(field.type) for field in schema}


def kind_of(arrow_type: Any) -> Kind:
    """Return what a value of an Arrow type becomes in Python."""
    types = pa.types
    if types.is_dictionary(arrow_type) or types.is_run_end_encoded(arrow_type):
        return kind_of(arrow_type.value_type)
    if isinstance(arrow_type, pa.BaseExtensionType):
        return kind_of(arrow_type.storage_type)
    if types.is_struct(arrow_type):
        return {field.name: kind_of(field.type) for field in arrow_type}
    if types.is_map(arrow_type):
        return [{"key": kind_of(arrow_type.key_type), "value": kind_of(arrow_type.item_type)}]
    if is_list(arrow_type):
        return [kind_of(arrow_type.value_type)]
    for kind, is_kind in _KINDS:
        if any(test(arrow_type) for test in is_kind):
            return kind
    return str(arrow_type)


def is_list(arrow_type: Any) -> bool:
    """Return whether an Arrow type is a list, of whatever layout."""
    types = pa.types
    return bool(
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
        or types.is_list_view(arrow_type)
        or types.is_large_list_view(arrow_type)
    )


_KINDS: Sequence[tuple[str, Sequence[Any]]] = (
    ("null", (pa.types.is_null,)),
    ("bool", (pa.types.is_boolean,)),
    ("int", (pa.types.is_integer,)),
    ("float", (pa.types.is_floating,)),
    ("string", (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)),
    (
        "bytes",
        (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
    ),
    ("decimal", (pa.types.is_decimal,)),
    ("date", (pa.types.is_date,)),
    ("time", (pa.types.is_time,)),
    ("timestamp", (pa.types.is_timestamp,)),
    ("duration", (pa.types.is_duration,)),
)


def _values(name: str, column: Any) -> list[Any]:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        if isinstance(column, pa.ChunkedArray):
            return [value for chunk in column.chunks for value in _values(name, chunk)]
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_list(column.type) and _is_number(column.type.value_type):
        return _arrays(column)
    try:
        coarse = _without_nanoseconds(column.type)
        plain = column if coarse == column.type else column.cast(coarse, safe=False)
        return list(plain.to_pylist())
    except (ValueError, OverflowError, ArithmeticError):
        return [_value(name, scalar) for scalar in column]


def _is_number(arrow_type: Any) -> bool:
    return bool(pa.types.is_integer(arrow_type) or pa.types.is_floating(arrow_type))


def _arrays(column: Any) -> list[Any]:
    numbers = column.flatten()
    whole = numbers.to_numpy(zero_copy_only=True) if numbers.null_count == 0 else None
    end = 0
    arrays: list[Any] = []
    for length in pc.list_value_length(column).to_pylist():
        if length is None:
            arrays.append(None)
            continue
        if whole is not None:
            arrays.append(whole[end : end + length])
        else:
            # Whether a row is an array depends on that row alone, not on its neighbours in the block.
            row = numbers.slice(end, length)
            arrays.append(row.to_pylist() if row.null_count else row.to_numpy(zero_copy_only=True))
        end += length
    return arrays


def _value(name: str, scalar: Any) -> Any:
    try:
        coarse = _without_nanoseconds(scalar.type)
        return (scalar if coarse == scalar.type else scalar.cast(coarse, safe=False)).as_py()
    except (ValueError, OverflowError, ArithmeticError, TypeError) as error:
        return BadRow(f"column {name!r} holds a value that cannot be read: {text_of(error)[:200]}")


def _without_nanoseconds(arrow_type: Any) -> Any:
    """Return the type with microseconds for nanoseconds, at any depth."""
    types = pa.types
    if types.is_timestamp(arrow_type) and arrow_type.unit == "ns":
        return pa.timestamp("us", tz=arrow_type.tz)
    if types.is_duration(arrow_type) and arrow_type.unit == "ns":
        return pa.duration("us")
    if types.is_time64(arrow_type) and arrow_type.unit == "ns":
        return pa.time64("us")
    if types.is_struct(arrow_type):
        return pa.struct([field.with_type(_without_nanoseconds(field.type)) for field in arrow_type])
    if types.is_list(arrow_type):
        return pa.list_(arrow_type.value_field.with_type(_without_nanoseconds(arrow_type.value_type)))
    if types.is_large_list(arrow_type):
        return pa.large_list(arrow_type.value_field.with_type(_without_nanoseconds(arrow_type.value_type)))
    return arrow_type

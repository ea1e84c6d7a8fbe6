"""Parquet read by fastparquet: the same rows as pyarrow gives, or a refusal that names the column.

fastparquet gives pandas columns. Each is turned back into an Arrow array of the type that the file declares, so that
one conversion makes the rows of both engines. Types of which fastparquet loses something are refused, and the nulls of
each column are compared with those that the file counts: a value that was not read would show as one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from msd.core.text import text_of
from msd.errors import SourceError
from msd.sources.columns import is_list

_UTF8 = 0
"""`ConvertedType.UTF8` of the Parquet format."""


class FastParquetShard:
    """A Parquet file read by fastparquet; a row group is decoded whole."""

    def __init__(self, raw: BinaryIO, path: str, columns: list[str] | None) -> None:
        """Read the footer of `raw`.

        Raises:
            SourceError: If a column has a type that fastparquet cannot give exactly.
        """
        import fastparquet

        self._raw = raw
        self._path = path
        self._metadata = pq.read_metadata(raw)
        schema = self._metadata.schema.to_arrow_schema()
        chosen = schema.names if columns is None else dict.fromkeys(columns)
        self._fields = [schema.field(name) for name in chosen]
        for field in self._fields:
            # To fastparquet a dot leads from a column into its fields, whichever was meant.
            if "." in field.name or any(name.startswith(f"{field.name}.") for name in schema.names):
                raise self._refusal(f"cannot tell column {field.name!r} from others: names with dots are ambiguous")
            if not _is_exact(field):
                raise self._refusal(f"cannot give column {field.name!r} ({field.type}) exactly")
        raw.seek(0)
        with self._refused():
            self._file = fastparquet.ParquetFile(raw)
            # As text, fastparquet 2026.9 loses the pages behind a dictionary that grew too large; as bytes it does not.
            for element in self._file.schema.schema_elements:
                if element.converted_type == _UTF8:
                    element.converted_type = element.logicalType = None

    def batches(self, group: int, batch_rows: int | None) -> Iterator[Any]:
        """Yield the row group as one record batch."""
        names = [field.name for field in self._fields]
        with self._refused():
            frame = self._file[group].to_pandas(columns=names, index=False, categories=[])
            arrays = [_array(field, frame[field.name], self._nulls(field.name, group)) for field in self._fields]
        for field, array in zip(self._fields, arrays, strict=True):
            self._check_complete(field, array, group)
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(self._fields))

    def close(self) -> None:
        """Close the file."""
        self._raw.close()

    def _leaf(self, name: str, group: int) -> Any:
        found = self._metadata.row_group(group)
        leaves = [found.column(number) for number in range(found.num_columns)]
        return next(
            leaf for leaf in leaves if leaf.path_in_schema == name or leaf.path_in_schema.startswith(f"{name}.")
        )

    def _nulls(self, name: str, group: int) -> int | None:
        """Return how many nulls the file says that the column has in a row group, empty lists counted."""
        leaf = self._leaf(name, group)
        return leaf.statistics.null_count if leaf.is_stats_set and leaf.statistics.has_null_count else None

    def _check_complete(self, field: Any, array: Any, group: int) -> None:
        expected, found, num_values = self._nulls(field.name, group), array.null_count, len(array)
        if is_list(array.type):
            values = array.flatten()
            lengths = pa.compute.list_value_length(array).fill_null(0)
            num_empty = pa.compute.sum(pa.compute.equal(lengths, 0)).as_py() or 0
            found, num_values = num_empty + values.null_count, num_empty + len(values)
        if expected is None:
            # A value that was not read shows as a null: without any, none was lost.
            if found == 0 or pa.types.is_null(array.type):
                return
            raise self._refusal(f"cannot be checked: the file counts no nulls of column {field.name!r}")
        if pa.types.is_floating(array.type) and 0 < expected < found:
            raise self._refusal(f"does not tell nulls and NaN of column {field.name!r} apart")
        if found != expected or num_values != self._leaf(field.name, group).num_values:
            raise self._refusal(f"found {found} nulls in column {field.name!r} where the file says {expected}")

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Turn whatever fastparquet raises, which may be anything, into a `SourceError`."""
        try:
            yield
        except Exception as error:
            reason = text_of(error)[:200]
            raise self._refusal(f"cannot read it ({type(error).__name__}: {reason})") from error

    def _refusal(self, why: str) -> SourceError:
        return SourceError(
            f"{self._path}: fastparquet {why}; set engine: pyarrow, or leave the column out with `columns`"
        )


def _array(field: Any, series: Any, num_nulls: int | None) -> Any:
    kind = pa.types
    if kind.is_floating(field.type):
        # Nulls show as NaN; the file says whether there are any.
        mask = series.isna().to_numpy() if num_nulls else None
        return pa.array(series.to_numpy(field.type.to_pandas_dtype()), field.type, mask=mask)
    if kind.is_timestamp(field.type) or kind.is_date(field.type):
        times = pa.array(series.to_numpy(), from_pandas=True).cast(pa.timestamp("us"))
        # A column with a zone holds UTC.
        return times.cast(field.type if kind.is_date(field.type) else pa.timestamp(field.type.unit)).view(field.type)
    values = series.astype(object).where(series.notna(), None).tolist()
    if kind.is_dictionary(field.type):
        return _plain(values, field.type.value_type).dictionary_encode().cast(field.type)
    return _plain(values, field.type)


def _plain(values: list[Any], arrow_type: Any) -> Any:
    kind = pa.types
    if kind.is_time64(arrow_type) or kind.is_duration(arrow_type):
        return pa.array(values, pa.int64()).cast(arrow_type)
    if kind.is_string(arrow_type) or kind.is_large_string(arrow_type):
        # Without checking that the bytes are UTF-8: a row where they are not is bad, not its whole block.
        return pa.array(values, pa.binary() if kind.is_string(arrow_type) else pa.large_binary()).view(arrow_type)
    if is_list(arrow_type) and kind.is_string(arrow_type.value_type):
        return pa.array(values, pa.list_(pa.binary())).cast(arrow_type)
    return pa.array(values, arrow_type)


def _is_exact(field: Any) -> bool:
    kind, arrow_type = pa.types, field.type
    if kind.is_dictionary(arrow_type):
        return _is_exact(field.with_type(arrow_type.value_type))
    if is_list(arrow_type):
        inner = arrow_type.value_type
        # Lists that may not be null are laid out with fewer levels, which fastparquet reads as nulls.
        if not field.nullable or not arrow_type.value_field.nullable:
            return False
        return bool(kind.is_integer(inner) or kind.is_string(inner) or kind.is_float32(inner) or kind.is_float64(inner))
    if kind.is_timestamp(arrow_type) or kind.is_duration(arrow_type) or kind.is_time64(arrow_type):
        return bool(arrow_type.unit == "us" or (kind.is_timestamp(arrow_type) and arrow_type.unit == "ms"))
    return bool(
        kind.is_boolean(arrow_type)
        or kind.is_integer(arrow_type)
        or kind.is_float32(arrow_type)
        or kind.is_float64(arrow_type)
        or kind.is_string(arrow_type)
        or kind.is_large_string(arrow_type)
        or kind.is_binary(arrow_type)
        or kind.is_large_binary(arrow_type)
        or kind.is_date32(arrow_type)
        or kind.is_null(arrow_type)
    )

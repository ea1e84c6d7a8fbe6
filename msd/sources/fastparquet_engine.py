"""Parquet read by fastparquet: the same rows as pyarrow gives, or a refusal that names the column.

fastparquet gives pandas columns. Each is turned back into an Arrow array of the type that the file declares, so that
one conversion makes the rows of both engines. Types of which fastparquet loses something are refused.
"""

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from msd.errors import SourceError
from msd.sources.columns import is_list

_COUNTS_OF_US = (pa.types.is_time64, pa.types.is_duration)


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
        self._fields = [schema.field(name) for name in (columns or schema.names)]
        for field in self._fields:
            if not _is_exact(field.type):
                raise SourceError(
                    f"{path}: fastparquet cannot give column {field.name!r} ({field.type}) exactly; set engine: "
                    "pyarrow, or leave the column out with `columns`"
                )
        raw.seek(0)
        self._file = fastparquet.ParquetFile(raw)

    def batches(self, group: int, batch_rows: int | None) -> Iterator[Any]:
        """Yield the row group as one record batch."""
        names = [field.name for field in self._fields]
        frame = self._file[group].to_pandas(columns=names, index=False)
        arrays = [self._array(field, frame[field.name], group) for field in self._fields]
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(self._fields))

    def close(self) -> None:
        """Close the file."""
        self._raw.close()

    def _array(self, field: Any, series: Any, group: int) -> Any:
        kind = pa.types
        if kind.is_dictionary(field.type):
            values = pa.array(series.astype(object).where(series.notna(), None).tolist(), field.type.value_type)
            return values.dictionary_encode().cast(field.type)
        if kind.is_floating(field.type):
            numbers = series.to_numpy(field.type.to_pandas_dtype())
            return pa.array(numbers, field.type, mask=self._nulls(series, field.name, group))
        if kind.is_timestamp(field.type) or kind.is_date(field.type):
            times = pa.array(series.to_numpy(), from_pandas=True).cast(pa.timestamp("us"))
            # A column with a zone holds UTC.
            coarse = field.type if kind.is_date(field.type) else pa.timestamp(field.type.unit)
            return times.cast(coarse).view(field.type)
        values = series.astype(object).where(series.notna(), None).tolist()
        if any(test(field.type) for test in _COUNTS_OF_US):
            return pa.array(values, pa.int64()).cast(field.type)
        return pa.array(values, field.type)

    def _nulls(self, series: Any, name: str, group: int) -> Any:
        """Return which values are null: fastparquet shows null and NaN alike, the file's statistics count nulls."""
        is_nan = np.isnan(series.to_numpy(np.float64))
        found = self._metadata.row_group(group)
        count: int | None = None
        for number in range(found.num_columns):
            column = found.column(number)
            if column.path_in_schema == name and column.is_stats_set and column.statistics.has_null_count:
                count = column.statistics.null_count
        if count in (0, int(is_nan.sum())):
            return is_nan if count else None
        raise SourceError(
            f"{self._path}: column {name!r} holds both nulls and NaN, which fastparquet does not tell apart; set "
            "engine: pyarrow"
        )


def _is_exact(arrow_type: Any) -> bool:
    kind = pa.types
    if kind.is_dictionary(arrow_type):
        return _is_exact(arrow_type.value_type)
    if is_list(arrow_type):
        inner = arrow_type.value_type
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

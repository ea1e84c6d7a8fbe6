"""What batch mode writes: samples, and packed sequences, as tables that pandas, pyarrow and Dask read."""

# N = documents of a sequence. T = tokens of a sequence. M = microbatches.

import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from msd.core.arrays import Int64Array
from msd.core.batch import Microbatch
from msd.core.plan import StepPlan
from msd.core.sample import Failure, MetaTable, Outcome, Sample, SampleId, SampleImages
from msd.errors import EngineError

if TYPE_CHECKING:
    import pyarrow as pa

FileKind: TypeAlias = Literal["parquet", "arrow"]
SUFFIXES: dict[FileKind, str] = {"parquet": ".parquet", "arrow": ".arrow"}
_GROUP_BYTES = 1 << 20
"""Of a row group, about: a block of whoever reads it, who then enters the file anywhere."""
_MOST_ROWS = 1024
_META = b"msd"
"""Key of what a file of samples says of its rows."""


def samples_table(meta: MetaTable, samples: Sequence[Sample]) -> "pa.Table":
    """Return the samples of consecutive rows, with what became of each row in the metadata of the schema."""
    import pyarrow as pa

    images = [sample.images for sample in samples]
    said = {
        "source": meta.source,
        "start": meta.start,
        "outcomes": meta.outcome_R.tolist(),
        "parts": meta.num_parts_R.tolist(),
        "failures": [[one.ordinal, one.reason, one.shard, one.row] for one in meta.failures],
    }
    columns = {
        "source": pa.array([sample.id.source for sample in samples], pa.string()),
        "ordinal": pa.array([sample.id.ordinal for sample in samples], pa.int64()),
        "part": pa.array([sample.id.part for sample in samples], pa.int32()),
        "input_ids": _lists([sample.tokens_T for sample in samples], pa.int32()),
        "trained": _lists([sample.trained_T for sample in samples], pa.uint8()),
        "num_image_tokens": pa.array([sample.num_image_tokens for sample in samples], pa.int32()),
        "pixels": pa.array([None if one is None else one.pixels_PF.tobytes() for one in images], pa.large_binary()),
        "grids": _lists([None if one is None else one.grids_I3.reshape(-1) for one in images], pa.int32()),
        "image_starts": _lists([None if one is None else one.starts_I for one in images], pa.int32()),
    }
    return pa.table(columns).replace_schema_metadata({_META: json.dumps(said, sort_keys=True).encode()})


def samples_of(table: "pa.Table") -> tuple[MetaTable, list[Sample]]:
    """Return what `samples_table` was given."""
    said = json.loads(table.schema.metadata[_META])
    samples = _samples(table)
    waiting = iter(samples)
    rows = [
        (Outcome(outcome), [next(waiting) for _ in range(parts)])
        for outcome, parts in zip(said["outcomes"], said["parts"], strict=True)
    ]
    failures = [Failure(ordinal=one[0], reason=one[1], shard=one[2], row=one[3]) for one in said["failures"]]
    return MetaTable.of(said["source"], said["start"], rows, failures), samples


def steps_table(plans: Sequence[StepPlan], rows_of: Callable[[StepPlan, int], Sequence[Microbatch]]) -> "pa.Table":
    """Return the sequences of steps, each a row, in the order in which ranks receive them.

    Args:
        plans: Consecutive steps.
        rows_of: Returns the whole microbatches of a bucket of a plan.
    """
    import pyarrow as pa

    found: list[dict[str, Any]] = []
    for plan in plans:
        for bucket in range(plan.num_buckets):
            for slot, row in enumerate(rows_of(plan, bucket)):
                found += _sequences(plan, bucket, slot, row)
    whole, many = pa.int32(), pa.list_(pa.int32())
    schema = pa.schema(
        [
            ("step", pa.int64()), ("bucket", whole), ("microbatch", whole), ("sequence", whole),
            ("input_ids", many), ("labels", many),
            ("document_starts", many), ("document_lengths", many),
            ("sources", pa.list_(pa.string())), ("ordinals", pa.list_(pa.int64())), ("parts", many),
            ("first_tokens", many),
            ("pixels", pa.large_binary()), ("grids", many), ("image_documents", many),
            ("image_starts", many),
        ]
    )  # fmt: skip
    return pa.Table.from_pylist(found, schema=schema)


def _sequences(plan: StepPlan, bucket: int, slot: int, row: Microbatch) -> Iterator[dict[str, Any]]:
    """Yield the sequences of one microbatch."""
    length = plan.sequence_length
    assert row.input_ids is not None
    assert row.labels is not None
    document_N = plan.documents_of(bucket, slot)
    offset_N = plan.offset_D[document_N]
    images = row.images
    for number in range(plan.sequences_per_microbatch):
        begin, end = number * length, (number + 1) * length
        here_N: Int64Array = np.flatnonzero((offset_N >= begin) & (offset_N < end)).astype(np.int64)
        mine_N = document_N[here_N]
        entry: dict[str, Any] = {
            "step": plan.step,
            "bucket": bucket,
            "microbatch": slot,
            "sequence": number,
            "input_ids": row.input_ids[begin:end],
            "labels": row.labels[begin:end],
            "document_starts": offset_N[here_N] - begin,
            "document_lengths": plan.length_D[mine_N],
            "sources": [plan.source_names[index] for index in plan.source_D[mine_N].tolist()],
            "ordinals": plan.ordinal_D[mine_N],
            "parts": plan.part_D[mine_N],
            "first_tokens": plan.start_D[mine_N],
        }
        if images is not None:
            # A dummy belongs to no document, and is made again by whoever feeds the row.
            owned_I = np.flatnonzero(np.isin(images.owner, here_N))
            ends_I = np.cumsum(images.grids.astype(np.int64).prod(axis=1))
            pieces = [images.pixels[int(ends_I[i - 1]) if i else 0 : int(ends_I[i])] for i in owned_I.tolist()]
            if pieces:
                entry["pixels"] = np.concatenate(pieces).tobytes()
                entry["grids"] = images.grids[owned_I].reshape(-1)
                entry["image_documents"] = np.searchsorted(here_N, images.owner[owned_I])
                entry["image_starts"] = images.starts[owned_I] - begin
        yield entry


def encoded(table: "pa.Table", kind: FileKind) -> bytes:
    """Return the bytes of a file: the same for the same table, whoever writes it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    group = max(1, min(_MOST_ROWS, _GROUP_BYTES * table.num_rows // max(1, table.nbytes)))
    if kind == "parquet":
        pq.write_table(table, out, compression="zstd", row_group_size=group)
    else:
        with pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table, max_chunksize=group)
    return out.getvalue()


def decoded(content: bytes, kind: FileKind, *, name: str) -> "pa.Table":
    """Return the table of a file.

    Raises:
        EngineError: If it is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        source = pa.BufferReader(content)
        return pq.read_table(source) if kind == "parquet" else pa.ipc.open_file(source).read_all()
    except (pa.ArrowException, OSError) as error:
        raise EngineError(f"{name} is damaged ({error}); remove it and run the same command again") from None


def _samples(table: "pa.Table") -> list[Sample]:
    """Return the samples of a table, their arrays as views of its columns."""
    tokens, trained = _arrays(table, "input_ids"), _arrays(table, "trained")
    grids, starts = _arrays(table, "grids"), _arrays(table, "image_starts")
    plain = {
        name: table.column(name).to_pylist() for name in ("source", "ordinal", "part", "num_image_tokens", "pixels")
    }
    return [
        Sample(
            id=SampleId(plain["source"][row], plain["ordinal"][row], plain["part"][row]),
            tokens_T=tokens[row],
            num_image_tokens=plain["num_image_tokens"][row],
            trained_T=trained[row],
            images=_images(grids[row], starts[row], plain["pixels"][row]),
        )
        for row in range(table.num_rows)
    ]


def _images(grids: Any, starts: Any, content: bytes | None) -> SampleImages | None:
    if grids is None or content is None:
        return None
    grids_I3 = grids.reshape(-1, 3)
    num_patches = int(grids_I3.astype(np.int64).prod(axis=1).sum())
    pixels = np.frombuffer(content, dtype=np.uint8)
    return SampleImages(
        pixels_PF=pixels.reshape(num_patches, -1) if num_patches else pixels.reshape(0, 0),
        grids_I3=grids_I3,
        starts_I=starts,
    )


def _arrays(table: "pa.Table", name: str) -> list[Any]:
    """Return the arrays of a column of lists, None where there is none."""
    found: list[Any] = []
    for chunk in table.column(name).chunks:
        values, offsets = chunk.values.to_numpy(zero_copy_only=False), chunk.offsets.to_numpy()
        is_there = chunk.is_valid().to_numpy(zero_copy_only=False)
        found += [values[offsets[row] : offsets[row + 1]] if is_there[row] else None for row in range(len(chunk))]
    return found


def _lists(arrays: Sequence[Any], kind: Any) -> Any:
    """Return a column of lists, None where there is no array, without an object for each value."""
    import pyarrow as pa

    lengths = [0 if array is None else len(array) for array in arrays]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = [array for array in arrays if array is not None and len(array)]
    joined = pa.array(np.concatenate(values) if values else [], kind)
    mask = pa.array([array is None for array in arrays], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), joined, mask=mask)

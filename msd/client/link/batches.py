"""How a batch travels: a few numbers as JSON, then its arrays as they lie in memory.

The body of a BATCH frame holds the JSON first and then every array, each at an aligned place. The rank is said in the
frame's header alone, so that ranks with equal data share one encoding.
"""

# N = documents of the rank's rows.

import functools
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from msd.client.link.frames import padding
from msd.client.link.messages import value
from msd.core.arrays import UInt8Array
from msd.core.batch import SHARE_FIELDS, BatchMarker, EncoderShare, Microbatch, RankBatch
from msd.errors import EngineError

_ZEROS = bytes(padding(1))


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A batch ready to be sent to any of the ranks that hold the same data. It refers to the batch's arrays."""

    step: int
    parts: tuple[memoryview, ...]
    """The body, in order."""
    description_bytes: int
    """Of the JSON at its start."""
    nbytes: int
    """Of the body."""

    def header_for(self, rank: int) -> dict[str, Any]:
        """Return what differs between ranks."""
        return {"rank": rank, "description_bytes": self.description_bytes}


def encode(batch: RankBatch) -> Encoded:
    """Return a batch as what is sent. Arrays are not copied: leave them as they are until all ranks have them."""
    arrays = [np.ascontiguousarray(array) for array in _arrays(batch)]
    description = {
        "step": batch.step,
        "generation": batch.generation,
        "num_valid_tokens": batch.num_valid_tokens,
        "global_num_valid_tokens": batch.global_num_valid_tokens,
        "sequence_length": batch.sequence_length,
        "slice_method": batch.slice_method,
        "sources": list(dict.fromkeys(source for source, _, _ in batch.sample_ids)),
        "rows": [_described(row) for row in batch.microbatches],
        "encoder": [share.num_embeddings for share in batch.encoder],
        "markers": [{"root": marker.root, "shapes": marker.shapes} for marker in batch.markers],
        "arrays": [[array.dtype.str, *array.shape] for array in arrays],
    }
    text = json.dumps(description, separators=(",", ":")).encode()
    parts: list[memoryview] = []
    for part in (memoryview(text), *(array.reshape(-1).view(np.uint8).data for array in arrays)):
        parts += [part, memoryview(_ZEROS)[: padding(part.nbytes)]]
    kept = tuple(part for part in parts if part.nbytes)
    return Encoded(batch.step, kept, len(text), sum(part.nbytes for part in kept))


def decode(header: dict[str, Any], body: UInt8Array) -> RankBatch:
    """Return the batch of a frame; its arrays are views of `body`.

    Raises:
        EngineError: If the body is not what its description says.
    """
    try:
        return _decode(header, body)
    except (ValueError, TypeError, LookupError, StopIteration, RecursionError) as error:
        raise EngineError(
            f"a batch arrived damaged: {error or type(error).__name__}; the link is not reliable"
        ) from None


def _arrays(batch: RankBatch) -> Iterator[np.ndarray[Any, Any]]:
    number_of = {source: number for number, source in enumerate(dict.fromkeys(id_[0] for id_ in batch.sample_ids))}
    yield np.frombuffer(batch.progress.encode(), np.uint8)
    yield np.array([number_of[source] for source, _, _ in batch.sample_ids], np.int32)
    yield np.array([ordinal for _, ordinal, _ in batch.sample_ids], np.int64)
    yield np.array([part for _, _, part in batch.sample_ids], np.int32)
    for row in batch.microbatches:
        yield from row.arrays.values()
    for share in batch.encoder:
        yield from (getattr(share, name) for name in SHARE_FIELDS)


def _described(row: Microbatch) -> dict[str, Any]:
    return {"num_tokens": row.num_tokens, "max_seqlen": row.max_seqlen, "fields": list(row.arrays)}


def _decode(header: dict[str, Any], body: UInt8Array) -> RankBatch:
    description_bytes = value(header, "description_bytes", int)
    description = json.loads(body[:description_bytes].tobytes())
    arrays = _views(description["arrays"], body, description_bytes)
    progress = str(next(arrays).data, "utf-8")
    sources = description["sources"]
    names_N, ordinal_N, part_N = ([sources[number] for number in next(arrays)], next(arrays), next(arrays))
    return RankBatch(
        step=value(description, "step", int),
        rank=value(header, "rank", int),
        sample_ids=list(zip(names_N, ordinal_N.tolist(), part_N.tolist(), strict=True)),
        microbatches=[_row(row, arrays) for row in description["rows"]],
        num_valid_tokens=value(description, "num_valid_tokens", int),
        global_num_valid_tokens=value(description, "global_num_valid_tokens", int),
        sequence_length=value(description, "sequence_length", int),
        slice_method=description["slice_method"],
        generation=value(description, "generation", int),
        markers=[_marker(marker) for marker in description["markers"]],
        encoder=[_share(num_embeddings, arrays) for num_embeddings in description["encoder"]],
        progress=progress,
    )


def _views(layout: list[list[Any]], body: UInt8Array, description_bytes: int) -> Iterator[np.ndarray[Any, Any]]:
    start = description_bytes + padding(description_bytes)
    for name, *shape in layout:
        dtype = _dtype(name)
        count = math.prod(shape)
        if count > 0:
            array = np.frombuffer(body, dtype, count, start)
            yield array if len(shape) == 1 else array.reshape(shape)
        else:
            yield np.empty(shape, dtype)
        nbytes = count * dtype.itemsize
        start += nbytes + padding(nbytes)


@functools.cache
def _dtype(name: str) -> "np.dtype[Any]":
    dtype = np.dtype(name)
    if dtype.kind not in "iuf":
        raise ValueError(f"an array of {name}")
    return dtype


def _row(row: dict[str, Any], arrays: Iterator[np.ndarray[Any, Any]]) -> Microbatch:
    names = row["fields"]
    return Microbatch.of(
        dict(zip(names, itertools.islice(arrays, len(names)), strict=True)),
        num_tokens=value(row, "num_tokens", int),
        max_seqlen=value(row, "max_seqlen", int),
    )


def _share(num_embeddings: Any, arrays: Iterator[np.ndarray[Any, Any]]) -> EncoderShare:
    fields: dict[str, Any] = dict(zip(SHARE_FIELDS, itertools.islice(arrays, len(SHARE_FIELDS)), strict=True))
    return EncoderShare(num_embeddings=int(num_embeddings), **fields)


def _marker(marker: dict[str, Any]) -> BatchMarker:
    shapes = {name: (tuple(shape), dtype) for name, (shape, dtype) in marker["shapes"].items()}
    return BatchMarker(root=value(marker, "root", int), shapes=shapes)

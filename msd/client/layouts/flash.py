"""flash-attention's kernels for packed rows: `flash_attn_varlen_func`."""

# T = tokens of a row, or of the rank's slice of it. E = segments: documents, and padding between them.

from typing import Any

from msd.client.layouts.laid_out import LaidOutBatch, as_int64, check_slices, images_of, received
from msd.client.layouts.segments import Segments, segments, slice_segments
from msd.core.arrays import Int64Array
from msd.core.batch import Microbatch, RankBatch


def flash(batch: RankBatch) -> LaidOutBatch:
    """Return each microbatch with the boundaries that the kernel takes.

        input_ids                   int64 [T]
        labels                      int64 [T]: the target at each position, shifted already; -100 where nothing
                                    is learned
        position_ids                int64 [T]: restart at 0 in each document
        cu_seqlens_q, cu_seqlens_k  int32 [E + 1]: where each document begins; ends at T
        max_seqlen_q, max_seqlen_k  int: the longest document

    The kernel writes nothing outside `cu_seqlens`, so that covers every position: what pads a row is documents of its
    own without labels, no longer than the longest real one. Pass `causal=True`.

    Under context parallelism the fields are the rank's slice, T / cp of them, and so are the boundaries: each
    document's padded extent over cp, of which the rank holds one chunk and its mirror, padding included. That is what
    `zigzag_ring_flash_attn_varlen_func` takes; positions are then those of the whole document, 0 on padding.

    Raises:
        ConfigError: If the rank holds slices that are not cut document by document.
    """
    check_slices(batch, "flash", takes="zigzag", otherwise="set batch.slice: zigzag")
    return LaidOutBatch.of(batch, _row if batch.slice_method is None else _slice)


def _row(row: Microbatch) -> dict[str, Any]:
    found = segments(row)
    return _fields(row, found.position_ids, found)


def _slice(row: Microbatch) -> dict[str, Any]:
    return _fields(row, as_int64(row.position_ids), slice_segments(row))


def _fields(row: Microbatch, position_ids: Int64Array | None, found: Segments) -> dict[str, Any]:
    fields = {
        "input_ids": as_int64(row.input_ids),
        "labels": as_int64(row.labels),
        "position_ids": position_ids,
        "cu_seqlens_q": found.cu_seqlens,
        "cu_seqlens_k": found.cu_seqlens,
        "max_seqlen_q": found.max_seqlen,
        "max_seqlen_k": found.max_seqlen,
    }
    return received(fields) | images_of(row)

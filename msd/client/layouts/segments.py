"""Where a kernel for packed rows begins and ends, so that it computes every position it is given.

Kernels that know one list of boundaries leave what lies outside of it unwritten, and one NaN there spoils the gradient
of a weight although the loss ignores the position. So padding gets segments of its own: documents do not see it, and
what it costs is next to nothing.
"""

# T = tokens of a row, or of the rank's slice of it. N = documents of the row. E = segments: documents, and padding.

from dataclasses import dataclass

import numpy as np

from msd.core.arrays import Int32Array, Int64Array
from msd.core.batch import Microbatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segments:
    """Stretches that attend within themselves and together cover a row."""

    cu_seqlens: Int32Array
    """int32 [E + 1]: where each begins; starts at 0, ends at T, increases."""
    max_seqlen: int
    """The longest."""

    @property
    def position_ids(self) -> Int64Array:
        """int64 [T]: restart at 0 in each segment, also in padding."""
        length_E = np.diff(self.cu_seqlens)
        return np.arange(self.cu_seqlens[-1], dtype=np.int64) - np.repeat(self.cu_seqlens[:-1], length_E)

    @property
    def seq_idx(self) -> Int32Array:
        """int32 [T]: number of the segment at each position, from 0."""
        length_E = np.diff(self.cu_seqlens)
        return np.repeat(np.arange(len(length_E), dtype=np.int32), length_E)


def segments(row: Microbatch) -> Segments:
    """Return the documents of a whole row and, between them, its padding.

    Padding is cut into segments that are no longer than the longest document, so that `max_seqlen` and the largest
    position are those of the documents however much of the row is empty.
    """
    longest = max(1, row.max_seqlen)
    start_N, next_N = row.cu_seqlens_padded[:-1], row.cu_seqlens_padded[1:]
    end_N = start_N + np.diff(row.cu_seqlens)
    pieces_N = -(-(next_N - end_N) // longest)
    first_N = np.cumsum(pieces_N) - pieces_N
    number_in_run = np.arange(pieces_N.sum()) - np.repeat(first_N, pieces_N)
    padding_starts = np.repeat(end_N, pieces_N) + longest * number_in_run
    # A document of length 0, which an empty row has, starts where its padding does.
    cu_seqlens = np.unique(np.concatenate([start_N, padding_starts, row.cu_seqlens_padded[-1:]])).astype(np.int32)
    return Segments(cu_seqlens=cu_seqlens, max_seqlen=longest)


def slice_segments(row: Microbatch) -> Segments:
    """Return the boundaries of a slice that was cut document by document: those of the row, each over the degree.

    The slice holds equally much of each document's padded extent, so padding stays with the document before it.
    """
    degree = int(row.cu_seqlens_padded[-1]) // row.num_tokens
    cu_seqlens = (row.cu_seqlens_padded // degree).astype(np.int32)
    return Segments(cu_seqlens=cu_seqlens, max_seqlen=int(np.diff(cu_seqlens).max()))


def document_numbers(row: Microbatch) -> Int32Array:
    """Return int32 [T] of the whole row: 1, 2, ... by document, 0 on padding. Any pipeline stage knows them."""
    length_N = np.diff(row.cu_seqlens)
    runs_N2 = np.stack([length_N, np.diff(row.cu_seqlens_padded) - length_N], axis=1)
    number_N = np.arange(1, len(length_N) + 1, dtype=np.int32)
    return np.repeat(np.stack([number_N, np.zeros_like(number_N)], axis=1).ravel(), runs_N2.ravel())

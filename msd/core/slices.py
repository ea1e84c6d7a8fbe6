"""Which positions of a row each context-parallel rank holds.

A stretch of a row is cut into `2 * degree` equal chunks; rank r takes chunks r and `2 * degree - 1 - r`, so that under
a causal mask every rank attends to the same number of token pairs (the zigzag of ring attention for causal models).
`zigzag` cuts every document over its padded extent, `headtail` every whole sequence.
"""

# T = tokens of a row. C = ranks on the slice axis. E = stretches of a row that are cut.

from typing import Literal

import numpy as np

from msd.core.arrays import Int32Array, Int64Array
from msd.errors import PlanError

SliceMethod = Literal["zigzag", "headtail"]
SLICE_METHODS = ("zigzag", "headtail")


def held_positions(
    method: SliceMethod, cu_seqlens_padded: Int32Array, *, sequence_length: int, degree: int
) -> Int64Array:
    """Return which positions of a row each rank of the slice axis holds, as [C, T / C], increasing along a rank.

    Args:
        method: What is cut: documents or sequences.
        cu_seqlens_padded: Where each document starts, and the row's length at the end.
        sequence_length: Tokens of a sequence; a row is whole sequences.
        degree: Ranks on the axis.

    Raises:
        PlanError: If what is cut is not a multiple of `2 * degree`. Pad first; this function never pads.
    """
    if method == "headtail":
        return headtail_positions(int(cu_seqlens_padded[-1]), sequence_length, degree)
    return zigzag_positions(cu_seqlens_padded, degree)


def zigzag_positions(cu_seqlens_padded: Int32Array, degree: int) -> Int64Array:
    """Return the positions when every document is cut, as [C, T / C].

    Two documents of extent 8 and degree 2: rank 0 holds 0, 1, 6, 7, 8, 9, 14, 15.

    Raises:
        PlanError: If an extent is not a multiple of `2 * degree`.
    """
    extent_E = np.diff(cu_seqlens_padded).astype(np.int64)
    if bool((extent_E % (2 * degree)).any()):
        raise PlanError(
            f"document extents {extent_E.tolist()} are not multiples of 2 * cp = {2 * degree}, so the row cannot be "
            f"sliced; set batch.document_multiple to a multiple of {2 * degree}, or batch.slice: none"
        )
    return _chunks(extent_E, degree)


def headtail_positions(row_length: int, sequence_length: int, degree: int) -> Int64Array:
    """Return the positions when every sequence is cut, wherever its documents lie, as [C, T / C].

    Two sequences of 8 and degree 2: rank 0 holds 0, 1, 6, 7, 8, 9, 14, 15, as a row of [2, 4] still.

    Raises:
        PlanError: If a sequence is not a multiple of `2 * degree`.
    """
    if sequence_length % (2 * degree):
        raise PlanError(
            f"a sequence of {sequence_length} tokens is not a multiple of 2 * cp = {2 * degree}, so the row cannot be "
            f"sliced; set batch.sequence_length to a multiple of {2 * degree}, or batch.slice: none"
        )
    return _chunks(np.full(row_length // sequence_length, sequence_length, dtype=np.int64), degree)


def held_runs(first: int, last: int, degree: int) -> tuple[tuple[tuple[int, int], tuple[int, int]], ...]:
    """Return for each rank of the axis the two chunks `[start, stop)` that it holds of a stretch `[first, last)`."""
    size = (last - first) // (2 * degree)
    return tuple(
        ((first + rank * size, first + (rank + 1) * size), (last - (rank + 1) * size, last - rank * size))
        for rank in range(degree)
    )


def _chunks(extent_E: Int64Array, degree: int) -> Int64Array:
    chunk = np.tile(np.arange(2 * degree, dtype=np.uint16), len(extent_E))
    owner_T = np.repeat(np.minimum(chunk, 2 * degree - 1 - chunk), np.repeat(extent_E // (2 * degree), 2 * degree))
    return np.argsort(owner_T, kind="stable").reshape(degree, -1)

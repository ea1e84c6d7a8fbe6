"""Slices of a row for context parallelism.

Every document is cut into `2 * degree` equal chunks over its padded extent; rank r takes chunks r and
`2 * degree - 1 - r`, so that under a causal mask every rank attends to the same number of token pairs (the zigzag of
ring attention for causal models).
"""

# T = tokens of a row. C = ranks on the slice axis. E = documents' padded extents of a row.

import numpy as np

from msd.core.arrays import Int32Array, Int64Array
from msd.core.batch import Microbatch
from msd.errors import PlanError


def zigzag_positions(cu_seqlens_padded: Int32Array, degree: int) -> Int64Array:
    """Return which positions of a row each rank of the slice axis holds, as [C, T / C], increasing along a rank.

    Two documents of extent 8 and degree 2: rank 0 holds 0, 1, 6, 7, 8, 9, 14, 15.

    Args:
        cu_seqlens_padded: Where each document starts, and the row's length at the end.
        degree: Ranks on the axis.

    Raises:
        PlanError: If an extent is not a multiple of `2 * degree`. Pad first; this function never pads.
    """
    extent_E = np.diff(cu_seqlens_padded).astype(np.int64)
    if bool((extent_E % (2 * degree)).any()):
        raise PlanError(
            f"document extents {extent_E.tolist()} are not multiples of 2 * cp = {2 * degree}, so the row cannot be "
            f"sliced; set batch.document_multiple to a multiple of {2 * degree}, or batch.slice: none"
        )
    chunk = np.tile(np.arange(2 * degree, dtype=np.uint16), len(extent_E))
    owner_T = np.repeat(np.minimum(chunk, 2 * degree - 1 - chunk), np.repeat(extent_E // (2 * degree), 2 * degree))
    return np.argsort(owner_T, kind="stable").reshape(degree, -1)


def slice_row(row: Microbatch, degree: int) -> tuple[Microbatch, ...]:
    """Return the slice of each rank on the axis: token arrays are cut, boundaries and images stay the whole row's.

    The slices are views into one reordered copy of the row.
    """
    position_CT = zigzag_positions(row.cu_seqlens_padded, degree)
    input_ids_CT, labels_CT = row.input_ids[position_CT], row.labels[position_CT]
    position_ids_CT, segment_ids_CT = row.position_ids[position_CT], row.segment_ids[position_CT]
    loss_mask_CT = row.loss_mask[position_CT]
    return tuple(
        Microbatch(
            input_ids=input_ids_CT[index],
            labels=labels_CT[index],
            position_ids=position_ids_CT[index],
            segment_ids=segment_ids_CT[index],
            loss_mask=loss_mask_CT[index],
            cu_seqlens=row.cu_seqlens,
            cu_seqlens_padded=row.cu_seqlens_padded,
            max_seqlen=row.max_seqlen,
            images=row.images,
        )
        for index in range(degree)
    )

"""Made-up indexes: block tables of any shape, for tests of the order that need no file."""

# B = blocks.

from collections.abc import Sequence

import numpy as np

from msd.core.index import BlockTable, Shard, Split
from msd.core.order import SourceOrder


def made_up_blocks(
    rows_B: Sequence[int],
    *,
    units: Sequence[int] | None = None,
    shards: Sequence[int] | None = None,
    block_bytes: int | Sequence[int] = 1 << 20,
    split: Split | None = None,
) -> BlockTable:
    """Return the index of a source whose blocks have `rows_B` rows.

    Args:
        rows_B: Rows of each block; zeros are legal.
        units: Unit of each block, not decreasing; None makes every block a unit of its own.
        shards: Shard of each block, not decreasing; None puts all blocks in one shard.
        block_bytes: Size of every block, or of each.
        split: The part of the rows that is kept; None keeps all.
    """
    num_rows_B = np.array(rows_B, dtype=np.int64)
    shard_B = np.zeros(len(num_rows_B), dtype=np.int32) if shards is None else np.array(shards, dtype=np.int32)
    first_row_B = np.zeros(len(num_rows_B), dtype=np.int64)
    nbytes_B = np.broadcast_to(np.array(block_bytes, dtype=np.int64), num_rows_B.shape).copy()
    files = []
    for shard in range(int(shard_B.max()) + 1 if len(shard_B) else 0):
        inside_B = shard_B == shard
        ends = np.cumsum(num_rows_B[inside_B])
        first_row_B[inside_B] = ends - num_rows_B[inside_B]
        files.append(
            Shard(
                name=f"shard-{shard:03d}",
                path=f"memory://shard-{shard:03d}",
                nbytes=int(nbytes_B[inside_B].sum()),
                num_rows=int(num_rows_B[inside_B].sum()),
            )
        )
    return BlockTable(
        shards=tuple(files),
        shard_B=shard_B,
        unit_B=np.arange(len(num_rows_B), dtype=np.int32) if units is None else np.array(units, dtype=np.int32),
        first_row_B=first_row_B,
        num_rows_B=num_rows_B,
        offset_B=np.cumsum(nbytes_B) - nbytes_B,
        nbytes_B=nbytes_B,
        split=split or Split(),
    )


def sequence(order: SourceOrder, start: int, stop: int) -> list[tuple[int, int]]:
    """Return (block, row within the block) of the ordinals `start .. stop - 1`, by walking the windows."""
    found: list[tuple[int, int]] = []
    ordinal = start
    while ordinal < stop:
        window = order.window_at(ordinal)
        block_N, row_N = order.window_rows(window)
        inside = slice(ordinal - window.first_ordinal, stop - window.first_ordinal)
        found += zip(block_N[inside].tolist(), row_N[inside].tolist(), strict=True)
        ordinal = window.first_ordinal + window.num_rows
    return found

"""Batches compared by their arrays, whatever they are called: those of a stream, and those read back from files."""

from typing import Any

import numpy.typing as npt

from msd.core.batch import SHARE_FIELDS, RankBatch


def difference(expected: RankBatch | None, found: RankBatch | None) -> str:
    """Return the first thing in which two batches differ, or nothing: steps, counts, and every array with its type.

    Ids of samples and positions of the run may be others.
    """
    if expected is None or found is None:
        return "" if expected is found else "one of them is the end"
    heads = [
        (batch.step, batch.rank, batch.num_valid_tokens, batch.global_num_valid_tokens, batch.sequence_length)
        for batch in (expected, found)
    ]
    if heads[0] != heads[1]:
        return f"{heads[0]} and {heads[1]}"
    here, there = _arrays(expected), _arrays(found)
    if len(here) != len(there):
        return f"{len(here)} rows and shares, and {len(there)}"
    for number, (one, other) in enumerate(zip(here, there, strict=True)):
        if set(one) != set(other):
            return f"row {number} has {sorted(set(one) ^ set(other))} in one of them"
        for name, array in one.items():
            kinds = [(held.dtype, held.shape) for held in (array, other[name])]
            if kinds[0] != kinds[1] or array.tobytes() != other[name].tobytes():
                return f"row {number}: {name}, {kinds[0]} and {kinds[1]}"
    return ""


def _arrays(batch: RankBatch) -> list[dict[str, npt.NDArray[Any]]]:
    """Return the arrays of each row, and of each share of what is encoded."""
    shares = [{name: getattr(share, name) for name in SHARE_FIELDS} for share in batch.encoder]
    return [row.arrays for row in batch.microbatches] + shares

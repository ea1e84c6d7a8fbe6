"""The batch of the golden file, and slices of its first row."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from msd.core.batch import TOKEN_FIELDS, Microbatch, RankBatch

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "layouts.json").read_text(encoding="utf-8"))
SEQUENCE_LENGTH = 8
SLICES = {
    "zigzag": ([0, 3, 4, 7, 8, 9, 14, 15], [1, 2, 5, 6, 10, 11, 12, 13]),
    "headtail": ([0, 1, 6, 7, 8, 9, 14, 15], [2, 3, 4, 5, 10, 11, 12, 13]),
}
"""Positions that the two context-parallel ranks hold."""


def golden_batch() -> RankBatch:
    """The three rows of the golden file."""
    return batch_of([golden_row(number) for number in range(3)])


def golden_row(number: int) -> Microbatch:
    """One row of the golden file."""
    fields = dict(GOLDEN["rows"][number])
    longest = fields.pop("max_seqlen")
    arrays = {
        name: np.array(values, np.float32 if name == "loss_mask" else np.int32) for name, values in fields.items()
    }
    return Microbatch(num_tokens=len(arrays["input_ids"]), max_seqlen=longest, **arrays)


def sliced_batch(method: str, index: int) -> RankBatch:
    """The first row, as rank `index` of two on the context-parallel axis holds it."""
    row, held = golden_row(0), SLICES[method][index]
    arrays = {name: getattr(row, name)[held] for name in TOKEN_FIELDS}
    return batch_of([replace(row, num_tokens=len(held), **arrays)], slice_method=method)


def batch_of(rows: list[Microbatch], **changes) -> RankBatch:
    """A batch of some rows; it is step 3 of rank 1."""
    fields = {
        "step": 3, "rank": 1, "sample_ids": [("web", 5, 0)], "microbatches": rows, "num_valid_tokens": 16,
        "global_num_valid_tokens": 40, "sequence_length": SEQUENCE_LENGTH,
    }  # fmt: skip
    return RankBatch(**fields | changes)

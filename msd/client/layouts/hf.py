"""Hugging Face transformers: padding-free rows, as `DataCollatorWithFlattening` makes them."""

# T = tokens of a row. E = segments: documents, and padding between them.

from typing import Any

import numpy as np

from msd.client.layouts.laid_out import LaidOutBatch, as_int64, check_slices, images_of, received
from msd.client.layouts.segments import segments
from msd.core.arrays import Int32Array, Int64Array
from msd.core.batch import IGNORE_INDEX, Microbatch, RankBatch

TRAINER_SLICES = "set batch.slice: none, and let the trainer slice"


def hf(batch: RankBatch) -> LaidOutBatch:
    """Return each microbatch as keyword arguments of a Hugging Face model for causal language modelling.

        input_ids                     int64 [1, T]
        labels                        int64 [1, T]: the token itself, not shifted, since the model shifts; -100 on the
                                      first token of a document, on padding, and where nothing is learned
        position_ids                  int64 [1, T]: restart at 0 in each document
        cu_seq_lens_q, cu_seq_lens_k  int32 [E + 1]: where each document begins; ends at T
        max_length_q, max_length_k    int: the longest document
        seq_idx                       int32 [1, T]: number of the document, from 0

    There is no `attention_mask`. All rows of a step have the same T: what pads a row is documents of its own without
    labels, no longer than the longest real one, in all of these fields alike; a model that finds documents by
    `position_ids` finds the same ones.

    The model's own loss is a mean; pass `num_items_in_batch=step.global_num_valid_tokens` for a share of the step's.

    Raises:
        ConfigError: If the rank holds context-parallel slices: labels cannot be shifted within a slice.
    """
    check_slices(batch, "hf", takes=None, otherwise=TRAINER_SLICES)
    return LaidOutBatch.of(batch, lambda row: flattened(row) | images_of(row))


def flattened(row: Microbatch) -> dict[str, Any]:
    """Return a whole row as a model takes it that shifts labels itself."""
    found = segments(row)
    fields = {
        "input_ids": as_int64(row.input_ids),
        "labels": _unshifted(row.labels),
        "position_ids": found.position_ids,
        "seq_idx": found.seq_idx,
    }
    return {name: array[None] for name, array in received(fields).items()} | {
        "cu_seq_lens_q": found.cu_seqlens,
        "cu_seq_lens_k": found.cu_seqlens,
        "max_length_q": found.max_seqlen,
        "max_length_k": found.max_seqlen,
    }


def _unshifted(labels_T: Int32Array | None) -> Int64Array | None:
    """Return labels one position later, where the token that they name stands.

    The last position of a document never carries a label, so none crosses a boundary.
    """
    return None if labels_T is None else np.append(np.int64(IGNORE_INDEX), labels_T[:-1])

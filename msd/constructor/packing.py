"""Documents to rows: where each token lies, what is learned, where each document begins."""

# M = rows (microbatches) of a bucket. T = tokens of a row. N = documents of the bucket, in row order.

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from msd.core.arrays import Float32Array, Int32Array, Int64Array
from msd.core.batch import IGNORE_INDEX
from msd.core.plan import StepPlan
from msd.core.sample import Sample
from msd.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedRows:
    """The rows of one bucket at full width; each row is a view into five arrays of the whole bucket."""

    input_ids_MT: Int32Array
    labels_MT: Int32Array
    position_ids_MT: Int32Array
    segment_ids_MT: Int32Array
    loss_mask_MT: Float32Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBoundaries:
    """Where the documents of one row lie; the fields are those of `core.batch.Microbatch`."""

    cu_seqlens: Int32Array
    cu_seqlens_padded: Int32Array
    max_seqlen: int


def pack_rows(plan: StepPlan, document_N: Int64Array, samples: Sequence[Sample], *, pad_token_id: int) -> PackedRows:
    """Return the rows that hold a bucket's documents.

    Position j of a document is labelled with token j + 1 unless j is the document's last token, j is an image
    placeholder, or the sample's own mask says that token j + 1 is context only. Padding is never labelled.

    Args:
        plan: The step.
        document_N: The bucket's documents, as `plan.documents_of(bucket)` gives them.
        samples: For each document, the sample whose tokens it holds.
        pad_token_id: Token of the positions that no document fills.

    Raises:
        PlanError: If a document is not inside its sample, cuts a run of image placeholders, or carries another number
            of labels than the plan says. Names the sample.
    """
    shape = (plan.num_microbatches, plan.row_length)
    input_ids_MT = np.full(shape, pad_token_id, dtype=np.int32)
    labels_MT = np.full(shape, IGNORE_INDEX, dtype=np.int32)
    position_ids_MT = np.zeros(shape, dtype=np.int32)
    segment_ids_MT = np.zeros(shape, dtype=np.int32)
    count_T = np.arange(plan.row_length, dtype=np.int32)
    row_N = plan.slot_D[document_N]
    columns = zip(
        samples,
        row_N.tolist(),
        _index_in_row(row_N).tolist(),
        plan.offset_D[document_N].tolist(),
        plan.start_D[document_N].tolist(),
        plan.length_D[document_N].tolist(),
        plan.num_valid_D[document_N].tolist(),
        strict=True,
    )
    for sample, row, index, offset, start, length, num_valid in columns:
        _check_piece(sample, start, length)
        end = offset + length
        input_ids_MT[row, offset:end] = sample.tokens_T[start : start + length]
        position_ids_MT[row, offset:end] = count_T[:length]
        segment_ids_MT[row, offset:end] = index + 1
        found = _label(labels_MT[row, offset:end], sample, start, length)
        if found != num_valid:
            raise PlanError(
                f"{_name(sample, start, length)} carries {found} labels, the plan of step {plan.step} says "
                f"{num_valid}; its payload differs from the metadata it was planned by"
            )
    return PackedRows(
        input_ids_MT=input_ids_MT,
        labels_MT=labels_MT,
        position_ids_MT=position_ids_MT,
        segment_ids_MT=segment_ids_MT,
        loss_mask_MT=(labels_MT != IGNORE_INDEX).astype(np.float32),
    )


def row_boundaries(offset_N: Int32Array, length_N: Int32Array, *, row_length: int) -> RowBoundaries:
    """Return where the documents of one row begin and end.

    A document's padded extent reaches to the next document, so alignment padding, the tail of a sequence and empty
    sequences belong to the document before them. A row without documents is one document of length 0.

    Args:
        offset_N: Where each document starts, in increasing order.
        length_N: Real tokens of each document.
        row_length: Tokens of the row.

    Raises:
        PlanError: If documents overlap, leave the row, or leave a gap before the first.
    """
    if len(offset_N) == 0:
        offset_N, length_N = np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.int32)
    padded = np.append(offset_N, row_length).astype(np.int32)
    extent_N = np.diff(padded)
    if padded[0] != 0 or bool((extent_N < length_N).any()):
        raise PlanError(
            f"documents at {offset_N.tolist()} of lengths {length_N.tolist()} overlap, start after 0 or leave "
            f"their row of {row_length} tokens"
        )
    cu_seqlens = np.zeros(len(padded), dtype=np.int32)
    np.cumsum(length_N, out=cu_seqlens[1:])
    return RowBoundaries(cu_seqlens=cu_seqlens, cu_seqlens_padded=padded, max_seqlen=int(length_N.max()))


def _index_in_row(row_N: Int32Array) -> Int64Array:
    """Return each document's number within its row; rows do not decrease."""
    first_N = np.searchsorted(row_N, row_N, side="left")
    return np.arange(len(row_N), dtype=np.int64) - first_N


def _label(labels_T: Int32Array, sample: Sample, start: int, length: int) -> int:
    """Write the labels of tokens [start, start + length) of a sample and return how many positions carry one."""
    first = max(0, sample.num_image_tokens - start)
    if first >= length - 1:
        return 0
    targets = slice(start + first + 1, start + length)
    target_T = sample.tokens_T[targets]
    if sample.trained_T is None:
        labels_T[first : length - 1] = target_T
        return len(target_T)
    is_trained_T = sample.trained_T[targets] != 0
    labels_T[first : length - 1] = np.where(is_trained_T, target_T, IGNORE_INDEX)
    return int(np.count_nonzero(is_trained_T))


def _check_piece(sample: Sample, start: int, length: int) -> None:
    if not 0 <= start < start + length <= len(sample.tokens_T):
        raise PlanError(f"{_name(sample, start, length)} is planned, but the sample has {len(sample.tokens_T)} tokens")
    if 0 < start < sample.num_image_tokens or start == 0 < length < sample.num_image_tokens:
        raise PlanError(
            f"{_name(sample, start, length)} is planned, which cuts its run of {sample.num_image_tokens} image "
            "placeholders; runs of image tokens are never cut"
        )


def _name(sample: Sample, start: int, length: int) -> str:
    source, ordinal, part = sample.id
    return f"tokens [{start}, {start + length}) of sample ({source!r}, {ordinal}, {part})"

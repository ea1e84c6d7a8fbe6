"""A bucket of a plan, with its samples, becomes what each of its ranks receives. No I/O, no clock."""

# C = ranks on the slice axis, one when rows are not sliced. N = documents of a bucket, in row order.

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from msd.constructor.context_parallel import slice_row
from msd.constructor.encoder import encoder_shares
from msd.constructor.images import row_images
from msd.constructor.packing import PackedRows, RowBoundaries, pack_rows, row_boundaries
from msd.core.arrays import Int64Array
from msd.core.batch import BatchMarker, EncoderShare, Microbatch, RankBatch, RowImages
from msd.core.plan import StepPlan
from msd.core.sample import Sample, SampleId
from msd.core.slices import held_positions
from msd.core.stages import FIELDS
from msd.core.state import canonical_json
from msd.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AssembledBucket:
    """The rows of one bucket, assembled once for all the ranks that receive it."""

    step: int
    bucket: int
    microbatches_C: tuple[tuple[Microbatch, ...], ...]
    """For each rank on the slice axis, its microbatches; one entry, the whole rows, when rows are not sliced."""
    sample_ids: tuple[SampleId, ...]
    """One a document, in row order."""
    progress: str
    """The run's position after the step, as JSON."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays; those that ranks share are counted once."""
        rows = [row for rows in self.microbatches_C for row in rows]
        arrays = {id(array): array for row in rows for array in row.arrays.values()}
        return sum(array.nbytes for array in arrays.values())


class DataConstructor:
    """Assembles the buckets of plans. Keeps nothing between steps."""

    def __init__(self, *, pad_token_id: int, dummy: RowImages | None = None) -> None:
        """Fill positions that no document occupies with `pad_token_id`, and rows that lack an image with `dummy`."""
        self._pad_token_id = pad_token_id
        self._dummy = dummy

    def build(self, plan: StepPlan, bucket: int, sample_of: Callable[[SampleId], Sample]) -> AssembledBucket:
        """Return the rows of one bucket.

        Args:
            plan: The step.
            bucket: Which of the plan's buckets.
            sample_of: The sample with an id; called once a document, in row order.

        Raises:
            PlanError: If the plan does not fit the samples, or breaks a rule of rows. Names the sample.
            ConfigError: If images with patches of different sizes meet in one row.
        """
        document_N = plan.documents_of(bucket)
        rows = self._aligned(plan, bucket, _rows(plan, document_N, sample_of, self._pad_token_id))
        axis = plan.slice_axis
        if axis is None or axis in plan.broadcast:
            microbatches_C: tuple[tuple[Microbatch, ...], ...] = (rows,)
        else:
            held = [_held(plan, row, plan.mesh.size(axis)) for row in rows]
            microbatches_C = tuple(zip(*map(slice_row, rows, held), strict=True))
        return AssembledBucket(
            step=plan.step,
            bucket=bucket,
            microbatches_C=microbatches_C,
            sample_ids=tuple(plan.sample_ids(bucket)),
            progress=canonical_json(plan.progress),
        )

    def _aligned(self, plan: StepPlan, bucket: int, rows: tuple[Microbatch, ...]) -> tuple[Microbatch, ...]:
        """Return the rows with a dummy image where the plan says so."""
        if not plan.dummy_BM.size or not plan.dummy_BM[bucket].any():
            return rows
        if self._dummy is None:
            raise PlanError(
                f"step {plan.step}: bucket {bucket} is to carry a dummy image, but no source has an image transform "
                "that says how large; leave images out of balance.align"
            )
        return tuple(
            replace(row, images=self._dummy) if is_dummy else row
            for row, is_dummy in zip(rows, plan.dummy_BM[bucket].tolist(), strict=True)
        )

    def shares(self, plan: StepPlan, rank: int, sample_of: Callable[[SampleId], Sample]) -> tuple[EncoderShare, ...]:
        """Return what one rank encodes apart from its rows, and exchanges, round by round; see `encoder_shares`."""
        patch_values = 0 if self._dummy is None else self._dummy.pixels.shape[1]
        return encoder_shares(plan, rank, sample_of, patch_values=patch_values)

    def rank_batch(
        self, assembled: AssembledBucket, plan: StepPlan, rank: int, shares: Sequence[EncoderShare] = ()
    ) -> RankBatch:
        """Return what one rank receives. Ranks that hold the same data share its arrays: do not write into them.

        Args:
            assembled: The rows of its bucket.
            plan: The step.
            rank: Who receives it.
            shares: What it encodes, where the plan says that images are encoded apart from their rows.

        Raises:
            PlanError: If the bucket is not the one that the plan gives to this rank.
        """
        bucket = plan.bucket_of(rank)
        if (assembled.step, assembled.bucket) != (plan.step, bucket):
            raise PlanError(
                f"rank {rank} receives bucket {bucket} of step {plan.step}, "
                f"got bucket {assembled.bucket} of step {assembled.step}"
            )
        held = assembled.microbatches_C[plan.slice_of(rank) or 0]
        root = plan.root_of(rank)
        received = [_needed(row, plan.fields_of(rank)) for row in held]
        return RankBatch(
            step=plan.step,
            rank=rank,
            sample_ids=list(assembled.sample_ids),
            microbatches=received if root == rank else [],
            num_valid_tokens=sum(row.num_valid_tokens or 0 for row in held),
            global_num_valid_tokens=plan.global_num_valid_tokens,
            sequence_length=plan.sequence_length,
            slice_method=None if plan.slice_of(rank) is None else plan.slice_method,
            markers=[] if root == rank else [BatchMarker(root=root, shapes=_shapes(row)) for row in received],
            encoder=list(shares),
            progress=assembled.progress,
        )


def _held(plan: StepPlan, row: Microbatch, degree: int) -> Int64Array:
    return held_positions(plan.slice_method, row.cu_seqlens_padded, sequence_length=plan.sequence_length, degree=degree)


def _needed(row: Microbatch, fields: tuple[str, ...]) -> Microbatch:
    """Return a row without what the stages of a rank do not need; the row itself where they need all."""
    absent: dict[str, Any] = dict.fromkeys(name for name in FIELDS if name not in fields)
    return replace(row, **absent) if absent else row


def _rows(
    plan: StepPlan, document_N: Int64Array, sample_of: Callable[[SampleId], Sample], pad_token_id: int
) -> tuple[Microbatch, ...]:
    samples = [sample_of(plan.sample_id(document)) for document in document_N.tolist()]
    edges = np.searchsorted(plan.slot_D[document_N], np.arange(plan.num_microbatches + 1)).tolist()
    spans = [slice(first, last) for first, last in itertools.pairwise(edges)]
    boundaries = [
        row_boundaries(plan.offset_D[document_N[span]], plan.length_D[document_N[span]], row_length=plan.row_length)
        for span in spans
    ]
    packed = pack_rows(plan, document_N, samples, pad_token_id=pad_token_id)
    images = [
        row_images(
            samples[span],
            plan.start_D[document_N[span]],
            plan.offset_D[document_N[span]],
            with_pixels=plan.encoder is None,
        )
        for span in spans
    ]
    return tuple(_microbatch(packed, row, boundaries[row], images[row]) for row in range(plan.num_microbatches))


def _microbatch(packed: PackedRows, row: int, boundaries: RowBoundaries, images: RowImages | None) -> Microbatch:
    return Microbatch(
        num_tokens=packed.input_ids_MT.shape[1],
        input_ids=packed.input_ids_MT[row],
        labels=packed.labels_MT[row],
        position_ids=packed.position_ids_MT[row],
        segment_ids=packed.segment_ids_MT[row],
        loss_mask=packed.loss_mask_MT[row],
        cu_seqlens=boundaries.cu_seqlens,
        cu_seqlens_padded=boundaries.cu_seqlens_padded,
        max_seqlen=boundaries.max_seqlen,
        images=images,
    )


def _shapes(row: Microbatch) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (array.shape, str(array.dtype)) for name, array in row.arrays.items()}

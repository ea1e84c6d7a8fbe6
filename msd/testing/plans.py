"""Plans placed by hand: documents go exactly where a test says."""

# D = documents of the step, ordered by (bucket, slot, offset).

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from msd.core.mesh import Mesh
from msd.core.plan import PlanReport, StepPlan
from msd.core.sample import Sample


@dataclass(frozen=True, slots=True)
class Placed:
    """Tokens `[start, start + length)` of a sample, at a position of a row."""

    sample: Sample
    offset: int
    start: int = 0
    length: int | None = None
    """None takes the rest of the sample."""

    @property
    def num_tokens(self) -> int:
        """Real tokens."""
        return len(self.sample.tokens_T) - self.start if self.length is None else self.length

    @property
    def num_valid(self) -> int:
        """Positions that carry a label: those of the sample whose target is inside the piece."""
        runs = np.clip(self.sample.label_runs(), self.start, max(self.start, self.start + self.num_tokens - 1))
        return int((runs[:, 1] - runs[:, 0]).sum())


def plan_by_hand(
    buckets: Sequence[Sequence[Sequence[Placed]]],
    *,
    mesh: Mesh,
    sequence_length: int,
    sequences_per_microbatch: int = 1,
    document_multiple: int = 1,
    step: int = 0,
    **changes: Any,
) -> StepPlan:
    """Return the plan that puts `buckets[b][m]` into microbatch m of the b-th data-parallel coordinate.

    Args:
        buckets: Documents by bucket and microbatch, each microbatch in order of offset.
        mesh: Bucket b is received by every rank of the b-th coordinate of `dp`.
        sequence_length: Tokens of a sequence.
        sequences_per_microbatch: Sequences of a row.
        document_multiple: What extents are rounded up to.
        step: Number of the step.
        changes: Further fields of the plan, such as `slice_axis="cp"` or `broadcast=("tp",)`.
    """
    placed = [(b, m, p) for b, rows in enumerate(buckets) for m, row in enumerate(rows) for p in row]
    documents = [p for _, _, p in placed]
    owned = [None if p.start else p.sample.images for p in documents]
    names = tuple(dict.fromkeys(p.sample.id.source for p in documents))
    length_D = _column([p.num_tokens for p in documents])
    fields: dict[str, Any] = {
        "step": step,
        "mesh": mesh,
        "num_buckets": len(buckets),
        "num_microbatches": len(buckets[0]),
        "sequences_per_microbatch": sequences_per_microbatch,
        "sequence_length": sequence_length,
        "document_multiple": document_multiple,
        "consumers_B": tuple(_ranks_of(mesh, bucket) for bucket in range(len(buckets))),
        "source_names": names,
        "source_D": _column([names.index(p.sample.id.source) for p in documents]),
        "ordinal_D": np.array([p.sample.id.ordinal for p in documents], dtype=np.int64),
        "part_D": _column([p.sample.id.part for p in documents]),
        "start_D": _column([p.start for p in documents]),
        "length_D": length_D,
        "padded_D": -(-length_D // document_multiple) * document_multiple,
        "num_valid_D": _column([p.num_valid for p in documents]),
        "num_image_tokens_D": _column([0 if p.start else p.sample.num_image_tokens for p in documents]),
        "num_images_D": _column([len(i.grids_I3) if i else 0 for i in owned]),
        "num_patches_D": _column([len(i.pixels_PF) if i else 0 for i in owned]),
        "bucket_D": _column([b for b, _, _ in placed]),
        "slot_D": _column([m for _, m, _ in placed]),
        "offset_D": _column([p.offset for p in documents]),
        "cost_D": length_D.astype(np.float64),
        "global_num_valid_tokens": sum(p.num_valid for p in documents),
        "progress": {"step": step + 1},
        "report": _report(length_D, len(buckets)),
    }  # fmt: skip
    return StepPlan(**(fields | changes))


def _ranks_of(mesh: Mesh, bucket: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(mesh.world_size) if mesh.coordinate(rank)["dp"] == bucket)


def _column(values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


def _report(length_D: np.ndarray[Any, np.dtype[np.int32]], num_buckets: int) -> PlanReport:
    return PlanReport(
        fill=1.0,
        cost_B={"backbone": np.zeros(num_buckets)},
        imbalance=0.0,
        imbalance_floor=0.0,
        lockstep=0.0,
        lockstep_floor=0.0,
        packed_imbalance=0.0,
        packed_lockstep=0.0,
        max_row_tokens=int(length_D.sum()),
        tokens_by_source={},
        samples_by_source={},
    )

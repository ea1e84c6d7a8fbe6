"""One step, decided: which documents, where each lies, and where the run stands afterwards."""

# D = documents of the step, ordered by (bucket, slot, offset). B = buckets. M = microbatches (slots) of a bucket.

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msd.core.arrays import BoolArray, Float64Array, Int32Array, Int64Array
from msd.core.encoder import EncoderPlan, EncoderReport
from msd.core.mesh import Mesh
from msd.core.sample import SampleId
from msd.core.slices import SliceMethod
from msd.core.stages import FIELDS
from msd.core.state import StateDict, canonical_json


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanReport:
    """How good a layout is. Costs are in the units of the configured cost function."""

    fill: float
    """Real tokens over `sequences * sequence_length`."""
    cost_B: dict[str, Float64Array]
    """Per module: cost of each bucket."""
    imbalance: float
    """max over mean of the summed cost over buckets, minus 1."""
    imbalance_floor: float
    """What no assignment of these documents to buckets can beat; see `msd.planner.floors`."""
    lockstep: float
    """Sum over slots of the slowest bucket, over the same sum of means, minus 1."""
    lockstep_floor: float
    packed_imbalance: float
    """Imbalance of the layout before balancing."""
    packed_lockstep: float
    max_row_tokens: int
    """Tokens of the fullest row, alignment included; never above the cap."""
    tokens_by_source: dict[str, int]
    """Real tokens drawn into this step by source, image placeholders included."""
    samples_by_source: dict[str, int]
    step_flops: float | None = None
    """FLOPs of the step over all buckets, when the costs are analytic."""
    predicted_step_s: float | None = None
    """Seconds of the slowest path, when the configuration names a device's FLOP/s."""
    imbalance_floor_capped: float = 0.0
    """The floor when caps are kept as well: no bucket holds more tokens than its rows; 0 where it was not computed."""
    encoder: EncoderReport | None = None
    """How even encoding is, where images are encoded apart from their rows; the figures above are then those of what
    rows cost without it, and `cost_B` has what each bucket's images cost."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPlan:
    """What every rank receives in one step.

    The rows a bucket's ranks see are `num_microbatches` microbatches of `sequences_per_microbatch * sequence_length`
    tokens each. Equal inputs give equal plans; a plan holds no payload and no measured time.
    """

    step: int
    mesh: Mesh
    num_buckets: int
    num_microbatches: int
    sequences_per_microbatch: int
    sequence_length: int
    document_multiple: int
    """Each document's extent is its length rounded up to this."""
    consumers_B: tuple[tuple[int, ...], ...]
    """Ranks that receive each bucket."""
    broadcast: tuple[str, ...] = ()
    """Axes along which only the rank at coordinate 0 fetches; the others receive markers."""
    slice_axis: str | None = None
    """Axis whose ranks each hold a slice of the row, or None when every consumer holds the whole row."""
    slice_method: SliceMethod = "zigzag"
    """How the slices are cut; see `msd.core.slices`."""
    fields_P: tuple[tuple[str, ...], ...] | None = None
    """By coordinate on `pp`: which of `core.stages.FIELDS` its ranks receive. None: all of them receive all."""
    source_names: tuple[str, ...]
    source_D: Int32Array
    """Index into `source_names`."""
    ordinal_D: Int64Array
    part_D: Int32Array
    start_D: Int32Array
    """First token of the part that this document holds; 0 unless the part was cut."""
    length_D: Int32Array
    """Real tokens."""
    padded_D: Int32Array
    """Extent: `length_D` rounded up to `document_multiple`."""
    num_valid_D: Int32Array
    """Positions that carry a label."""
    num_image_tokens_D: Int32Array
    num_images_D: Int32Array
    num_patches_D: Int32Array
    bucket_D: Int32Array
    slot_D: Int32Array
    """Which microbatch of the bucket."""
    offset_D: Int32Array
    """Where the document starts in its row; no document crosses a multiple of `sequence_length`."""
    cost_D: Float64Array
    """Cost summed over modules."""
    global_num_valid_tokens: int
    align: tuple[str, ...] = ()
    """Modalities that all rows of a slot have, or none of them; a row that lacks one carries a dummy."""
    dummy_BM: BoolArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.bool_))
    """Rows that carry a dummy image; empty unless `align` names images."""
    progress: StateDict
    """Position of the run after this step; mesh-independent."""
    report: PlanReport
    notes: tuple[str, ...] = ()
    is_last: bool = False
    """No step follows: finite data has ended."""
    annotations: dict[str, Any] = field(default_factory=dict)
    """What a strategy wants shown or carried; JSON-able."""
    encoder: EncoderPlan | None = None
    """Who encodes each image, where that is not the ranks of its row."""

    @property
    def num_documents(self) -> int:
        """Number of documents, pieces of a cut part counted each."""
        return len(self.source_D)

    @property
    def row_length(self) -> int:
        """Tokens of one microbatch."""
        return self.sequences_per_microbatch * self.sequence_length

    def documents_of(self, bucket: int, slot: int | None = None) -> Int64Array:
        """Return the documents of a bucket, or of one of its microbatches, in row order."""
        chosen_D = self.bucket_D == bucket
        if slot is not None:
            chosen_D &= self.slot_D == slot
        return np.flatnonzero(chosen_D).astype(np.int64, copy=False)

    def sample_id(self, document: int) -> SampleId:
        """Return whose tokens a document holds."""
        return SampleId(
            self.source_names[self.source_D[document]], int(self.ordinal_D[document]), int(self.part_D[document])
        )

    def sample_ids(self, bucket: int | None = None) -> list[SampleId]:
        """Return the ids of a bucket's documents (or of all), in row order, once for each piece."""
        chosen_D = np.arange(self.num_documents) if bucket is None else self.documents_of(bucket)
        return [self.sample_id(document) for document in chosen_D.tolist()]

    def bucket_of(self, rank: int) -> int:
        """Return the bucket that `rank` receives."""
        self.mesh.check_rank(rank)
        for bucket, ranks in enumerate(self.consumers_B):
            if rank in ranks:
                return bucket
        raise LookupError(f"rank {rank} receives no bucket of step {self.step}")

    def root_of(self, rank: int) -> int:
        """Return the rank that fetches for `rank`; itself where no broadcast axis says otherwise."""
        return self.mesh.rank(**{**self.mesh.coordinate(rank), **dict.fromkeys(self.broadcast, 0)})

    def fields_of(self, rank: int) -> tuple[str, ...]:
        """Return the fields of a microbatch that `rank` receives besides boundaries, shapes and counts."""
        return FIELDS if self.fields_P is None else self.fields_P[self.mesh.coordinate(rank)["pp"]]

    def slice_of(self, rank: int) -> int | None:
        """Return which slice of its rows `rank` holds, or None when it holds them whole.

        Along a broadcast axis the root fetches whole rows for all.
        """
        axis = self.slice_axis
        return None if axis is None or axis in self.broadcast else self.mesh.coordinate(rank)[axis]

    def share_key(self, rank: int) -> tuple[Any, ...]:
        """Return what decides a rank's batch: ranks with equal keys receive the same, but for their number."""
        root = self.root_of(rank)
        key = (self.bucket_of(rank), self.slice_of(rank), None if root == rank else root, self.fields_of(rank))
        return key if self.encoder is None else (*key, rank)

    @property
    def membership_digest(self) -> str:
        """Identity of what the step holds, whatever the mesh: the multiset of (id, start, length)."""
        rows = sorted(
            (*self.sample_id(d), int(self.start_D[d]), int(self.length_D[d])) for d in range(self.num_documents)
        )
        return _digest(canonical_json([self.step, rows]).encode())

    @property
    def digest(self) -> str:
        """Identity of the whole plan, layout included."""
        geometry = [
            self.step, self.mesh.as_dict(), self.num_buckets, self.num_microbatches, self.sequences_per_microbatch,
            self.sequence_length, self.document_multiple, self.source_names, self.consumers_B, self.broadcast,
            self.slice_axis, self.progress, self.is_last,
        ]  # fmt: skip
        if self.slice_method != "zigzag" or self.fields_P is not None:
            geometry.append([self.slice_method, self.fields_P])
        if self.align:
            geometry.append([self.align, self.dummy_BM.tolist()])
        if self.encoder is not None:
            encoder = self.encoder
            geometry += [encoder.ranks_E, encoder.receivers_B, encoder.returns, encoder.num_rounds]
        columns = (
            self.source_D, self.ordinal_D, self.part_D, self.start_D, self.length_D, self.padded_D, self.num_valid_D,
            self.bucket_D, self.slot_D, self.offset_D,
            *(() if self.encoder is None else self.encoder.columns),
        )  # fmt: skip
        return _digest(
            canonical_json(geometry).encode(), *(np.ascontiguousarray(c, dtype="<i8").tobytes() for c in columns)
        )


def _digest(*pieces: bytes) -> str:
    summary = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        summary.update(piece)
    return summary.hexdigest()

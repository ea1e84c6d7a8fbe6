"""Who does what: the planner's layout of a step, and those it is compared with, over the same documents."""

# D = documents in canonical order. I = images. B = buckets. M = slots. R = ranks.

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from msd.core.arrays import Int64Array
from msd.core.plan import StepPlan
from msd.planner.balancers import lpt
from msd.simulator.work import StepWork, canonical_order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assignment:
    """Where the documents of a step go, and who encodes their images."""

    name: str
    bucket_D: Int64Array
    slot_D: Int64Array
    is_padded: bool
    """Rows are sequences of fixed length; otherwise a row is as long as its documents."""
    rank_I: Int64Array | None = None
    """Who encodes each image; None leaves it to the ranks that hold its row."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The rows of a step and the ranks behind them."""

    num_buckets: int
    num_microbatches: int
    row_tokens: int
    num_stages: int
    consumers_B: Sequence[Sequence[int]]

    @classmethod
    def of(cls, plan: StepPlan) -> "Grid":
        """Return the rows of a plan."""
        return cls(plan.num_buckets, plan.num_microbatches, plan.row_length, plan.mesh.size("pp"), plan.consumers_B)

    @property
    def num_rows(self) -> int:
        """Rows of a step."""
        return self.num_buckets * self.num_microbatches

    @property
    def num_ranks(self) -> int:
        """Ranks that receive something."""
        return sum(map(len, self.consumers_B))


ASSIGNMENTS = {
    "dealt": "samples dealt in the order drawn, the same number to each microbatch, not packed",
    "length_groups": "not packed: samples of like length together, the longest in the first slot of every rank",
    "tokens": "not packed: samples to microbatches so that their tokens are even, without a cap",
    "packed": "packed as planned, sequences in the order of packing",
    "backbone": "packed as planned, balanced by the cost of the backbone alone",
    "planned": "the plan of this configuration",
    "hybrid": "balanced by the backbone; images encoded by all ranks of the mesh, whoever holds their rows",
}
"""What is compared, in the order shown."""


def from_plan(name: str, plan: StepPlan) -> Assignment:
    """Return the layout of a plan."""
    order = canonical_order(plan)
    return Assignment(
        name=name,
        bucket_D=plan.bucket_D[order].astype(np.int64),
        slot_D=plan.slot_D[order].astype(np.int64),
        is_padded=True,
    )


def dealt(work: StepWork, grid: Grid) -> Assignment:
    """Return what data-parallel loaders do that draw on their own: the unbalanced assignment."""
    turn_D = np.argsort(np.argsort(work.drawn_D, kind="stable"), kind="stable")
    bucket_D, place_D = turn_D % grid.num_buckets, turn_D // grid.num_buckets
    count_B = np.bincount(bucket_D, minlength=grid.num_buckets)
    return Assignment(
        name="dealt", bucket_D=bucket_D, slot_D=place_D * grid.num_microbatches // count_B[bucket_D], is_padded=False
    )


def length_groups(work: StepWork, grid: Grid) -> Assignment:
    """Return groups of like length, as sorting samplers make them: each slot holds about the same on every rank."""
    turn_D = np.argsort(np.argsort(-work.tokens_D, kind="stable"), kind="stable")
    slot_D = turn_D * grid.num_microbatches // len(turn_D)
    # Back and forth over the buckets, so that the longest of each round does not always go to the first.
    round_D, place_D = np.divmod(turn_D, grid.num_buckets)
    bucket_D = np.where(round_D % 2, grid.num_buckets - 1 - place_D, place_D)
    return Assignment(name="length_groups", bucket_D=bucket_D, slot_D=slot_D, is_padded=False)


def by_tokens(work: StepWork, grid: Grid) -> Assignment:
    """Return what loaders do that even out tokens over microbatches."""
    row_D = lpt(work.tokens_D[:, None], grid.num_rows)
    return Assignment(
        name="tokens", bucket_D=row_D % grid.num_buckets, slot_D=row_D // grid.num_buckets, is_padded=False
    )


def hybrid(backbone: Assignment, work: StepWork, grid: Grid) -> Assignment:
    """Return the backbone's layout with each image encoded where the encoder has least to do."""
    cost_I1 = np.rint(work.encoder_I * (2.0**40 / max(1e-300, float(work.encoder_I.sum())))).astype(np.int64)[:, None]
    return Assignment(
        name="hybrid",
        bucket_D=backbone.bucket_D,
        slot_D=backbone.slot_D,
        is_padded=True,
        rank_I=lpt(cost_I1, grid.num_ranks),
    )

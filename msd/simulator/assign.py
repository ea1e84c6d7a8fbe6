"""Who does what: the planner's layout of a step, and those it is compared with, over the same documents."""

# D = documents in canonical order. I = images. B = buckets. M = slots. R = ranks.

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from msd.core.arrays import Int64Array
from msd.core.plan import StepPlan
from msd.planner.balancers import karmarkar_karp, lpt
from msd.simulator.work import StepWork, canonical_order, image_order

_MOST_DIFFERENCED = 512
"""Rows up to which tokens are evened out by differencing; it keeps all rows of every partial assignment."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoding:
    """Who encodes the images of a step, and when."""

    rank_I: Int64Array
    round_I: Int64Array
    """Ranks meet once a round, to exchange embeddings."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assignment:
    """Where the documents of a step go, and who encodes their images."""

    name: str
    bucket_D: Int64Array
    slot_D: Int64Array
    is_padded: bool
    """Rows are sequences of fixed length; otherwise a row is as long as its documents."""
    encoding: Encoding | None = None
    """None leaves images to the ranks that hold their rows."""


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
    "dealt": "rows of the sources dealt to ranks in the order drawn, equally many samples a microbatch, not packed",
    "length_groups": "not packed: samples of like length together, the longest in the first slot of every rank",
    "tokens": "not packed: samples to microbatches so that tokens are even (Karmarkar-Karp), without a cap",
    "packed": "packed as planned, sequences in the order of packing",
    "backbone": "packed as planned, balanced by the cost of the backbone alone",
    "joint": "packed as planned, balanced by the costs of backbone and encoder at once",
    "hybrid": "packed as planned, balanced by the backbone; images encoded by all ranks of the mesh",
    "planned": "the plan of this configuration",
}
"""What is compared, in the order shown."""


def from_plan(name: str, plan: StepPlan) -> Assignment:
    """Return the layout of a plan."""
    order, (images, _), encoder = canonical_order(plan), image_order(plan), plan.encoder
    return Assignment(
        name=name,
        bucket_D=plan.bucket_D[order].astype(np.int64),
        slot_D=plan.slot_D[order].astype(np.int64),
        is_padded=True,
        encoding=None
        if encoder is None
        else Encoding(rank_I=encoder.rank_I[images].astype(np.int64), round_I=encoder.round_I[images].astype(np.int64)),
    )


def dealt(work: StepWork, grid: Grid) -> Assignment:
    """Return what data-parallel loaders do that draw on their own: the unbalanced assignment.

    Rows of the sources go to the ranks in turn. The samples of a row that is longer than a sequence follow one another
    in its rank's stream, which is cut into microbatches of equally many samples.
    """
    bucket_D = work.row_D % grid.num_buckets
    place_D, count_B = turns(bucket_D, work.row_D), np.bincount(bucket_D)
    return Assignment(
        name="dealt", bucket_D=bucket_D, slot_D=place_D * grid.num_microbatches // count_B[bucket_D], is_padded=False
    )


def turns(group_N: Int64Array, order_N: Int64Array) -> Int64Array:
    """Return the turn of each item within its group, by `order_N`; ties go to the earlier item."""
    turn_N = np.empty(len(group_N), dtype=np.int64)
    count_G = np.bincount(group_N)
    turn_N[np.lexsort((order_N, group_N))] = np.arange(len(group_N)) - np.repeat(np.cumsum(count_G) - count_G, count_G)
    return turn_N


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
    balancer = karmarkar_karp if grid.num_rows <= _MOST_DIFFERENCED else lpt
    row_D = balancer(work.tokens_D[:, None], grid.num_rows)
    return Assignment(
        name="tokens", bucket_D=row_D % grid.num_buckets, slot_D=row_D // grid.num_buckets, is_padded=False
    )

"""Give images to ranks by encoder cost, wherever their rows lie; the embeddings travel.

A batch may be heavy for the image encoder and light for the backbone, or the reverse. Rows are laid out for the
backbone; then each image, whole, goes to one of the ranks that encode. What a rank encodes costs about the same on all,
and no image is encoded twice.
"""

# I = images. D = documents, in the order of the plan. B = buckets. E = ranks that encode. G = groups, one a rank.

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from msd.core.arrays import Float64Array, Int64Array
from msd.core.encoder import EncoderPlan, EncoderReport
from msd.core.plan import StepPlan
from msd.errors import ConfigError
from msd.planner.balancers import lpt
from msd.planner.floors import excess, imbalance_floor
from msd.planner.place_tree import ClientPlaceTree
from msd.planner.primitives.cost import scaled

Ranks = Literal["dp", "dp_cp", "world"]
Every = Literal["slot", "step"]
_FIRST_OF: dict[str, tuple[str, ...]] = {"dp": ("pp", "cp", "tp", "ep"), "dp_cp": ("pp", "tp", "ep"), "world": ()}
"""Axes of which only coordinate 0 encodes."""
_SAME_WORK = ("tp", "ep")
"""Ranks that differ along these alone compute the same gradient of what they embed."""


@dataclass(frozen=True, slots=True)
class Encode:
    """Op of a graph: who encodes images, and how often a step's ranks meet for it."""

    ranks: Ranks = "world"
    every: Every = "slot"

    def __post_init__(self) -> None:
        if self.ranks not in get_args(Ranks):
            raise ConfigError(f"encode has no ranks {self.ranks!r}; choose {', '.join(get_args(Ranks))}")
        if self.every not in get_args(Every):
            raise ConfigError(f"encode has no every {self.every!r}; choose {', '.join(get_args(Every))}")

    def check(self, tree: ClientPlaceTree) -> None:
        """Raise `ConfigError` if these ranks cannot meet that often."""
        if self.ranks == "world" and self.every == "slot" and tree.mesh.size("pp") > 1:
            raise ConfigError(
                f"encode(ranks='world', every='slot'): with pp={tree.mesh.size('pp')} the stages of a pipeline work on "
                "different slots at a time, so they cannot meet in each; use every='step', or ranks='dp_cp'"
            )

    def meeting(self, tree: ClientPlaceTree, consumers_B: Sequence[Sequence[int]]) -> "Meeting":
        """Return who takes part: only the first pipeline stage embeds rows."""
        axes, embeds = tree.mesh.as_dict(), set(tree.ranks(pp=0))
        receivers_B = tuple(tuple(rank for rank in ranks if rank in embeds) for ranks in consumers_B)
        return Meeting(
            encoders=tree.ranks(**{axis: 0 for axis in _FIRST_OF[self.ranks] if axis in axes}),
            receivers_B=receivers_B,
            returns=_returning(tree, receivers_B),
        )

    def plan(self, plan: StepPlan, images: "Images", meeting: "Meeting") -> tuple[EncoderPlan, EncoderReport]:
        """Return who encodes what, and how even that is.

        Args:
            plan: Where the documents lie. The images of a document have equally many patches for a placeholder.
            images: In the order of its documents.
            meeting: Who takes part.
        """
        document_I, num_patches_I = images.document_I, images.num_patches_I
        num_tokens_I = (
            num_patches_I * plan.num_image_tokens_D[document_I] // np.maximum(1, plan.num_patches_D[document_I])
        )
        is_first_I = np.diff(document_I, prepend=-1) > 0
        first_I = np.flatnonzero(is_first_I)[np.cumsum(is_first_I) - 1]
        before_I = np.cumsum(num_tokens_I) - num_tokens_I
        num_rounds = plan.num_microbatches if self.every == "slot" else 1
        round_I = plan.slot_D[document_I].astype(np.int64) if num_rounds > 1 else np.zeros_like(document_I)
        bucket_I = plan.bucket_D[document_I].astype(np.int64)
        encoder_I = _assigned(images.cost_I, num_tokens_I, round_I, bucket_I, num_rounds, meeting)
        found = EncoderPlan(
            ranks_E=meeting.encoders,
            receivers_B=meeting.receivers_B,
            returns=meeting.returns,
            num_rounds=num_rounds,
            document_I=document_I.astype(np.int32),
            index_I=(np.arange(len(document_I)) - first_I).astype(np.int32),
            num_patches_I=num_patches_I.astype(np.int32),
            num_tokens_I=num_tokens_I.astype(np.int32),
            offset_I=(plan.offset_D[document_I] + before_I - before_I[first_I]).astype(np.int32),
            round_I=round_I.astype(np.int32),
            rank_I=np.array(meeting.encoders, dtype=np.int32)[encoder_I],
        )
        return found, _report(found, images.cost_I, encoder_I, bucket_I, meeting)

    def __str__(self) -> str:
        return f"encode({self.ranks!r}, every={self.every!r})"


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Who takes part in a round."""

    encoders: tuple[int, ...]
    """Ranks that encode."""
    receivers_B: tuple[tuple[int, ...], ...]
    """Ranks that embed the rows of each bucket."""
    returns: tuple[int, ...]
    """Those of them whose gradients count."""

    @cached_property
    def home_E(self) -> list[int]:
        """The bucket whose rows each encoding rank embeds itself, or -1."""
        bucket_of = {rank: bucket for bucket, ranks in enumerate(self.receivers_B) for rank in ranks}
        return [bucket_of.get(rank, -1) for rank in self.encoders]


def _returning(tree: ClientPlaceTree, receivers_B: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the receivers whose gradients count, in order: of those that repeat one another's work, the first."""
    first: dict[tuple[int, ...], int] = {}
    for bucket, ranks in enumerate(receivers_B):
        for rank in ranks:
            coordinate = tree.mesh.coordinate(rank)
            apart = (bucket, *(index for axis, index in coordinate.items() if axis not in _SAME_WORK))
            first.setdefault(apart, rank)
    return tuple(sorted(first.values()))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Images:
    """The images of a step, document after document."""

    document_I: Int64Array
    num_patches_I: Int64Array
    cost_I: Float64Array

    def cost_D(self, num_documents: int) -> Float64Array:
        """Return what the images of each document cost."""
        return np.bincount(self.document_I, weights=self.cost_I, minlength=num_documents).astype(np.float64)

    def in_order(self, order_D: Int64Array) -> "Images":
        """Return the images of the documents `order_D`, numbered by their place in it."""
        place_D = np.empty_like(order_D)
        place_D[order_D] = np.arange(len(order_D))
        turn_I = np.argsort(place_D[self.document_I], kind="stable")
        return Images(
            document_I=place_D[self.document_I][turn_I],
            num_patches_I=self.num_patches_I[turn_I],
            cost_I=self.cost_I[turn_I],
        )


def _assigned(
    cost_I: Float64Array,
    num_tokens_I: Int64Array,
    round_I: Int64Array,
    bucket_I: Int64Array,
    num_rounds: int,
    meeting: Meeting,
) -> Int64Array:
    """Return the index of the encoding rank of each image: even cost in every round, then as little traffic."""
    scaled_IK, _ = scaled([cost_I])
    even_IK = scaled_IK if scaled_IK.shape[1] else np.ones((len(cost_I), 1), dtype=np.int64)
    encoder_I = np.zeros(len(cost_I), dtype=np.int64)
    for number in range(num_rounds):
        met = np.flatnonzero(round_I == number)
        group_I = lpt(even_IK[met], len(meeting.encoders))
        encoder_I[met] = _near(group_I, bucket_I[met], num_tokens_I[met], meeting)[group_I]
    return encoder_I


def _near(group_I: Int64Array, bucket_I: Int64Array, num_tokens_I: Int64Array, meeting: Meeting) -> Int64Array:
    """Return the rank of each group of images: one that needs many of its embeddings itself, if there is one.

    Groups cost the same wherever they go. The pairs of group and bucket with the most embeddings choose first.
    """
    home_E, num_buckets = meeting.home_E, len(meeting.receivers_B)
    pair_P, pair_I = np.unique(group_I * num_buckets + bucket_I, return_inverse=True)
    tokens_P = np.bincount(pair_I, weights=num_tokens_I, minlength=len(pair_P))
    free: dict[int, list[int]] = {}
    for encoder in reversed(range(len(home_E))):
        free.setdefault(home_E[encoder], []).append(encoder)
    encoder_G = np.full(len(home_E), -1, dtype=np.int64)
    for pair in np.lexsort((pair_P, -tokens_P)).tolist():
        group, bucket = divmod(int(pair_P[pair]), num_buckets)
        if encoder_G[group] < 0 and free.get(bucket):
            encoder_G[group] = free[bucket].pop()
    rest = sorted(encoder for encoders in free.values() for encoder in encoders)
    encoder_G[encoder_G < 0] = rest
    return encoder_G


def _report(
    plan: EncoderPlan, cost_I: Float64Array, encoder_I: Int64Array, bucket_I: Int64Array, meeting: Meeting
) -> EncoderReport:
    num_rounds, num_encoders, num_buckets = plan.num_rounds, len(plan.ranks_E), len(plan.receivers_B)
    round_I = plan.round_I.astype(np.int64)
    cost_RE = _table(round_I, encoder_I, cost_I, num_rounds, num_encoders)
    slowest, total = float(cost_RE.max(axis=1).sum()), float(cost_RE.sum())
    bounds = [
        (1.0 + imbalance_floor(cost_I[round_I == number], num_encoders)) * float(cost_RE[number].sum())
        for number in range(num_rounds)
    ]
    is_home_I = np.array(meeting.home_E, dtype=np.int64)[encoder_I] == bucket_I
    num_tokens = int(plan.num_tokens_I.sum())
    return EncoderReport(
        cost_E=cost_RE.sum(axis=0),
        slowest=slowest,
        imbalance=excess(cost_RE),
        imbalance_floor=sum(bounds) / total - 1.0 if total > 0 else 0.0,
        row_imbalance=excess(_table(round_I, bucket_I, cost_I, num_rounds, num_buckets)),
        moved=1.0 - int(plan.num_tokens_I[is_home_I].sum()) / num_tokens if num_tokens else 0.0,
    )


def _table(row_I: Int64Array, column_I: Int64Array, value_I: Float64Array, rows: int, columns: int) -> Float64Array:
    total = np.bincount(row_I * columns + column_I, weights=value_I, minlength=rows * columns)
    return total.astype(np.float64).reshape(rows, columns)

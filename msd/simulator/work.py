"""A step as work: what each document and each image costs, whoever does it."""

# D = documents of the step by (source, ordinal, part, start). I = images, document after document.

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from msd.core.arrays import Float64Array, Int64Array
from msd.core.cost import CostFunction
from msd.core.plan import StepPlan
from msd.planner.primitives.cost import Cost


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepWork:
    """What a step holds, in an order that no layout changes."""

    tokens_D: Int64Array
    backbone_D: Float64Array
    row_D: Int64Array
    """Which row a document is of: the step's rows counted in the order drawn, those of each source evenly spread."""
    document_I: Int64Array
    encoder_I: Float64Array
    embeddings_I: Float64Array
    padding_cost: float
    """Of one more token in a row, without attention to speak of."""

    @property
    def encoder_D(self) -> Float64Array:
        """Cost of the images of each document."""
        # Without an image bincount returns integers.
        total_D: Float64Array = np.bincount(self.document_I, self.encoder_I, len(self.tokens_D)).astype(np.float64)
        return total_D


def canonical_order(plan: StepPlan) -> Int64Array:
    """Return the documents of a plan by (source, ordinal, part, start): the same for every layout of a step."""
    return np.lexsort((plan.start_D, plan.part_D, plan.ordinal_D, plan.source_D)).astype(np.int64, copy=False)


def image_order(plan: StepPlan) -> tuple[Int64Array, Int64Array]:
    """Return the images of a plan that encodes, document after document of `canonical_order`, and their documents."""
    if plan.encoder is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    place_D = np.argsort(canonical_order(plan), kind="stable")
    document_I = place_D[plan.encoder.document_I]
    order = np.lexsort((plan.encoder.index_I, document_I)).astype(np.int64, copy=False)
    return order, document_I[order].astype(np.int64, copy=False)


def work_of(plan: StepPlan, costs: Mapping[str, CostFunction]) -> StepWork:
    """Return the work of a plan's step.

    An image is costed alone, since an encoder does not attend from one to another.

    Args:
        plan: Any plan of the step; only one that says who encodes knows the images one by one.
        costs: By module.
    """
    order, (images, document_I) = canonical_order(plan), image_order(plan)
    tokens_D = plan.length_D[order].astype(np.int64)
    backbone, nothing = Cost(costs["backbone"]), np.zeros(2, dtype=np.int64)
    one, two = backbone.of(np.array([1, 2]), nothing).tolist()
    encoder_I = embeddings_I = np.zeros(0)
    if plan.encoder is not None:
        patches_I = plan.encoder.num_patches_I[images].astype(np.int64)
        encoder_I = Cost(costs["encoder"], "encoder").of(patches_I, patches_I)
        embeddings_I = plan.encoder.num_tokens_I[images].astype(np.float64)
    return StepWork(
        tokens_D=tokens_D,
        backbone_D=backbone.of(tokens_D, plan.num_patches_D[order].astype(np.int64)),
        row_D=_rows_drawn(plan.source_D[order].astype(np.int64), plan.ordinal_D[order]),
        document_I=document_I,
        encoder_I=encoder_I,
        embeddings_I=embeddings_I,
        padding_cost=max(0.0, two - one),
    )


def _rows_drawn(source_D: Int64Array, ordinal_D: Int64Array) -> Int64Array:
    """Return which row each document is of, in the order drawn, given the documents of each source in order."""
    is_new_D = (np.diff(source_D, prepend=-1) != 0) | (np.diff(ordinal_D, prepend=-1) != 0)
    source_R = source_D[is_new_D]
    count_S = np.bincount(source_R)
    first_S = np.cumsum(count_S) - count_S
    drawn_R = (np.arange(len(source_R)) - first_S[source_R] + 0.5) / count_S[source_R]
    turn_R = np.argsort(np.argsort(drawn_R, kind="stable"), kind="stable").astype(np.int64, copy=False)
    row_D: Int64Array = turn_R[np.cumsum(is_new_D) - 1]
    return row_D

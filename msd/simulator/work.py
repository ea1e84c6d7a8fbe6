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
    drawn_D: Float64Array
    """When a document was drawn: between 0 and 1, the documents of each source evenly spread."""
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


def work_of(plan: StepPlan, costs: Mapping[str, CostFunction]) -> StepWork:
    """Return the work of a plan's step.

    An image is costed alone, since an encoder does not attend from one to another. Plans know the patches of a
    document's images together; they are taken to be of equal size.

    Args:
        plan: Any plan of the step.
        costs: By module; without `encoder` images cost nothing beyond their placeholders.
    """
    order = canonical_order(plan)
    tokens_D = plan.length_D[order].astype(np.int64)
    images_D = plan.num_images_D[order].astype(np.int64)
    document_I = np.repeat(np.arange(len(order)), images_D)
    patches_I = _shared_out(plan.num_patches_D[order].astype(np.int64), images_D)
    embeddings_I = _shared_out(plan.num_image_tokens_D[order].astype(np.int64), images_D)
    backbone = Cost(costs["backbone"])
    nothing = np.zeros(2, dtype=np.int64)
    one, two = backbone.of(np.array([1, 2]), nothing).tolist()
    encoder_I = np.zeros(len(patches_I))
    if "encoder" in costs and len(patches_I):
        encoder_I = Cost(costs["encoder"], "encoder").of(patches_I, patches_I)
    return StepWork(
        tokens_D=tokens_D,
        backbone_D=backbone.of(tokens_D, plan.num_patches_D[order].astype(np.int64)),
        drawn_D=_drawn(plan.source_D[order].astype(np.int64)),
        document_I=document_I,
        encoder_I=encoder_I,
        embeddings_I=embeddings_I.astype(np.float64),
        padding_cost=max(0.0, two - one),
    )


def _shared_out(total_D: Int64Array, parts_D: Int64Array) -> Int64Array:
    """Return each document's total in so many whole parts that differ by at most 1, the larger first."""
    ends_D = np.cumsum(parts_D)
    place_I = np.arange(int(parts_D.sum())) - np.repeat(ends_D - parts_D, parts_D)
    parts_I, total_I = np.repeat(parts_D, parts_D), np.repeat(total_D, parts_D)
    shared: Int64Array = total_I // np.maximum(1, parts_I) + (place_I < total_I % np.maximum(1, parts_I))
    return shared


def _drawn(source_D: Int64Array) -> Float64Array:
    """Return when documents were drawn, given those of each source in order."""
    count_S = np.bincount(source_D)
    first_S = np.cumsum(count_S) - count_S
    return (np.arange(len(source_D)) - first_S[source_D] + 0.5) / count_S[source_D]

"""Vision-language, balanced for the backbone alone."""

from msd.planner.dgraph import DGraph
from msd.planner.strategy import StrategyContext, balance_and_broadcast, mix_and_pack


def vlm_backbone(graph: DGraph, context: StrategyContext) -> DGraph:
    """Even out what the backbone costs; each row's ranks encode the row's images, however many those are.

    What `vlm_joint` and `vlm_hybrid` are compared with: any trainer can use it, and the encoder waits for the rank with
    the most pixels.
    """
    return balance_and_broadcast(mix_and_pack(graph, context).distribute("dp"), context, ["backbone"])

"""Vision-language, balanced for backbone and encoder at once."""

from msd.planner.dgraph import DGraph
from msd.planner.strategy import StrategyContext, balance_and_broadcast, mix_and_pack, need_encoder_cost


def vlm_joint(graph: DGraph, context: StrategyContext) -> DGraph:
    """Place rows so that neither images nor text pile up on one rank; each row's ranks encode the row's images.

    Evened out is the larger of both normalised costs. Any trainer can use it: nothing travels but rows. A document with
    more pixels than a rank's share still makes its rank the slowest; `vlm_hybrid` takes the images elsewhere.

    Raises:
        ConfigError: If the configuration has no `cost.encoder`.
    """
    need_encoder_cost(context, "vlm_joint")
    return balance_and_broadcast(mix_and_pack(graph, context).distribute("dp"), context, ["backbone", "encoder"])

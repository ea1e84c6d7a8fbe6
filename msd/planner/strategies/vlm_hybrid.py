"""Vision-language: rows balanced for the backbone, images encoded wherever there is room, embeddings exchanged."""

from msd.planner.dgraph import DGraph
from msd.planner.strategy import StrategyContext, balance_and_broadcast, mix_and_pack, need_encoder_cost


def vlm_hybrid(graph: DGraph, context: StrategyContext) -> DGraph:
    """Lay rows out for the backbone, then give each image to one of the ranks of `encoder.ranks` by encoder cost.

    Both modules are even, each on its own. The trainer exchanges embeddings, with `msd.torch.EmbeddingExchange`.

    Raises:
        ConfigError: If the configuration has no `cost.encoder`, or the ranks cannot meet as often as it says.
    """
    need_encoder_cost(context, "vlm_hybrid")
    graph = balance_and_broadcast(mix_and_pack(graph, context).distribute("dp"), context, ["backbone"])
    every = context.encoder.every
    return graph.encode(context.encoder.ranks, None if every == "auto" else every)

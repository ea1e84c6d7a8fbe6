from xml.etree import ElementTree

import pytest

from msd.core.mesh import Mesh
from msd.errors import ConfigError
from msd.planner.config import MixtureConfig
from msd.planner.dgraph import DGraph
from msd.planner.mixture.schedule import MixtureSchedule
from msd.planner.place_tree import ClientPlaceTree
from msd.planner.planner import Planner
from msd.planner.strategy import mix_and_pack
from msd.testing.tables import LengthCost, feed_of, row, settings_of, steps_of

SCHEDULE = MixtureSchedule.of(["web"], MixtureConfig())


def empty(**mesh):
    return DGraph.over(ClientPlaceTree(Mesh.of(**(mesh or {"dp": 2, "tp": 2}))))


def packed():
    return empty().mix(SCHEDULE).pack("best_fit", num_sequences=8, sequence_length=64)


def test_each_call_returns_a_longer_graph_and_leaves_the_first_as_it_was():
    start = empty()
    longer = start.mix(SCHEDULE)
    assert (len(start.ops), len(longer.ops)) == (0, 1)


def test_a_graph_prints_as_it_was_written():
    graph = packed().distribute("dp").cost(LengthCost()).balance().broadcast_at("tp")
    names = [line.strip().split("(")[0] for line in str(graph).splitlines()]
    assert names == ["DGraph.over", ".mix", ".pack", ".distribute", ".cost", ".balance", ".broadcast_at"]
    assert graph.plan().graph == graph


def test_a_graph_is_a_table_of_its_ops_and_is_drawn():
    graph = packed().distribute("dp").cost(LengthCost()).balance()
    table = graph.to_pandas()
    assert table["op"].tolist() == ["mix", "pack", "distribute", "cost", "balance"]
    assert table["decides"].tolist() == ["what a step holds"] * 2 + ["where it goes"] * 3
    assert table["arguments"][2] == "'dp', group_size=1"
    drawing = graph._repr_svg_()
    assert len(ElementTree.fromstring(drawing).findall("{*}g")) == 5
    assert "pack(&#x27;best_fit&#x27;, 8 x 64, lookahead=32)" in drawing


def test_a_graph_follows_the_documents_of_its_plans():
    made = {"web": [row(n) for n in (60, 50, 40, 30, 20, 10, 5, 64)]}
    chosen = settings_of(made, mesh=Mesh.of(dp=4))
    planner = Planner(chosen)
    plan = next(steps_of(planner, feed_of(made, chosen)))
    table = planner.strategy.graph.to_pandas(plan)
    assert table["length"].tolist() == plan.length_D.tolist()
    assert table["ranks"].tolist() == [(bucket,) for bucket in plan.bucket_D]


@pytest.mark.parametrize(
    ("build", "fix"),
    [
        (lambda: empty().pack("none", num_sequences=8, sequence_length=64), "call .mix"),
        (lambda: empty().mix(SCHEDULE).distribute("dp"), "call .pack"),
        (lambda: packed().distribute("dp").balance(), "call .cost"),
        (lambda: packed().balance(), "call .distribute"),
        (lambda: packed().broadcast_at("tp"), "call .distribute"),
        (lambda: packed().plan(), "call .distribute"),
        (lambda: packed().mix(SCHEDULE), "stands twice"),
        (lambda: packed().cost(LengthCost()).cost(LengthCost()), "has a cost already"),
        (lambda: packed().distribute("dp").broadcast_at("dp"), "use another axis"),
        (lambda: packed().distribute("dp").broadcast_at("tp").broadcast_at("tp"), "stands twice"),
        (lambda: packed().distribute("tp"), "there is no axis 'tp'; the axes are dp, cp, world"),
        (lambda: packed().distribute("dp", group_size=3), "groups of 3"),
        (lambda: packed().distribute("dp").cost(LengthCost()).balance("best"), "the methods are lpt, karmarkar_karp"),
        (lambda: packed().distribute("dp").cost(LengthCost()).balance(across=("rank",)), "bucket or microbatch"),
        (lambda: packed().cost(LengthCost(), module="decoder"), "the modules are backbone, encoder"),
    ],
)
def test_an_illegal_graph_is_refused_with_the_fix(build, fix):
    """Answers GR-5."""
    with pytest.raises(ConfigError, match=fix):
        build()


def test_a_user_strategy_decides_the_layout():
    made = {"web": [row(n) for n in (60, 50, 40, 30, 20, 10, 5, 64)]}

    def unbalanced(graph, context):
        return mix_and_pack(graph, context).distribute("dp")

    def shared(graph, context):
        return mix_and_pack(graph, context).distribute("dp", group_size=2)

    for strategy, num_buckets in ((unbalanced, 4), (shared, 2)):
        chosen = settings_of(made, mesh=Mesh.of(dp=4), strategy=strategy)
        plan = next(steps_of(Planner(chosen), feed_of(made, chosen)))
        assert plan.num_buckets == num_buckets
        assert plan.report.imbalance == plan.report.packed_imbalance


def test_a_strategy_that_returns_something_else_is_refused():
    with pytest.raises(ConfigError, match="must return the graph"):
        Planner(settings_of({"web": [row(5)]}, strategy=lambda graph, context: None))

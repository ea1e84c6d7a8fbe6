import pytest

import msd
from msd.testing.scenarios import text


def test_the_graph_of_a_run_is_what_its_strategy_declares():
    graph = msd.graph(text(mesh={"dp": 2, "tp": 2}, broadcast=["tp"]))
    assert [line.strip().split("(")[0] for line in str(graph).splitlines()] == [
        "DGraph.over", ".mix", ".pack", ".distribute", ".cost", ".balance", ".broadcast_at",
    ]  # fmt: skip
    assert graph.to_pandas()["op"].tolist()[-1] == "broadcast_at"


def test_it_may_be_asked_for_another_mesh():
    assert msd.graph(text(), mesh={"dp": 4}).tree.mesh.size("dp") == 4
    assert msd.graph(text(), mesh=msd.Mesh.of(dp=4, tp=2)).tree.mesh.world_size == 8


@pytest.mark.parametrize(("mesh", "message"), [({"xp": 2}, "mesh has no axis 'xp'"), (4, "mesh must be axis sizes")])
def test_a_mesh_that_is_none_is_refused(mesh, message):
    with pytest.raises(msd.ConfigError, match=message):
        msd.graph(text(), mesh=mesh)
    with pytest.raises(msd.ConfigError, match=message):
        msd.plan(text(), mesh=mesh)

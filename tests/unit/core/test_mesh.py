"""The arithmetic between ranks and coordinates."""

import pytest

from msd.core.mesh import Mesh
from msd.errors import ConfigError


def test_ranks_follow_the_formula_of_the_contract():
    mesh = Mesh.of(pp=2, dp=3, cp=2, tp=4)
    for rank in range(mesh.world_size):
        at = mesh.coordinate(rank)
        assert rank == ((at["pp"] * 3 + at["dp"]) * 2 + at["cp"]) * 4 + at["tp"]
        assert mesh.rank(**at) == rank


def test_the_order_of_axes_is_the_order_given():
    mesh = Mesh.of(dp=2, pp=3)
    assert [mesh.rank(pp=pp, dp=dp) for dp in range(2) for pp in range(3)] == list(range(6))
    assert list(mesh.coordinate(4)) == ["dp", "pp", "cp", "tp"]


def test_axes_left_out_have_size_one():
    mesh = Mesh.of(dp=4)
    assert mesh.world_size == 4
    assert {axis: mesh.size(axis) for axis in ("pp", "cp", "tp")} == {"pp": 1, "cp": 1, "tp": 1}
    assert str(mesh) == "dp=4 pp=1 cp=1 tp=1"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: Mesh.of(ep=2), "mesh has no axis 'ep'; the axes are pp, dp, cp, tp"),
        (lambda: Mesh.of(dp=0), "mesh sizes must be at least 1, got dp=0"),
        (lambda: Mesh.of(dp=2).coordinate(2), "rank 2 is outside the mesh of 2 ranks"),
        (lambda: Mesh.of(dp=2).coordinate(-1), "rank -1 is outside"),
        (lambda: Mesh.of(dp=2).rank(dp=2), "coordinate dp=2 is outside the mesh"),
        (lambda: Mesh.of(dp=2).rank(ep=0), "mesh has no axis 'ep'"),
        (lambda: Mesh.of(dp=2).size("ep"), "mesh has no axis 'ep'"),
    ],
)
def test_what_is_not_in_the_mesh_is_refused_by_name(ask, message):
    with pytest.raises(ConfigError, match=message):
        ask()

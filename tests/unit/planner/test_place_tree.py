import pytest

from msd.core.mesh import Mesh
from msd.errors import ConfigError
from msd.planner.place_tree import ClientPlaceTree

TREE = ClientPlaceTree(Mesh.of(pp=2, dp=2, cp=1, tp=2))


def test_ranks_of_a_bucket_are_all_that_share_its_coordinate():
    assert TREE.buckets("dp") == ((0, 1, 4, 5), (2, 3, 6, 7))


def test_a_group_of_coordinates_shares_a_bucket():
    assert TREE.buckets("dp", group_size=2) == (tuple(range(8)),)


def test_every_rank_is_in_one_bucket_of_any_axis():
    for axis in ("pp", "dp", "cp", "tp"):
        assert sorted(rank for ranks in TREE.buckets(axis) for rank in ranks) == list(range(8))


def test_the_root_of_a_rank_has_coordinate_0_on_the_broadcast_axes():
    assert [TREE.root_of(rank, ["tp"]) for rank in range(4)] == [0, 0, 2, 2]
    assert [TREE.root_of(rank, ["tp", "pp"]) for rank in range(8)] == [0, 0, 2, 2, 0, 0, 2, 2]


def test_ranks_at_a_partial_coordinate():
    assert TREE.ranks(dp=1, tp=0) == (2, 6)
    with pytest.raises(ConfigError, match="dp=2 is outside"):
        TREE.ranks(dp=2)

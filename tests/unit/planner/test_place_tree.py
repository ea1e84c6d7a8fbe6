"""The mesh seen as who must be fed."""

import pytest

from msd.core.mesh import Mesh
from msd.core.stages import FIELDS, FIRST_FIELDS, LAST_FIELDS, Stages
from msd.errors import ConfigError
from msd.planner.place_tree import ClientPlaceTree

TREE = ClientPlaceTree(Mesh.of(pp=2, dp=2, cp=1, tp=2))
CONTEXT = ClientPlaceTree(Mesh.of(dp=2, cp=2, tp=2))


def test_ranks_of_a_bucket_are_all_that_share_its_coordinate():
    assert TREE.buckets("dp") == ((0, 1, 4, 5), (2, 3, 6, 7))


def test_along_cp_each_context_parallel_rank_has_a_bucket():
    assert CONTEXT.buckets("dp") == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert CONTEXT.buckets("cp") == ((0, 1), (2, 3), (4, 5), (6, 7))


def test_along_the_world_each_rank_has_a_bucket():
    assert CONTEXT.buckets("world") == tuple((rank,) for rank in range(8))


def test_neighbouring_coordinates_may_share_a_bucket():
    assert TREE.buckets("dp", group_size=2) == (tuple(range(8)),)
    assert CONTEXT.buckets("cp", group_size=2) == CONTEXT.buckets("dp")
    assert CONTEXT.buckets("world", group_size=4) == ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize("sizes", [{"pp": 2, "dp": 3, "cp": 2, "tp": 2}, {"tp": 2, "cp": 3, "dp": 2, "ep": 2}])
@pytest.mark.parametrize(
    ("axis", "varying"), [("dp", ["dp"]), ("cp", ["dp", "cp"]), ("world", ["pp", "dp", "cp", "tp", "ep"])]
)
def test_ranks_share_a_bucket_when_they_differ_on_other_axes_alone(sizes, axis, varying):
    mesh = Mesh.of(**sizes)
    buckets = ClientPlaceTree(mesh).buckets(axis)
    assert sorted(rank for ranks in buckets for rank in ranks) == list(range(mesh.world_size))
    places = [{tuple(mesh.coordinate(rank).get(name) for name in varying) for rank in ranks} for ranks in buckets]
    assert all(len(place) == 1 for place in places)
    assert len(set.union(*places)) == len(buckets)


def test_data_parallelism_in_two_parts_makes_the_buckets_of_one():
    split, plain = Mesh.of(dp_replicate=2, dp_shard=2, tp=2), Mesh.of(dp=4, tp=2)
    assert ClientPlaceTree(split).buckets("dp") == ClientPlaceTree(plain).buckets("dp")
    apart = ClientPlaceTree(Mesh.of(dp_replicate=2, cp=2, dp_shard=2))
    assert apart.buckets("dp") == ((0, 2), (1, 3), (4, 6), (5, 7))


def test_ranks_of_an_expert_axis_receive_the_same():
    assert ClientPlaceTree(Mesh.of(dp=2, ep=3)).buckets("dp") == ((0, 1, 2), (3, 4, 5))


def test_the_root_of_a_rank_has_coordinate_0_on_the_broadcast_axes():
    assert [TREE.root_of(rank, ["tp"]) for rank in range(4)] == [0, 0, 2, 2]
    assert [TREE.root_of(rank, ["tp", "pp"]) for rank in range(8)] == [0, 0, 2, 2, 0, 0, 2, 2]
    assert TREE.fetchers(["tp", "pp"]) == (0, 2)
    assert TREE.fetchers([]) == tuple(range(8))


def test_ranks_at_a_partial_coordinate():
    assert TREE.ranks(dp=1, tp=0) == (2, 6)
    with pytest.raises(ConfigError, match="dp=2 is outside"):
        TREE.ranks(dp=2)


def test_peers_of_a_rank_receive_its_bucket():
    assert TREE.peers_of(6) == (2, 3, 6, 7)
    assert CONTEXT.peers_of(6, "cp") == (6, 7)


def test_stages_and_their_fields_follow_the_coordinate_on_pp():
    tree = ClientPlaceTree(Mesh.of(pp=3, dp=2), Stages(per_rank=2))
    assert [tree.stages_of(rank) for rank in (0, 2, 5)] == [(0, 3), (1, 4), (2, 5)]
    assert tree.fields_by_stage == (FIRST_FIELDS, (), LAST_FIELDS)
    assert tree.fields_of(5) == LAST_FIELDS
    assert ClientPlaceTree(Mesh.of(dp=2)).fields_of(1) == FIELDS


def test_another_mesh_is_another_tree_and_an_equal_one_is_equal():
    assert ClientPlaceTree(Mesh.of(dp=2)) == ClientPlaceTree(Mesh.of(dp=2))
    assert ClientPlaceTree(Mesh.of(dp=2)) != ClientPlaceTree(Mesh.of(dp=4))
    assert ClientPlaceTree(Mesh.of(pp=2)) != ClientPlaceTree(Mesh.of(pp=2), Stages(per_rank=2))
    before = TREE.buckets("dp")
    ClientPlaceTree(Mesh.of(dp=8)).buckets("dp")
    assert TREE.buckets("dp") == before


def test_a_tree_is_drawn_with_slices_stages_and_ranks():
    tree = ClientPlaceTree(Mesh.of(pp=2, dp=3, cp=2, tp=2), Stages(per_rank=2))
    assert tree.drawn(max_buckets=2).splitlines() == [
        "pp=2 dp=3 cp=2 tp=2 (24 ranks)",
        "├─ bucket 0",
        "│  ├─ cp 0  pp 0  stage 0, 2 needs input_ids, position_ids, segment_ids, images: ranks 0-1",
        "│  ├─ cp 0  pp 1  stage 1, 3 needs labels, loss_mask: ranks 12-13",
        "│  ├─ cp 1  pp 0  stage 0, 2 needs input_ids, position_ids, segment_ids, images: ranks 2-3",
        "│  └─ cp 1  pp 1  stage 1, 3 needs labels, loss_mask: ranks 14-15",
        "├─ bucket 1",
        "│  ├─ cp 0  pp 0  stage 0, 2 needs input_ids, position_ids, segment_ids, images: ranks 4-5",
        "│  ├─ cp 0  pp 1  stage 1, 3 needs labels, loss_mask: ranks 16-17",
        "│  ├─ cp 1  pp 0  stage 0, 2 needs input_ids, position_ids, segment_ids, images: ranks 6-7",
        "│  └─ cp 1  pp 1  stage 1, 3 needs labels, loss_mask: ranks 18-19",
        "└─ and 1 more",
    ]
    assert ClientPlaceTree(Mesh.of(dp=1)).drawn().splitlines()[1:] == [
        "└─ bucket 0",
        "   └─ pp 0  stage 0 needs all fields: rank 0",
    ]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: TREE.buckets("xp"), "distribute: there is no axis 'xp'; the axes are dp, cp, world"),
        (lambda: TREE.buckets("dp", group_size=3), "the 2 buckets along dp do not divide into groups of 3"),
        (lambda: TREE.buckets("dp", group_size=0), "groups of 0"),
        (lambda: TREE.check_broadcast("xp", "dp"), "broadcast_at: there is no axis 'xp'; the axes are pp, dp, cp, tp"),
        (lambda: TREE.check_broadcast("ep", "dp"), "there is no axis 'ep'"),
        (lambda: TREE.check_broadcast("dp", "dp"), "ranks along dp receive different data"),
        (lambda: TREE.check_broadcast("cp", "cp"), "ranks along cp receive different data"),
        (lambda: TREE.check_broadcast("tp", "world"), "ranks along tp receive different data"),
        (lambda: TREE.ranks(ep=0), "mesh has no axis 'ep'"),
        (lambda: TREE.peers_of(8), "rank 8 is outside the mesh"),
    ],
)
def test_what_the_tree_does_not_have_is_refused_by_name(ask, message):
    with pytest.raises(ConfigError, match=message):
        ask()


def test_broadcast_is_legal_where_ranks_receive_the_same():
    for axis in ("tp", "cp", "pp"):
        CONTEXT.check_broadcast(axis, "dp")
    CONTEXT.check_broadcast("tp", "cp")
    ClientPlaceTree(Mesh.of(dp=2, ep=2)).check_broadcast("ep", "dp")

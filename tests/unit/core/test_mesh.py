"""The arithmetic between ranks and coordinates, and the meshes of trainers."""

from dataclasses import dataclass

import numpy as np
import pytest

from msd.core.mesh import Mesh
from msd.errors import ConfigError


@dataclass
class DeviceMesh:
    """As far as a mesh is read: an array of ranks and the names of its dimensions."""

    mesh: np.ndarray
    mesh_dim_names: tuple[str, ...] | None


def device_mesh(**sizes):
    return DeviceMesh(np.arange(np.prod(list(sizes.values()))).reshape(tuple(sizes.values())), tuple(sizes))


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


def test_data_parallelism_in_two_parts_is_one_axis_to_data():
    mesh = Mesh.of(pp=2, dp_replicate=2, dp_shard=3, tp=2)
    assert (mesh.size("dp"), mesh.world_size) == (6, 24)
    plain = Mesh.of(pp=2, dp=6, tp=2)
    for rank in range(24):
        at = mesh.coordinate(rank)
        assert at["dp"] == at["dp_replicate"] * 3 + at["dp_shard"] == plain.coordinate(rank)["dp"]
        assert mesh.rank(**at) == mesh.rank(pp=at["pp"], dp=at["dp"], tp=at["tp"]) == rank


def test_parts_of_data_parallelism_may_have_another_axis_between_them():
    mesh = Mesh.of(dp_replicate=2, cp=2, dp_shard=2)
    assert [mesh.coordinate(rank)["dp"] for rank in range(8)] == [0, 1, 0, 1, 2, 3, 2, 3]
    assert [mesh.rank(dp=dp, cp=1) for dp in range(4)] == [2, 3, 6, 7]


def test_an_expert_axis_is_an_axis_like_others():
    mesh = Mesh.of(dp=2, ep=4)
    assert [mesh.coordinate(rank)["ep"] for rank in range(8)] == [0, 1, 2, 3] * 2
    assert [mesh.coordinate(rank)["dp"] for rank in range(8)] == [0] * 4 + [1] * 4


@pytest.mark.parametrize(
    ("left", "right", "alike"),
    [
        (Mesh.of(dp=4), Mesh.of(pp=1, cp=1, dp=4), True),
        (Mesh.of(dp=6, tp=2), Mesh.of(dp_replicate=2, dp_shard=3, tp=2), True),
        (Mesh.of(dp=3, tp=2), Mesh.of(dp_shard=3, tp=2), True),
        (Mesh.of(dp=4), Mesh.of(dp_shard=2, dp_replicate=2), False),
        (Mesh.of(dp=4, cp=2), Mesh.of(dp_replicate=2, cp=2, dp_shard=2), False),
        (Mesh.of(dp=2, tp=2), Mesh.of(tp=2, dp=2), False),
        (Mesh.of(dp=2, ep=2), Mesh.of(dp=2, tp=2), False),
    ],
)
def test_meshes_are_alike_when_every_rank_has_the_same_place(left, right, alike):
    assert left.is_like(right) == right.is_like(left) == alike


def test_megatron_sizes_give_megatrons_ranks():
    mesh = Mesh.from_megatron(48, tensor_model_parallel_size=2, pipeline_model_parallel_size=3, context_parallel_size=2)
    assert mesh == Mesh.of(pp=3, dp=4, cp=2, tp=2)
    # RankGenerator(tp=2, cp=2, dp=4, pp=3, order="tp-cp-ep-dp-pp"): the first groups of each kind.
    assert [mesh.rank(tp=tp) for tp in range(2)] == [0, 1]
    assert [mesh.rank(cp=cp) for cp in range(2)] == [0, 2]
    assert [mesh.rank(dp=dp) for dp in range(4)] == [0, 4, 8, 12]
    assert [mesh.rank(pp=pp) for pp in range(3)] == [0, 16, 32]


def test_megatrons_other_order_has_data_parallelism_outermost():
    mesh = Mesh.from_megatron(8, tensor_model_parallel_size=2, pipeline_model_parallel_size=2, order="tp-cp-ep-pp-dp")
    assert mesh == Mesh.of(dp=2, pp=2, cp=1, tp=2)


def test_megatron_folds_experts_out_of_data_parallel_ranks():
    assert Mesh.from_megatron(8, expert_model_parallel_size=4) == Mesh.of(pp=1, dp=8, cp=1, tp=1)
    folded = Mesh.from_megatron(
        8, tensor_model_parallel_size=4, expert_model_parallel_size=8, expert_tensor_parallel_size=1
    )
    assert folded.size("dp") == 2


def test_a_device_mesh_gives_its_axes():
    found = Mesh.from_device_mesh(device_mesh(pp=2, dp_replicate=2, dp_shard=2, cp=1, tp=2), world_size=16)
    assert found.is_like(Mesh.of(pp=2, dp=4, tp=2))
    assert found.size("dp_shard") == 2


def test_a_device_mesh_whose_dimensions_were_permuted_keeps_its_ranks():
    made = device_mesh(dp=2, tp=3)
    turned = DeviceMesh(made.mesh.T, ("tp", "dp"))
    assert Mesh.from_device_mesh(turned) == Mesh.from_device_mesh(made) == Mesh.of(dp=2, tp=3)


def test_dimensions_of_other_names_are_mapped():
    sparse = device_mesh(pp=2, efsdp=2, ep=4)
    assert Mesh.from_device_mesh(sparse, names={"efsdp": "dp", "ep": "dp"}).is_like(Mesh.of(pp=2, dp=8))
    shared = Mesh.from_device_mesh(device_mesh(dp=2, ep=4), names={"ep": "ep"})
    assert shared.is_like(Mesh.of(dp=2, ep=4))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: Mesh.of(xp=2), "mesh has no axis 'xp'; the axes are pp, dp, cp, tp, dp_replicate, dp_shard, ep"),
        (lambda: Mesh.of(dp=0), "mesh sizes must be at least 1, got dp=0"),
        (lambda: Mesh.of(dp=2, dp_shard=2), r"mesh names dp and dp_shard; .*leave dp out, or dp_shard"),
        (lambda: Mesh.of(dp=2).coordinate(2), "rank 2 is outside the mesh of 2 ranks"),
        (lambda: Mesh.of(dp=2).coordinate(-1), "rank -1 is outside"),
        (lambda: Mesh.of(dp=2).rank(dp=2), "coordinate dp=2 is outside the mesh"),
        (lambda: Mesh.of(dp=2).rank(ep=0), "mesh has no axis 'ep'"),
        (lambda: Mesh.of(dp=2).size("ep"), "mesh has no axis 'ep'"),
        (lambda: Mesh.of(dp_replicate=2, dp_shard=2).rank(dp=4), "coordinate dp=4 is outside the mesh"),
        (lambda: Mesh.of(dp_replicate=2, dp_shard=2).rank(dp=3, dp_shard=0), "or contradicts its parts"),
        (lambda: Mesh.of(dp=4).check_world_size(6), r"\(dp=4 .*\) has 4 ranks, the trainer has 6"),
        (
            lambda: Mesh.from_megatron(12, tensor_model_parallel_size=8),
            r"tp \* cp \* pp = 8 does not divide the world of 12 ranks",
        ),
        (
            lambda: Mesh.from_megatron(8, expert_model_parallel_size=3),
            r"expert tp \* ep \* pp = 3 does not divide the world of 8 ranks",
        ),
        (lambda: Mesh.from_megatron(8, context_parallel_size=0), "at least 1, got .*cp=0"),
        (lambda: Mesh.from_megatron(8, order="tp-dp-pp"), "knows the orders tp-cp-ep-dp-pp, tp-cp-ep-pp-dp"),
        (lambda: Mesh.from_device_mesh(device_mesh(dp=4), world_size=8), "has 4 ranks, the trainer has 8"),
        (lambda: Mesh.from_device_mesh(DeviceMesh(np.arange(4), None)), "has no names"),
        (lambda: Mesh.from_device_mesh({"dp": 4}), "is a torch.distributed.DeviceMesh, got dict; make it with"),
        (lambda: Mesh.from_device_mesh(device_mesh(fsdp=4)), r"'fsdp', which is no axis .*names={'fsdp': 'dp'}"),
        (lambda: Mesh.from_device_mesh(device_mesh(dp=2, ep=2)), r"a dimension ep; .*names={'ep': 'dp'}"),
        (
            lambda: Mesh.from_device_mesh(DeviceMesh(np.array([[0, 2], [4, 6]]), ("dp", "cp"))),
            r"\(dp, cp\) is a slice: it holds ranks 0, 2, 4, 6",
        ),
        (
            lambda: Mesh.from_device_mesh(DeviceMesh(np.array([[0, 3], [1, 2]]), ("dp", "tp"))),
            "numbers its ranks 0, 3, 1, 2, which counts through no order",
        ),
        (
            lambda: Mesh.from_device_mesh(device_mesh(a=2, tp=2, b=2), names={"a": "dp", "b": "dp"}),
            r"dimensions of axis 'dp' with others between them \(a, tp, b\)",
        ),
    ],
)
def test_what_is_not_in_the_mesh_is_refused_by_name(ask, message):
    with pytest.raises(ConfigError, match=message) as caught:
        ask()
    assert "\n" not in str(caught.value)

"""A loader that is told the trainer's DeviceMesh: real ones, over ranks that are made up."""

import pytest

torch = pytest.importorskip("torch")
fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
pytestmark = pytest.mark.torch

import torch.distributed as dist  # noqa: E402
from test_torch_loader import ThreeSteps  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

from msd.client.torch import DataLoader  # noqa: E402
from msd.core.mesh import Mesh  # noqa: E402
from msd.errors import ConfigError  # noqa: E402

RANK, WORLD = 5, 8


@pytest.fixture
def world(monkeypatch):
    """This process is one rank of a world in which nobody else answers."""
    monkeypatch.setenv("RANK", "0")
    dist.init_process_group("fake", rank=RANK, world_size=WORLD, store=fake_pg.FakeStore())
    yield
    dist.destroy_process_group()


def mesh_of(**sizes):
    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def test_the_rank_is_that_of_the_device_mesh(world):
    run = ThreeSteps(Mesh.of(dp_replicate=2, dp_shard=2, tp=2))
    with DataLoader(run, device_mesh=mesh_of(dp_replicate=2, dp_shard=2, tp=2)) as loader:
        assert (loader.rank, next(iter(loader)).rank) == (RANK, RANK)


def test_axes_of_size_one_and_parts_of_dp_make_no_difference(world):
    run = ThreeSteps(Mesh.of(pp=1, dp=4, cp=1, tp=2))
    assert DataLoader(run, device_mesh=mesh_of(dp_replicate=2, dp_shard=2, tp=2)).rank == RANK


def test_dimensions_of_other_names_are_mapped(world):
    run = ThreeSteps(Mesh.of(dp=4, tp=2))
    named = {"fsdp": "dp", "model": "tp"}
    assert DataLoader(run, device_mesh=mesh_of(fsdp=4, model=2), device_mesh_names=named).rank == RANK
    with pytest.raises(ConfigError, match="'fsdp', which is no axis"):
        DataLoader(run, device_mesh=mesh_of(fsdp=4, model=2))


def test_a_slice_of_a_device_mesh_is_refused(world):
    with pytest.raises(ConfigError, match=r"\(dp\) is a slice: it holds ranks 1, 3, 5, 7"):
        DataLoader(ThreeSteps(Mesh.of(dp=4, tp=2)), device_mesh=mesh_of(dp=4, tp=2)["dp"])


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"dp": 2, "tp": 4}, r"device mesh of the trainer is dp=4 tp=2 .*, the mesh of the run dp=2 tp=4 .*set mesh: "),
        ({"tp": 2, "dp": 4}, "so that ranks would receive data of others"),
        ({"dp": 8, "tp": 2}, "has 16 ranks, the trainer has 8"),
    ],
)
def test_another_mesh_than_the_runs_is_refused_and_the_rank_released(world, run, message):
    engine = ThreeSteps(Mesh.of(**run))
    with pytest.raises(ConfigError, match=message):
        DataLoader(engine, device_mesh=mesh_of(dp=4, tp=2))
    assert engine.released == [RANK]
    client = engine.client(RANK)
    with pytest.raises(ConfigError, match=message):
        DataLoader(client, device_mesh=mesh_of(dp=4, tp=2))
    assert engine.released == [RANK]


def test_a_world_of_another_size_than_the_mesh_is_refused_with_both_numbers(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "6")
    run = ThreeSteps(Mesh.of(dp=2))
    with pytest.raises(ConfigError, match=r"\(dp=2 .*\) has 2 ranks, the trainer has 6; set mesh so that"):
        DataLoader(run)
    assert run.released == [1]
    # Whoever says a rank knows which it means.
    assert DataLoader(run, rank=1).rank == 1

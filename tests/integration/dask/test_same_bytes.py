"""A run on Dask delivers to every rank what the local engine delivers, whatever it is spread over."""

import pytest

import msd
from msd.planner.strategy import mix_and_pack
from msd.runtime.dask.cluster import EmbeddedCluster
from msd.testing import scenarios
from msd.testing.scenarios import MESHES, PACKINGS, same_bytes, undisturbed

pytestmark = pytest.mark.cluster

STEPS = 50
SPREADS = ({"loaders": 1, "constructors": 1}, {"loaders": 2, "constructors": 2}, {"loaders": 7, "constructors": 1})


@pytest.fixture(scope="module")
def cluster():
    """One cluster for all runs of this file: a run leaves nothing on it."""
    with EmbeddedCluster(["msd-control", *(f"msd-loader-{number}" for number in range(4))]) as cluster:
        cluster.wait()
        yield cluster


def on_dask(config, cluster, *, workers=2, **changes):
    runtime = {"kind": "dask", "scheduler": cluster.address, "workers": workers, "deadline_s": 60}
    return msd.start(config.replace(runtime=runtime, **changes))


def one_bucket_a_rank(graph, context):
    return mix_and_pack(graph, context).distribute("world")


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("name", ["text", "image-text"])
def test_loaders_and_constructors_do_not_change_what_ranks_receive(cluster, name, packing):
    """Answers RY-2, TD-8."""
    config = scenarios.SCENARIOS[name](packing, mesh={"dp": 2})
    expected = undisturbed(config, STEPS)
    for workers, spread in zip((1, 2, 4), SPREADS, strict=True):
        with on_dask(config, cluster, workers=workers, **spread) as engine:
            same_bytes(expected, engine)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_every_rank_of_a_mesh_receives_its_own(cluster, mesh):
    config = scenarios.SCENARIOS["image-text"](mesh=mesh)
    with on_dask(config, cluster, loaders=2, constructors=2) as engine:
        same_bytes(undisturbed(config, STEPS), engine)


@pytest.mark.parametrize(
    "changes",
    [
        {"mesh": {"pp": 3, "dp": 2}, "fields_by_stage": True},
        {"mesh": {"dp_replicate": 2, "cp": 2, "dp_shard": 2}, "batch": {"slice": "headtail"}},
        {"mesh": {"dp": 2, "cp": 2, "tp": 2}, "strategy": one_bucket_a_rank, "batch": {"global_batch_size": 16}},
    ],
    ids=["fields by stage", "head and tail over a split dp", "buckets along the world"],
)
def test_ranks_that_share_less_than_a_bucket_receive_their_own(cluster, changes):
    config = scenarios.SCENARIOS["image-text"](**changes)
    with on_dask(config, cluster, loaders=2, constructors=2) as engine:
        same_bytes(undisturbed(config, 20), engine)


@pytest.mark.parametrize("mesh", [{"dp": 2, "tp": 2}, {"pp": 2, "dp": 2}], ids=str)
def test_images_encoded_by_ranks_of_another_constructor_come_alike(cluster, mesh):
    config = scenarios.SCENARIOS["hybrid"](mesh=mesh)
    with on_dask(config, cluster, loaders=2, constructors=2) as engine:
        same_bytes(undisturbed(config, 20), engine)


@pytest.mark.parametrize("name", ["finite", "uneven", "many-sources", "moving"])
def test_odd_data_comes_alike(cluster, name):
    config = scenarios.SCENARIOS[name](mesh={"dp": 2})
    with on_dask(config, cluster, workers=3) as engine:
        same_bytes(undisturbed(config, STEPS), engine)


def test_ranks_may_take_turns_at_random(cluster):
    config = scenarios.SCENARIOS["text"](mesh={"dp": 4})
    with on_dask(config, cluster, constructors=2) as engine:
        same_bytes(undisturbed(config, STEPS), engine, seed=5)

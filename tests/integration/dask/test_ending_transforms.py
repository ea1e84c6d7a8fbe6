"""Transforms that would end their process."""

from collections.abc import Iterator

import pytest

import msd
from msd.errors import EngineError
from msd.runtime.dask.cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(["msd-control", "msd-loader-0"]) as cluster:
        cluster.wait()
        yield cluster


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_transform_that_ends_its_process_is_named_with_its_rows(cluster, kind):
    def ends(sample):
        raise kind(3)

    config = msd.Config(
        sources={"web": {"rows": [{"ids": [1, 2, 3]}] * 20, "transforms": [{"kind": "tokens"}, ends]}},
        batch={"sequence_length": 16, "global_batch_size": 2},
        mesh={"dp": 1},
        num_microbatches=1,
        runtime={"scheduler": cluster.address, "workers": 1, "deadline_s": 30},
    )
    with msd.start(config) as engine, pytest.raises(EngineError, match=rf"source 'web': {kind.__name__}.*must not end"):
        next(engine.client(0))

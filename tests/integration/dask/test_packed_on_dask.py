"""What `msd run` wrote, read back: as a source on Dask, and as tables by pandas, pyarrow and Dask."""

import json

import pytest

import msd
from msd.runtime.dask.batch.contents import Asked
from msd.runtime.dask.batch.driver import run_batch
from msd.runtime.dask.cluster import EmbeddedCluster
from msd.runtime.local import LocalEngine
from msd.testing import scenarios
from msd.testing.folders import write_packed
from msd.testing.same import difference

pytestmark = pytest.mark.cluster

STEPS = 24


@pytest.fixture(scope="module")
def cluster():
    with EmbeddedCluster(["msd-control", *(f"msd-loader-{number}" for number in range(3))]) as cluster:
        cluster.wait()
        yield cluster


@pytest.fixture(scope="module", params=["image-text", "hybrid"])
def written(request, cluster, tmp_path_factory):
    """A configuration, the folder that batch mode wrote of it, and what ranks of its stream receive."""
    config = scenarios.SCENARIOS[request.param]("concat")
    out = tmp_path_factory.mktemp("written") / "out"
    run_batch(config, Asked(out=str(out), steps=STEPS, scheduler=cluster.address, workers=2), lambda at: None)
    with LocalEngine(config) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        return config, out, [[next(client) for client in clients] for _ in range(STEPS)]


def reading(config, out, cluster, **changes):
    runtime = {"kind": "dask", "scheduler": cluster.address, "workers": 2, "deadline_s": 60}
    sources = {**dict.fromkeys(config.sources), "old": {"format": "packed", "path": str(out), "max_epochs": 1}}
    return config.replace(sources=sources, mixture={"weights": None}, runtime=runtime, **changes)


@pytest.mark.timeout(120)
def test_on_dask_it_streams_as_the_very_steps_and_resumes_in_the_middle(written, cluster):
    config, out, expected = written
    with msd.start(reading(config, out, cluster, loaders=3, constructors=2)) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        for step in range(9):
            for rank, client in enumerate(clients):
                assert not difference(expected[step][rank], next(client)), f"step {step} of rank {rank}"
        state = json.loads(json.dumps(clients[0].state_dict()))
        origins = [entry["origin"] for entry in engine.which(5)]
        assert {(one["source"], one["ordinal"], one["part"]) for one in origins} == {
            tuple(sample_id) for batch in expected[5] for sample_id in batch.sample_ids
        }
    with msd.start(reading(config, out, cluster, loaders=1)) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        for client in clients:
            client.load_state_dict(state)
        for step in range(9, STEPS):
            for rank, client in enumerate(clients):
                assert not difference(expected[step][rank], next(client)), f"step {step} of rank {rank}"
        assert [next(client, None) for client in clients] == [None, None]


@pytest.mark.timeout(120)
def test_batch_mode_writes_what_one_process_writes_byte_for_byte(written, tmp_path):
    config, out, _ = written
    write_packed(config, tmp_path / "one", steps=STEPS, steps_per_file=64)
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in (out, tmp_path / "one")]
    assert manifests[0] == manifests[1]
    (part,) = manifests[0]["parts"]
    assert (out / part["name"]).read_bytes() == (tmp_path / "one" / part["name"]).read_bytes()


@pytest.mark.filterwarnings("ignore:The inplace keyword:Warning")
@pytest.mark.timeout(120)
def test_pandas_pyarrow_and_dask_read_the_same_rows(written):
    import dask.dataframe as dd
    import pandas as pd
    import pyarrow.dataset as ds

    _, out, expected = written
    pattern = str(out / "part-*.parquet")
    table = ds.dataset(sorted(str(path) for path in out.glob("part-*"))).to_table()
    frame = pd.concat([pd.read_parquet(path) for path in sorted(out.glob("part-*"))])
    counted = dd.read_parquet(pattern, columns=["step", "document_lengths"])
    tokens = counted["document_lengths"].map(sum, meta=("tokens", "int64")).sum().compute(scheduler="synchronous")
    assert table.num_rows == len(frame) == len(counted) == STEPS * 8
    first = expected[0][0].microbatches[0]
    assert table["input_ids"][0].as_py() == frame["input_ids"].iloc[0].tolist() == first.input_ids[:128].tolist()
    assert tokens == sum(int(row.cu_seqlens[-1]) for step in expected for batch in step for row in batch.microbatches)

"""What the engine's process does with a run that goes on: saves, restores, edits it, moves it to another mesh."""

from collections import Counter
from typing import Any

import pytest
from processes import wait_until

import msd
from msd.errors import ConfigError, EngineError, MsdError
from msd.runtime.dask.cluster import EmbeddedCluster
from msd.testing import scenarios

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster():
    with EmbeddedCluster(["msd-control", "msd-loader-0", "msd-loader-1"]) as cluster:
        cluster.wait()
        yield cluster


def config(cluster: EmbeddedCluster, **changes: Any) -> msd.Config:
    runtime = {"kind": "dask", "scheduler": cluster.address, "workers": 2, "deadline_s": 30}
    return scenarios.text(runtime=runtime, **changes)


def take(clients: list[Any], steps: int) -> dict[tuple[int, int], str]:
    found = {}
    for _ in range(steps):
        for client in clients:
            batch = next(client)
            found[batch.step, batch.rank] = scenarios.digest(batch)
    return found


def part(digests: Any, steps: range) -> dict[tuple[int, int], str]:
    return {key: digest for key, digest in digests.items() if key[0] in steps}


def noting(sample: dict[str, Any]) -> dict[str, Any]:
    with open(sample["log"], "a") as log:
        log.write(f"{sample['n']}\n")
    return sample


def test_on_another_mesh_a_run_goes_on_at_the_step_with_what_its_hosts_hold(cluster, tmp_path):
    log = tmp_path / "rows"
    rows = [{**row, "n": n, "log": str(log)} for n, row in enumerate(scenarios.token_rows(1, 2000, 20))]
    sources = {"web": {"rows": rows, "transforms": [noting, {"kind": "tokens", "field": "ids"}]}}
    settings = config(cluster, sources=sources, mixture={})
    expected = scenarios.undisturbed(settings.replace(mesh={"dp": 4}), 16)
    log.unlink()
    with msd.start(settings) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        take(clients, 8)
        # That ranks asked for the last of them is heard a moment later.
        wait_until(lambda: engine.stats()["watermark"] == 6, 30, "ranks to be heard of")
        address = engine.address
        assert engine.rewind(mesh={"dp": 4}) == 7
        assert (engine.address, engine.mesh.size("dp")) == (address, 4)
        clients = [engine.client(rank) for rank in range(4)]
        assert take(clients, 8) == part(expected, range(7, 15))
        assert engine.stats()["mesh"]["dp"] == 4
    # No row was transformed twice: the other mesh is fed from what was there, in other pieces.
    assert Counter(log.read_text().split()).most_common(1)[0][1] == 1


def test_ranks_of_the_mesh_before_hear_where_the_run_goes_on(cluster):
    with msd.start(config(cluster)) as engine:
        clients = [msd.connect(engine.address, rank=rank) for rank in range(2)]
        take(clients, 3)
        step = engine.rewind(mesh={"dp": 1})
        said = rf"the run goes on at step {step} on the mesh .*'dp': 1.*; connect again as one of its 1 ranks"
        for client in clients:
            with pytest.raises(EngineError, match=said):
                [next(client) for _ in range(20)]
            client.close()
        with pytest.raises(ConfigError, match="rank 1"):
            msd.connect(engine.address, rank=1)
        with msd.connect(engine.address, rank=0) as client:
            assert next(client).step == step


def test_a_rewind_to_a_step_that_nobody_remembers_names_those_that_are_known(cluster):
    with msd.start(config(cluster)) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        before = take(clients, 6)
        with pytest.raises(
            ConfigError, match=r"the position before step 99 is not known any more; those before steps 0"
        ):
            engine.rewind(99)
        assert engine.rewind(0) == 0
        assert take([engine.client(rank) for rank in range(2)], 6) == before


def test_a_restored_run_takes_all_ranks_back(cluster):
    with msd.start(config(cluster)) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        take(clients, 3)
        state = clients[0].state_dict()
        expected = take(clients, 4)
        engine.restore(state)
        assert take(clients, 4) == expected
        with pytest.raises(ConfigError, match="restore: this run keeps no checkpoint"):
            engine.restore("snapshot-1")
        with pytest.raises(ConfigError, match="save: this run keeps no checkpoint"):
            engine.save()
        assert engine.stats()["checkpoint"] is None


def test_a_run_with_a_checkpoint_is_saved_and_goes_on_where_it_was(cluster, tmp_path, caplog):
    settings = config(cluster, checkpoint={"path": str(tmp_path / "ckpt"), "every": 2, "resume": "auto"})
    expected = scenarios.undisturbed(settings.replace(checkpoint=None), 12)
    with msd.start(settings) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        assert take(clients, 5) == part(expected, range(5))
        name = engine.save()
        assert name.startswith("snapshot-")
        found = engine.stats()["checkpoint"]
        assert (found["path"], found["generation"], found["failures"]) == (str(tmp_path / "ckpt"), 0, 0)
        assert (tmp_path / "ckpt" / found["snapshot"]).stat().st_size == found["size_bytes"]
        assert 0 <= found["age_steps"] <= 5 - found["step"]
        take(clients, 2)
        engine.restore(name)
        # Where the slowest rank stood, as far as the planner had heard.
        (step,) = {next(client).step for client in clients}
        assert step <= 5
        with pytest.raises(MsdError, match="belongs to run"):
            msd.start(settings)
    with msd.start(settings.replace(checkpoint={"resume": "must"})) as engine:
        found = take([engine.client(rank) for rank in range(2)], 4)
        first = min(step for step, _ in found)
        assert first >= 2
        assert found == part(expected, range(first, first + 4))
    assert f"the run resumes at step {first}" in caplog.text


def test_edits_take_effect_alike_on_every_engine_and_are_refused_where_they_come_too_late(cluster):
    settings = config(cluster)

    def held(batch: msd.RankBatch) -> Any:
        # Not the position, which says when an edit was noted.
        return batch.sample_ids, [row.input_ids.tolist() for row in batch.microbatches]

    def edited(engine: Any) -> list[Any]:
        clients = [engine.client(rank) for rank in range(2)]
        assert engine.suspend("books", at_step=20, reason="a test") == 20
        assert engine.resume_source("books", at_step=24) == 24
        assert engine.skip("web", 0, 400, at_step=21) == 21
        assert engine.skip_steps(2, at_step=26) == 26
        found = [held(next(client)) for _ in range(30) for client in clients]
        with pytest.raises(ConfigError, match="step"):
            engine.suspend("books", at_step=5)
        with pytest.raises(ConfigError, match="nosource"):
            engine.suspend("nosource")
        return found

    with msd.start(settings.replace(runtime={"kind": "local", "scheduler": None})) as local:
        expected = edited(local)
    with msd.start(settings) as engine:
        assert edited(engine) == expected
    assert all(sample.source != "books" for ids, _ in expected[40:48] for sample in ids)


def test_a_path_where_no_checkpoint_can_be_is_refused_before_anything_starts(cluster, tmp_path):
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(MsdError, match=str(path)):
        msd.start(config(cluster, checkpoint={"path": str(path)}))

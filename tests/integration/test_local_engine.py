import random

import numpy as np
import pytest

import msd


def rows(seed: int, count: int, mean: int) -> list[dict]:
    draw = np.random.Generator(np.random.Philox(key=seed))
    lengths = np.clip(draw.lognormal(np.log(mean), 0.8, count).astype(int), 1, 200)
    return [{"ids": draw.integers(1, 1000, length).tolist()} for length in lengths]


def config(**changes) -> msd.Config:
    tokens = [{"kind": "tokens", "field": "ids"}]
    settings = {
        "sources": {
            "web": {"rows": rows(1, 300, 20), "transforms": tokens, "shuffle": {"block_bytes": "2KiB", "window": 3}},
            "books": {"rows": rows(2, 100, 60), "transforms": tokens},
        },
        "mixture": {"weights": {"web": 0.7, "books": 0.3}},
        "batch": {"sequence_length": 128, "global_batch_size": 8},
        "mesh": {"dp": 2},
        "num_microbatches": 2,
    }
    return msd.Config(**{**settings, **changes})


def digest(batch: msd.RankBatch) -> tuple:
    arrays = [
        getattr(row, name).tobytes()
        for row in batch.microbatches
        for name in ("input_ids", "labels", "position_ids", "segment_ids", "loss_mask", "cu_seqlens")
    ]
    return batch.step, batch.rank, tuple(batch.sample_ids), b"".join(arrays)


def undisturbed(settings: msd.Config, steps: int) -> dict[tuple[int, int], tuple]:
    with msd.start(settings, runtime="local") as engine:
        clients = [engine.client(rank) for rank in range(engine.mesh.world_size)]
        return {(step, c.rank): digest(next(c)) for step in range(steps) for c in clients}


def test_any_interleaving_of_ranks_gives_the_same_batches():
    settings = config(mesh={"dp": 2, "tp": 2})
    expected = undisturbed(settings, 8)
    for seed in range(3):
        turns = [rank for rank in range(4) for _ in range(8)]
        random.Random(seed).shuffle(turns)
        with msd.start(settings, runtime="local") as engine:
            clients = {rank: engine.client(rank) for rank in range(4)}
            for rank in turns:
                batch = next(clients[rank])
                assert digest(batch) == expected[batch.step, rank]


def test_a_rank_that_comes_very_late_gets_every_step_from_the_first(monkeypatch):
    monkeypatch.setattr("msd.coordinator.history.PLANS_KEPT", 3)
    settings = config()
    expected = undisturbed(settings, 20)
    with msd.start(settings, runtime="local") as engine:
        first = engine.client(0)
        for _ in range(20):
            next(first)
        late = engine.client(1)
        assert [digest(next(late)) for _ in range(20)] == [expected[step, 1] for step in range(20)]


def test_ranks_of_one_tensor_parallel_group_share_samples_and_data_parallel_ranks_do_not():
    with msd.start(config(mesh={"dp": 2, "tp": 2}), runtime="local") as engine:
        batches = [next(engine.client(rank)) for rank in range(4)]
    assert batches[0].sample_ids == batches[1].sample_ids
    assert not set(batches[0].sample_ids) & set(batches[2].sample_ids)


def test_a_chain_of_resumes_equals_the_undisturbed_run():
    settings = config()
    expected = undisturbed(settings, 12)
    state = None
    for start, end in ((0, 3), (3, 7), (7, 7), (7, 11), (11, 12)):
        with msd.start(settings, runtime="local") as engine:
            clients = [engine.client(rank) for rank in range(2)]
            for client in clients if state is not None else []:
                client.load_state_dict(state)
            for step in range(start, end):
                assert [digest(next(client)) for client in clients] == [expected[step, rank] for rank in range(2)]
            state = clients[0].state_dict()
            assert state == clients[1].state_dict()


def test_a_state_saved_right_after_a_load_is_that_state():
    settings = config()
    with msd.start(settings, runtime="local") as engine:
        client = engine.client(0)
        assert client.state_dict() == client.state_dict()
        next(client)
        state = client.state_dict()
    with msd.start(settings, runtime="local") as engine:
        client = engine.client(0)
        client.load_state_dict(state)
        assert client.state_dict() == state


def test_a_rank_that_does_not_load_follows():
    settings = config()
    expected = undisturbed(settings, 6)
    with msd.start(settings, runtime="local") as engine:
        loading, following = engine.client(0), engine.client(1)
        state = None
        for step in range(4):
            next(loading), next(following)
            if step == 1:
                state = loading.state_dict()
        loading.load_state_dict(state)
        assert following.state_dict() == state
        assert digest(next(following)) == expected[2, 1]
        assert digest(next(loading)) == expected[2, 0]


def test_another_state_on_another_rank_is_refused_naming_both():
    with msd.start(config(), runtime="local") as engine:
        zero, one = engine.client(0), engine.client(1)
        early = zero.state_dict()
        next(zero)
        zero.load_state_dict(zero.state_dict())
        with pytest.raises(msd.StateError, match=r"rank 1 .* rank 0"):
            one.load_state_dict(early)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 18}, "seed"),
        ({"batch": {"sequence_length": 64, "global_batch_size": 8}}, "batch"),
        ({"sources": {"web": {"rows": rows(2, 300, 20), "transforms": [{"kind": "tokens", "field": "ids"}]}}}, "web"),
    ],
)
def test_a_state_of_another_configuration_is_refused_by_the_part_that_differs(changes, named):
    with msd.start(config(), runtime="local") as engine:
        state = engine.client(0).state_dict()
    changed = {"mixture": {}, **changes} if "sources" in changes else changes
    with msd.start(config(**changed), runtime="local") as engine, pytest.raises(msd.StateError, match=named):
        engine.client(0).load_state_dict(state)


def test_a_run_resumes_on_another_mesh_with_the_same_samples_a_step():
    wide = config(mesh={"dp": 4}, num_microbatches=1)
    expected = [plan.membership_digest for plan in msd.plan(config(), steps=8)]
    with msd.start(config(), runtime="local") as engine:
        client = engine.client(0)
        for _ in range(4):
            next(client)
        state = client.state_dict()
    with msd.start(wide, runtime="local") as engine:
        engine.client(0).load_state_dict(state)
        assert [engine.plan(step).membership_digest for step in range(4, 8)] == expected[4:]


def test_which_names_file_and_row_of_every_document():
    settings = config()
    with msd.start(settings, runtime="local") as engine:
        batch = next(engine.client(0))
        entries = engine.which(0)
    mine = [(e["source"], e["ordinal"], e["part"]) for e in entries if 0 in e["ranks"]]
    assert mine == [tuple(sample_id) for sample_id in batch.sample_ids]
    entry = entries[0]
    row = settings.sources[entry["source"]].rows[entry["row"]]["ids"]
    document = batch.microbatches[entry["microbatch"]].input_ids[entry["offset"] : entry["offset"] + entry["length"]]
    assert document.tolist() == row[entry["start"] : entry["start"] + entry["length"]]


def test_stats_count_what_was_drawn():
    with msd.start(config(), runtime="local") as engine:
        client = engine.client(0)
        for _ in range(10):
            next(client)
        stats = engine.stats()
    assert stats["steps_planned"] == 10
    assert stats["sources"]["web"]["token_share"] == pytest.approx(0.7, abs=0.03)
    assert 0.9 < stats["fill"] <= 1.0


def test_stats_tell_what_was_left_out_and_why_a_run_gave_no_step():
    tokens = [{"kind": "tokens", "field": "ids"}]
    sources = {"web": {"rows": [{"ids": [1] * n} for n in (30, 4, 4)], "transforms": tokens, "max_epochs": 1}}
    sizes = {"sequence_length": 32, "global_batch_size": 2, "limits": {"attention": 100}, "oversize": "drop"}
    settings = config(sources=sources, mixture={}, batch=sizes, num_microbatches=1)
    with msd.start(settings, runtime="local") as engine:
        assert list(engine.client(0)) == []
        notes = engine.stats()["notes"]
    assert all(note.startswith("the end: ") for note in notes)
    assert "1 sample left out: attention > batch.limits.attention 100" in notes[1]
    assert "batch.last: pad delivers them" in notes[-1]
    with msd.start(settings.replace(batch={"last": "pad"}), runtime="local") as engine:
        assert len(list(engine.client(0))) == 1
        assert any(note.startswith("step 0: source 'web': 1 sample left out") for note in engine.stats()["notes"])


def test_finite_data_ends_for_every_rank_at_the_same_step():
    """Answers HF-7, TF-5, LH-5."""
    sources = {"web": {"rows": rows(3, 60, 20), "transforms": [{"kind": "tokens", "field": "ids"}], "max_epochs": 1}}
    settings = config(
        sources=sources,
        mixture={},
        batch={"sequence_length": 128, "global_batch_size": 4, "last": "pad"},
        num_microbatches=1,
    )
    with msd.start(settings, runtime="local") as engine:
        steps = [[batch.step for batch in engine.client(rank)] for rank in range(2)]
    assert steps[0] == steps[1]
    assert len(steps[0]) >= 2


def test_a_closed_engine_says_so_and_closes_once():
    engine = msd.start(config(), runtime="local")
    client = engine.client(0)
    engine.close()
    engine.close()
    with pytest.raises(msd.ClosedError, match="closed"):
        next(client)
    with pytest.raises(msd.ConfigError, match="no engine runs"):
        msd.connect(engine.address, rank=0)


def test_connect_reaches_the_engine_by_its_address():
    with msd.start(config(), runtime="local") as engine, msd.connect(engine.address, rank=1) as client:
        assert next(client).rank == 1

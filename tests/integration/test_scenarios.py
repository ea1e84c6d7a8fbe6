"""Failures that users of other systems reported, as tests of the local engine; each is named after its ID.

`docs/explanation/failures.md` lists them, with those that other tests answer.
"""

import json
from collections import Counter

import numpy as np
import pytest

import msd
from msd.errors import StateError

TOKENS = [{"kind": "tokens"}]


def rows(count, mean, *, spread=0.4, longest=10_000, seed=1):
    draw = np.random.Generator(np.random.Philox(key=seed))
    lengths = np.clip(draw.lognormal(np.log(mean), spread, count).astype(int), 2, longest)
    return [{"ids": np.full(length, row % 900 + 1)} for row, length in enumerate(lengths)]


def source(given, **settings):
    return {"rows": given, "transforms": TOKENS, "shuffle": {"block_bytes": "8KiB"}} | settings


def config(sources, **settings):
    sequence_length = settings.pop("sequence_length", 256)
    return msd.Config(
        **{
            "sources": sources,
            "batch": {"sequence_length": sequence_length, "global_batch_size": 8, "last": "pad"},
            "mesh": {"dp": 2},
            "num_microbatches": 2,
        }
        | settings
    )


def ids(engine, steps=None):
    """The sample ids of each step over all ranks."""
    clients = [engine.client(rank) for rank in range(engine.mesh.world_size)]
    found = []
    while steps is None or len(found) < steps:
        batches = [next(client, None) for client in clients]
        if batches[0] is None:
            return found
        found.append(sorted(sample_id for batch in batches for sample_id in batch.sample_ids))
    return found


def run(settings, steps=None):
    with msd.start(settings, runtime="local") as engine:
        return ids(engine, steps)


def once(sources, **settings):
    """A run over one epoch of each source, and how often each row was delivered."""
    sources = {name: {"max_epochs": 1, "on_exhausted": "drop"} | given for name, given in sources.items()}
    return Counter((name, ordinal) for step in run(config(sources, **settings)) for name, ordinal, _ in step)


def test_EN_1_weights_in_tokens_hold_whatever_the_document_length():
    settings = config(
        {"web": source(rows(3000, 40)), "books": source(rows(500, 400, longest=1024))}, sequence_length=1024
    )
    with msd.start(settings, runtime="local") as engine:
        ids(engine, 25)
        shares = engine.stats()["sources"]
    assert abs(shares["web"]["token_share"] - 0.5) < 0.01
    assert shares["web"]["samples"] > 5 * shares["books"]["samples"]


@pytest.mark.parametrize("method", ["best_fit", "concat", "none"])
def test_EN_3_the_end_of_a_source_flushes_what_packing_still_held(method):
    batch = {"sequence_length": 256, "global_batch_size": 8, "last": "pad", "packing": {"method": method}}
    delivered = once(
        {"web": source(rows(211, 70, longest=256)), "books": source(rows(53, 120, longest=256))}, batch=batch
    )
    assert set(delivered) == {("web", n) for n in range(211)} | {("books", n) for n in range(53)}
    assert method == "concat" or set(delivered.values()) == {1}


def test_HF_4_a_source_of_weight_zero_and_a_source_without_rows_never_block():
    sources = {"web": source(rows(400, 40)), "off": source(rows(10, 40)), "empty": source([])}
    found = run(config(sources, mixture={"weights": {"web": 1, "off": 0, "empty": 5}}), steps=5)
    assert {name for step in found for name, _, _ in step} == {"web"}


def test_HF_5_each_row_comes_exactly_once_beside_an_empty_source():
    delivered = once({"web": source(rows(97, 40)), "empty": source([]), "books": source(rows(31, 90, longest=256))})
    assert delivered == Counter({("web", n): 1 for n in range(97)} | {("books", n): 1 for n in range(31)})


@pytest.mark.parametrize("count", [1, 2, 3])
def test_MS_12_a_source_smaller_than_a_batch_is_legal(count):
    assert once({"tiny": source(rows(count, 40))}) == Counter({("tiny", n): 1 for n in range(count)})


def test_MS_7_progress_counts_rows_read_not_samples_that_a_filter_let_through():
    def every_third(sample):
        return sample if sample["ids"][0] % 3 == 0 else None

    settings = config({"web": source(rows(600, 40), transforms=[every_third, *TOKENS])})
    whole = run(settings, steps=6)
    with msd.start(settings, runtime="local") as engine:
        client = engine.client(0)
        next(client), next(client)
        state = json.loads(json.dumps(client.state_dict()))
    with msd.start(settings, runtime="local") as engine:
        engine.client(0).load_state_dict(state)
        assert ids(engine, 4) == whole[2:]


def test_HF_20_the_epoch_is_part_of_the_state():
    settings = config({"web": source(rows(60, 60))})
    whole = run(settings, steps=9)
    assert max(ordinal for step in whole for _, ordinal, _ in step) > 3 * 60
    with msd.start(settings, runtime="local") as engine:
        client = engine.client(0)
        for _ in range(7):
            next(client)
        state = client.state_dict()
    with msd.start(settings, runtime="local") as engine:
        engine.client(0).load_state_dict(state)
        assert ids(engine, 2) == whole[7:]


@pytest.mark.parametrize("taken", [0, 1, 2, 3, 4, 5, 6])
def test_VE_1_a_state_from_any_boundary_loses_no_step(taken):
    settings = config({"web": source(rows(120, 60), max_epochs=1)})
    whole = run(settings)
    with msd.start(settings, runtime="local") as engine:
        client = engine.client(0)
        for _ in range(min(taken, len(whole))):
            next(client)
        state = client.state_dict()
    with msd.start(settings, runtime="local") as engine:
        engine.client(0).load_state_dict(state)
        assert ids(engine) == whole[taken:]


def test_HF_19_resume_does_not_replay_what_was_consumed():
    """Answers LH-1."""
    settings = config({"web": source(rows(4000, 60))})
    with msd.start(settings, runtime="local") as engine:
        client = engine.client(0)
        for _ in range(40):
            next(client)
        state = client.state_dict()
        examined_before = engine.stats()["sources"]["web"]["rows_examined"]
    with msd.start(settings, runtime="local") as engine:
        client = engine.client(0)
        client.load_state_dict(state)
        next(client)
        assert engine.stats()["sources"]["web"]["rows_examined"] < examined_before / 5


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"seed": 3}, "seed"),
        ({"sources": {"web": source(rows(300, 60), shuffle=False)}}, "sources.web.order"),
        ({"sources": {"web": source(rows(300, 61))}}, "sources.web.data"),
        (
            {"sources": {"web": source(rows(300, 60), transforms=[{"kind": "tokens", "append_eos_id": 2}])}},
            "transforms",
        ),
        ({"mixture": {"unit": "samples"}}, "mixture"),
    ],
)
def test_EN_15_a_changed_setting_of_the_order_is_refused_by_name(change, part):
    settings = {"sources": {"web": source(rows(300, 60))}}
    with msd.start(config(**settings), runtime="local") as engine:
        client = engine.client(0)
        next(client)
        state = client.state_dict()
    changed = settings | change
    with msd.start(config(**changed), runtime="local") as engine, pytest.raises(StateError, match=part):
        engine.client(0).load_state_dict(state)


def test_LH_2_a_state_of_another_version_is_refused_with_both_versions():
    with msd.start(config({"web": source(rows(100, 60))}), runtime="local") as engine:
        client = engine.client(0)
        state = client.state_dict() | {"version": 0}
        with pytest.raises(StateError, match="the state has version=0, this run has version=3"):
            client.load_state_dict(state)


def test_HF_6_sources_of_equal_data_come_in_unlike_orders():
    given = rows(200, 60)
    with msd.start(config({"one": source(given), "two": source(given)}), runtime="local") as engine:
        ids(engine, 4)
        found = {name: [] for name in ("one", "two")}
        for step in range(4):
            for document in sorted(engine.which(step), key=lambda found: found["ordinal"]):
                found[document["source"]].append(document["row"])
    shared = min(len(found["one"]), len(found["two"]))
    assert found["one"][:shared] != found["two"][:shared]


def test_WD_4_epochs_come_in_unlike_orders():
    with msd.start(config({"web": source(rows(80, 60))}), runtime="local") as engine:
        ids(engine, 8)
        row_of = {d["ordinal"]: d["row"] for step in range(8) for d in engine.which(step)}
    epochs = [[row_of[ordinal] for ordinal in range(start, start + 80)] for start in (0, 80)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(80))
    assert epochs[0] != epochs[1]


def test_TT_9_each_source_ends_by_its_own_rule():
    sources = {
        "once": source(rows(30, 60), max_epochs=1, on_exhausted="drop"),
        "ever": source(rows(30, 60)),
    }
    found = run(config(sources), steps=8)
    assert max(ordinal for step in found for name, ordinal, _ in step if name == "once") == 29
    assert {name for name, _, _ in found[-1]} == {"ever"}
    sources["once"]["on_exhausted"] = "stop"
    assert len(run(config(sources))) < 8


def test_VB_3_whatever_is_left_out_is_counted():
    def odd(sample):
        if sample["ids"][0] % 10 == 0:
            raise ValueError("a multiple of ten")
        return sample if sample["ids"][0] % 2 else None

    given = source(rows(100, 60), max_epochs=1, transforms=[odd, *TOKENS], on_error={"max_rate": 0.5})
    with msd.start(config({"web": given}), runtime="local") as engine:
        delivered = [sample_id for step in ids(engine) for sample_id in step]
        counts = engine.stats()["sources"]["web"]
    assert (counts["failed_rows"], counts["filtered_rows"], len(delivered)) == (10, 40, 50)


def test_PV_1_every_row_of_a_step_can_be_named_with_its_place():
    settings = config({"web": source(rows(100, 60))})
    with msd.start(settings, runtime="local") as engine:
        steps = ids(engine, 3)
        for step, found in enumerate(steps):
            named = engine.which(step)
            assert sorted((d["source"], d["ordinal"], d["part"]) for d in named) == found
            assert all({"shard", "row", "epoch", "bucket", "microbatch", "offset"} <= set(d) for d in named)

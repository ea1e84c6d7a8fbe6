"""A state of another run is refused by the settings that differ, with both values."""

import json

import pytest

import msd
from msd.errors import StateError

SOURCE = {"rows": [{"text": f"row {n}"} for n in range(40)], "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}]}


def config(**settings):
    whole = {
        "sources": {"a": SOURCE, "b": SOURCE},
        "batch": {"sequence_length": 64, "global_batch_size": 2},
        "mesh": {"dp": 1},
        "num_microbatches": 1,
        "runtime": {"kind": "local"},
    }
    return msd.Config(**whole | settings)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    with msd.start(config()) as engine, engine.client(rank=0) as client:
        next(client)
        return json.loads(json.dumps(client.state_dict()))


def refusal(saved, changed):
    with msd.start(changed) as engine, engine.client(rank=0) as client, pytest.raises(StateError) as caught:
        client.load_state_dict(saved)
    return str(caught.value)


def test_settings_are_kept_as_they_are_and_sources_as_fingerprints(saved):
    identity = saved["identity"]
    assert identity["seed"] == 17
    assert identity["mixture.weights"] == {"a": 1.0, "b": 1.0}
    assert identity["batch.sequence_length"] == 64
    assert identity["batch.packing.method"] == "best_fit"
    assert len(identity["sources.a.data"]) == 24


def test_every_setting_that_differs_is_named_with_both_values(saved):
    said = refusal(saved, config(seed=5, batch={"sequence_length": 128, "global_batch_size": 2}))
    assert "seed is 5 here and 17 in the state" in said
    assert "batch.sequence_length is 128 here and 64 in the state" in said
    assert "sources" not in said
    assert said.count("\n") == 0


def test_weights_that_differ_are_shown(saved):
    said = refusal(saved, config(mixture={"weights": {"a": 3, "b": 1}}))
    assert 'mixture.weights is {"a": 3.0, "b": 1.0} here and {"a": 1.0, "b": 1.0} in the state' in said
    assert "batch" not in said


def test_a_source_that_is_not_there_is_named_once(saved):
    said = refusal(saved, config(sources={"a": SOURCE, "c": SOURCE}))
    assert said.count("sources.b is in the state and not in this run") == 1
    assert said.count("sources.c is in this run and not in the state") == 1


def test_a_changed_source_says_which_part_changed(saved):
    changed = config().replace(sources={"a": {"split": [0.0, 0.5]}, "b": {"shuffle": False}})
    said = refusal(saved, changed)
    assert "sources.a.data is another than in the state (other files or rows: names, sizes, row counts or the" in said
    assert "sources.b.order is another than in the state (shuffle" in said
    assert "sources.b.data" not in said


def test_the_same_configuration_is_not_refused(saved):
    with msd.start(config()) as engine, engine.client(rank=0) as client:
        client.load_state_dict(saved)
        assert next(client).step == 1

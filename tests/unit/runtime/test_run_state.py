"""A state of another run is refused by the settings that differ, with both values."""

import copy
import json

import pytest

import msd
from msd.errors import StateError
from msd.runtime.state import progress_of

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


def leaves(value, path=()):
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from leaves(inner, (*path, key))


def test_a_state_of_which_one_value_was_changed_is_refused(saved):
    identity = saved["identity"]
    for path in list(leaves(saved))[1:]:
        for junk in (None, -1, 10**6, "x", [], {"a": object()}, 1.5, float("nan")):
            state = copy.deepcopy(saved)
            place = state
            for key in path[:-1]:
                place = place[key]
            if place[path[-1]] == junk:
                continue
            place[path[-1]] = junk
            with pytest.raises(StateError, match="cannot resume") as caught:
                progress_of(state, identity)
            assert "\n" not in str(caught.value)


def test_a_changed_state_says_so_before_what_differs(saved):
    state = copy.deepcopy(saved)
    state["planner"]["step"] += 1
    assert refusal(state, config()) == (
        "cannot resume: the state was changed after it was saved; pass what state_dict() returned"
    )


def test_a_state_that_was_restored_saves_itself_unchanged(saved):
    with msd.start(config()) as engine, engine.client(rank=0) as client:
        client.load_state_dict(saved)
        assert json.loads(json.dumps(client.state_dict())) == saved

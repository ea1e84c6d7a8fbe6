"""A state of another run is refused by the settings that differ, with both values."""

import copy
import json
import logging
import random

import pytest

import msd
from msd.build import build_chains, build_orders, index_all
from msd.config.identity import identity
from msd.core.state import fingerprint
from msd.errors import StateError
from msd.runtime.state import progress_of, read_state, run_state, without_waiting

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


def identity_of(chosen):
    return identity(chosen, build_orders(chosen, index_all(chosen)), build_chains(chosen))


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
    sources = read_state(saved).identity
    assert len(sources["sources.a.data"]) == 12
    assert sources["sources.a.order"] == {"shuffled": True, "window": 1}


def test_every_setting_that_differs_is_named_with_both_values(saved):
    said = refusal(saved, config(seed=5, batch={"sequence_length": 128, "global_batch_size": 2}))
    assert "seed is 5 here and 17 in the state" in said
    assert "batch.sequence_length is 128 here and 64 in the state" in said
    assert "sources" not in said
    assert said.count("\n") == 0


def test_weights_that_differ_are_allowed_and_told_once(saved, caplog):
    changed = identity_of(config(mixture={"weights": {"a": 3, "b": 1}}))
    with caplog.at_level(logging.INFO, logger="msd"):
        assert progress_of(saved, changed) == progress_of(saved, changed) == read_state(saved).progress
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(
        'resume at step 1: mixture.weights is {"a": 3.0, "b": 1.0} here and {"a": 1.0, "b": 1.0} in the state (allowed'
    )


def test_sources_that_came_or_went_are_allowed_and_named_once(saved, caplog):
    with caplog.at_level(logging.INFO, logger="msd"):
        progress_of(saved, identity_of(config(sources={"a": SOURCE, "c": SOURCE})))
    assert caplog.text.count("sources.b is in the state and not in this run") == 1
    assert caplog.text.count("sources.c is in this run and not in the state") == 1


def test_a_changed_source_says_which_part_changed(saved):
    changed = config().replace(sources={"a": {"split": [0.0, 0.5]}, "b": {"shuffle": False}})
    said = refusal(saved, changed)
    assert "sources.a.data is another than in the state (other files or rows: names, sizes, row counts or the" in said
    assert 'sources.b.order is {"shuffled": false, "window": 1} here and {"shuffled": true, "window": 1} in the' in said
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
    identity = read_state(saved).identity
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
    state["step"] += 1
    assert refusal(state, config()) == (
        "cannot resume: the state was changed after it was saved; pass what state_dict() returned"
    )


def test_a_state_that_was_restored_saves_itself_unchanged(saved):
    with msd.start(config()) as engine, engine.client(rank=0) as client:
        client.load_state_dict(saved)
        assert json.loads(json.dumps(client.state_dict())) == saved


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "the state has no 'kind'"),
        ({}, "the state has no 'kind'"),
        ({"kind": "msd"}, "the state has no 'version'"),
        ({"kind": "other", "version": 9}, "kind='other'"),
        ({"kind": "msd", "version": 2}, "the state has version=2, this run has version=3"),
        ({"kind": "msd", "version": 4}, "version 4, written by a later release of msd; this one reads version 3"),
        ({"kind": "msd", "version": 3, "order_version": 9}, "order_version=9"),
        ({"kind": "msd", "version": 3, "order_version": 1}, "the state is incomplete"),
    ],
)
def test_what_is_no_state_of_this_release_is_refused_by_name(state, said):
    with pytest.raises(StateError, match="cannot resume") as caught:
        progress_of(state, {})
    assert said in str(caught.value)


def test_a_state_mixed_from_two_is_refused(saved):
    with msd.start(config()) as engine, engine.client(rank=0) as client:
        for _ in range(3):
            next(client)
        later = client.state_dict()
    for part in ("step", "packed", "digest"):
        with pytest.raises(StateError, match="was changed after it was saved"):
            progress_of({**saved, part: later[part]}, read_state(saved).identity)


def test_a_seed_is_changed_only_by_force_and_nothing_that_waits_survives_it(saved, caplog):
    changed = identity_of(config(seed=5))
    with pytest.raises(
        StateError, match=r"seed is 5 here and 17 in the state \(rows come in another order.*force=True"
    ):
        progress_of(saved, changed)
    progress = progress_of(saved, changed, force=True)
    assert progress["carry"] == []
    assert "seed is 5 here and 17 in the state (forced:" in caplog.text


def test_a_state_does_not_say_that_it_was_forced(saved):
    changed = identity_of(config(batch={"sequence_length": 64, "global_batch_size": 4}))
    progress = progress_of(saved, changed, force=True)
    assert progress["force"] is True
    assert "force" not in read_state(run_state(progress, changed)).progress


def test_what_can_never_be_resumed_is_refused_by_force_too(saved):
    changed = identity_of(config(batch={"sequence_length": 128, "global_batch_size": 2}, seed=5))
    with pytest.raises(StateError) as caught:
        progress_of(saved, changed, force=True)
    assert "batch.sequence_length is 128 here and 64 in the state" in str(caught.value)
    assert "seed" not in str(caught.value)
    assert "force" not in str(caught.value)


def test_samples_that_wait_go_from_sources_whose_rows_are_made_otherwise():
    progress = {
        "sources": {"a": {"ordinal": 5, "part": 2, "start": 3}, "b": {"ordinal": 7, "part": 1}},
        "carry": [{"source": "a"}, {"source": "b"}],
    }
    assert without_waiting(progress, {"a"}) == {
        "sources": {"a": {"ordinal": 6, "part": 0}, "b": {"ordinal": 7, "part": 1}},
        "carry": [{"source": "b"}],
    }


def far_along(names, draw):
    """Return a progress as a long run has it."""
    sources = {}
    for name in names:
        rows = draw.randrange(10**5, 10**8)
        ordinal = draw.randrange(3 * rows)
        sources[name] = {
            "rows": rows,
            "ordinal": ordinal,
            "part": draw.choice([0] * 9 + [1]),
            "tokens": ordinal * draw.randrange(200, 900),
            "samples": int(ordinal * 0.98),
            "ended": False,
            "bad": [],
            "survivor_epoch": ordinal // rows,
            "barren": [ordinal // rows, 0, draw.randrange(40), 0, 0, 0, 0],
            "credit": draw.randrange(-(2**52), 2**52),
        }
    carry = [
        {
            "source": draw.choice(names),
            "ordinal": draw.randrange(10**8),
            "part": 0,
            "start": 0,
            "length": draw.randrange(1, 4096),
            "num_valid": draw.randrange(4096),
            "num_image_tokens": draw.choice([0, 0, 256]),
            "num_images": 0,
            "num_patches": 0,
            "runs": [],
        }
        for _ in range(32)
    ]
    return {"version": 1, "unit": "tokens", "step": 10**6, "sources": sources, "carry": carry}


@pytest.mark.parametrize("num_sources", [1, 300, 1000])
def test_a_state_takes_4_kb_and_64_bytes_for_each_source(num_sources):
    """Answers GR-8."""
    draw = random.Random(num_sources)
    names = [f"{draw.choice(['web', 'code', 'books', 'photos'])}_{n:04d}" for n in range(num_sources)]
    weights = {name: draw.random() for name in names}
    parts = identity_of(config(sources=dict.fromkeys(names, SOURCE), mixture={"weights": weights}))
    parts |= {f"sources.{name}.data": fingerprint(name)[:12] for name in names}
    progress = far_along(names, draw)
    state = run_state(progress, parts)
    assert len(json.dumps(state)) <= 4096 + 64 * num_sources
    again = read_state(json.loads(json.dumps(state)))
    assert (again.progress, again.identity) == (progress, parts)

"""Mixtures from a configuration to what ranks receive: states know of them, caps hold, resumes go on."""

import json
import logging
import sys
from collections import Counter

import pytest

import msd
from msd.build import build_chains, build_orders, build_planner, index_all
from msd.cli.main import run
from msd.cli.remarks import is_drawn
from msd.config.identity import identity
from msd.errors import ConfigError, StateError
from msd.runtime.state import read_state

BYTES = [{"kind": "tokenize", "tokenizer": "bytes"}]
SIZES = {"web": 90, "python": 40, "rust": 20, "sw": 10}
NESTED = {"web": 1, "code": {"weight": 2, "weights": {"python": 3, "rust": 1}}, "low": {"weights": {"sw": 1}}}


def config(mixture, **settings):
    rows = {name: [{"text": "x" * (5 + n % 23)} for n in range(count)] for name, count in SIZES.items()}
    whole = {
        "sources": {name: {"rows": held, "transforms": BYTES} for name, held in rows.items()},
        "mixture": mixture,
        "batch": {"sequence_length": 64, "global_batch_size": 8},
        "mesh": {"dp": 2},
        "num_microbatches": 2,
        "runtime": {"kind": "local"},
    }
    return msd.Config(**whole | settings)


def ids(engine, steps=None):
    clients = [engine.client(rank) for rank in range(engine.mesh.world_size)]
    found = []
    while steps is None or len(found) < steps:
        batches = [next(client, None) for client in clients]
        if batches[0] is None:
            break
        found.append(sorted(sample_id for batch in batches for sample_id in batch.sample_ids))
    return found


CLOCKED = {
    "weights": NESTED,
    "clock": "tokens",
    "schedule": [{"at": 1500, "ramp": 2000, "mode": "temperature", "temperature": 2}],
    "repetitions": 3,
    "on_exhausted": "drop",
}


@pytest.mark.parametrize("taken", [0, 1, 4, 9])
def test_a_nested_mixture_with_a_ramp_in_tokens_and_caps_resumes_where_it_stood(taken):
    """Answers HF-3, LD-1."""
    settings = config(CLOCKED)
    with msd.start(settings) as engine:
        whole = ids(engine, 14)
    with msd.start(settings) as engine:
        client = engine.client(0)
        for _ in range(taken):
            next(client)
        state = json.loads(json.dumps(client.state_dict()))
    with msd.start(settings.replace(mesh={"dp": 4}, num_microbatches=1)) as engine:
        engine.client(0).load_state_dict(state)
        assert ids(engine, 14 - taken) == whole[taken:]


def test_no_source_gives_more_than_its_repetitions_and_the_smaller_cap_holds():
    mixture = {"repetitions": {"web": 1, "python": 2.5, "rust": 0.25, "sw": 3}, "on_exhausted": "drop"}
    settings = config(mixture, batch={"sequence_length": 64, "global_batch_size": 8, "last": "pad"})
    settings = settings.replace(sources={"sw": {"max_epochs": 2}})
    with msd.start(settings) as engine:
        given = Counter(source for step in ids(engine) for source, _, _ in step)
    assert given == {"web": 90, "python": 100, "rust": 5, "sw": 20}


@pytest.mark.parametrize(
    ("end", "message"), [("error", "source 'sw' is exhausted at step"), ("stop", None), (None, None)]
)
def test_what_a_mixture_says_of_the_end_holds_for_sources_that_say_nothing(end, message):
    mixture = {"repetitions": {"sw": 4}} | ({} if end is None else {"on_exhausted": end})
    with msd.start(config(mixture)) as engine:
        if message is not None:
            with pytest.raises(msd.EngineError, match=message):
                ids(engine)
        else:
            assert 0 < len(ids(engine)) < 10


@pytest.fixture(scope="module")
def saved():
    with msd.start(config({})) as engine, engine.client(rank=0) as client:
        next(client)
        return json.loads(json.dumps(client.state_dict()))


@pytest.mark.parametrize(
    ("mixture", "said"),
    [
        ({"mode": "proportional"}, "mixture.mode is proportional in this run and not set in the state"),
        ({"mode": "temperature", "temperature": 2}, "mixture.temperature is 2.0 in this run and not set in the state"),
        ({"clock": "epoch"}, "mixture.clock is epoch in this run and not set in the state"),
        ({"weights": NESTED}, 'mixture.weights is {"web": 1.0, "code": {"weight": 2.0, "weights": {"python": 3.0, "ru'),
        ({"repetitions": {"sw": 50}}, 'sources.sw.end is {"max_epochs": 50.0, "then": "stop"} here and {"max_e'),
        ({"schedule": [{"step": 4, "mode": "proportional"}]}, 'mixture.schedule is [{"step": 4, "weights": null,'),
    ],
)
def test_a_run_goes_on_with_another_mixture_and_says_what_changed(saved, mixture, said, caplog):
    with caplog.at_level(logging.INFO, logger="msd"), msd.start(config(mixture)) as engine:
        client = engine.client(rank=0)
        client.load_state_dict(saved)
        assert next(client).step == 1
    assert said in caplog.text


def test_another_unit_is_refused_since_what_sources_are_owed_is_counted_in_it(saved):
    said = r"mixture\.unit is loss_tokens here and tokens in the state"
    with msd.start(config({"unit": "loss_tokens"})) as engine, pytest.raises(StateError, match=said):
        engine.client(rank=0).load_state_dict(saved)


def test_the_state_of_a_plain_mixture_says_nothing_of_what_it_does_not_use(saved):
    named = {key for key in saved["identity"] if key.startswith("mixture.") or key == "num_microbatches"}
    assert named == {"mixture.unit", "mixture.weights", "mixture.schedule"}
    assert "mixture" not in read_state(saved).progress


@pytest.fixture
def steering(tmp_path, monkeypatch):
    (tmp_path / "steering.py").write_text("def even(shares, losses, step):\n    return dict.fromkeys(shares, 1.0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "steering", raising=False)
    yield
    sys.modules.pop("steering", None)


def built(mixture):
    settings = config(mixture)
    orders = build_orders(settings, index_all(settings))
    return settings, orders


def test_feedback_is_named_by_dotted_path_and_its_code_is_part_of_the_identity(steering):
    settings, orders = built({"feedback": "steering:even"})
    planner = build_planner(settings, orders)
    planner.report({"web": 1.0}, at_step=0)
    chains = build_chains(settings)
    first = identity(settings, orders, chains)["mixture.feedback"]
    other = config({"feedback": {"function": lambda *_: {}, "every": 100}})
    assert first["every"] == 100
    assert identity(other, orders, chains)["mixture.feedback"]["function"] != first["function"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("steering:evn", "mixture.feedback: 'steering' has no 'evn'; did you mean 'even'"),
        ("nowhere:even", "mixture.feedback: cannot import 'nowhere'"),
        ("steering:__name__", "mixture.feedback 'steering:__name__' is str; name a function"),
    ],
)
def test_feedback_that_is_not_there_is_refused_by_name(steering, path, message):
    with pytest.raises(ConfigError, match=message):
        build_planner(*built({"feedback": path}))


def outlook(tmp_path, capsys, mixture, steps=12):
    """What `msd plan --json` says of each source of a file per source, of four sizes."""
    for name, count in SIZES.items():
        lines = [json.dumps({"text": "x" * (5 + n % 23)}) for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    given = {
        "sources": {name: {"path": f"{name}.jsonl", "transforms": BYTES} for name in SIZES},
        "mixture": mixture,
        "batch": {"sequence_length": 64, "global_batch_size": 8},
        "mesh": {"dp": 2},
        "num_microbatches": 2,
    }
    (tmp_path / "run.yaml").write_text(json.dumps(given))
    assert run(["plan", str(tmp_path / "run.yaml"), "--steps", str(steps), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["sources"]


def test_the_targets_that_plan_shows_go_by_size(tmp_path, capsys):
    shown = outlook(tmp_path, capsys, {"mode": "proportional", "unit": "samples"})
    for name, count in SIZES.items():
        assert shown[name]["target"] == pytest.approx(count / sum(SIZES.values()))
        assert shown[name]["sample_share"] == pytest.approx(shown[name]["target"], abs=0.02)


def test_the_targets_that_plan_shows_follow_the_clock(tmp_path, capsys):
    clocked = {"clock": "samples", "schedule": [{"at": 150, "weights": {"web": 1}}], "weights": {"rust": 1}}
    shown = outlook(tmp_path, capsys, clocked | {"unit": "loss_tokens"})
    assert 0.2 < shown["web"]["target"] < 0.8
    assert shown["web"]["target"] + shown["rust"]["target"] == pytest.approx(1)
    assert shown["web"]["loss_token_share"] == pytest.approx(shown["web"]["target"], abs=0.03)


def test_a_source_of_a_group_that_only_a_later_stage_draws_is_not_idle():
    schedule = [{"step": 10, "weights": {"code": {"weights": {"rust": 1}}}}]
    settings = config({"weights": {"web": 1}, "schedule": schedule})
    assert [name for name in SIZES if is_drawn(settings, name)] == ["web", "rust"]
    assert all(is_drawn(config({"feedback": "a:b", "weights": {"web": 1}}), name) for name in SIZES)

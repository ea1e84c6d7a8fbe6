"""Arguments of a wrong kind are refused in one line, and a start that fails leaves nothing behind."""

import os

import numpy as np
import pytest

import msd
from msd.errors import ConfigError, MsdError

ROWS = [{"ids": [n, n + 1, n + 2]} for n in range(60)]
WRONG = [None, "0", 1.5, True, [], {}]


def config(**settings):
    source = {"rows": ROWS, "transforms": [{"kind": "tokens"}], "max_epochs": 1, **settings.pop("source", {})}
    return msd.Config(
        sources={"a": source, **settings.pop("more", {})},
        mesh={"dp": 1},
        num_microbatches=1,
        batch={"sequence_length": 32, "global_batch_size": 2},
        cost={"backbone": {"kind": "tokens"}},
        runtime={"kind": "local"},
        **settings,
    )


@pytest.fixture(scope="module")
def engine():
    with msd.start(config()) as engine:
        yield engine


def refusal(make):
    with pytest.raises(ConfigError) as caught:
        make()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("value", WRONG)
def test_ranks_and_steps_are_integers(engine, value):
    assert "rank must be an integer" in refusal(lambda: engine.client(value))
    assert "rank must be an integer" in refusal(lambda: msd.connect(engine, value))
    assert "step must be an integer" in refusal(lambda: engine.plan(value))
    assert "step must be an integer" in refusal(lambda: engine.which(value))


def test_a_step_before_the_first_is_refused(engine):
    assert "step must be 0 or more, got -1" in refusal(lambda: engine.plan(-1))
    assert "step must be 0 or more, got -1" in refusal(lambda: engine.which(-1))


def test_integers_of_numpy_count(engine):
    assert engine.plan(np.int64(0)).step == 0
    assert type(engine.client(np.int32(0)).rank) is int


@pytest.mark.parametrize("address", [5, None, [], b"local://1"])
def test_an_address_is_text_or_an_engine(address):
    assert "engine.address or an engine" in refusal(lambda: msd.connect(address, 0))


@pytest.mark.parametrize("steps", [-1, "x", 1.5, True])
def test_the_number_of_steps_is_checked_before_anything_is_read(steps):
    assert "steps must be" in refusal(lambda: msd.plan(config(), steps=steps))


@pytest.mark.parametrize("mesh", [5, "dp=2", ["dp"], {1: 1}, {"dp": "x"}, {"dp": 2.0}, {"dp": 0}, {"zz": 1}])
def test_another_mesh_is_axis_sizes(mesh):
    assert "mesh" in refusal(lambda: msd.plan(config(), mesh=mesh))


@pytest.mark.parametrize("value", [5, None, {}, "run.yaml"])
def test_a_run_is_of_a_configuration_and_an_explanation_of_a_plan(value):
    assert "takes a configuration" in refusal(lambda: msd.plan(value))
    assert "takes a configuration" in refusal(lambda: msd.start(value))
    assert "takes a plan" in refusal(lambda: msd.explain(value))


def first_batch(chosen):
    # An engine that does not start cannot be closed.
    return next(msd.start(chosen).client(0))


def open_files():
    return {os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if os.path.exists(
        f"/proc/self/fd/{number}")}  # fmt: skip


def failing(tmp_path):
    bad = {"rows": ROWS, "transforms": [{"kind": "tokens"}]}
    good_file, foreign = tmp_path / "new" / "q.jsonl", tmp_path / "foreign.txt"
    foreign.write_text("my notes")
    listed = {"max_rate": 1.0, "quarantine": str(good_file)}
    return {
        "another quarantine": config(
            source={"on_error": listed}, more={"b": {**bad, "on_error": {"quarantine": str(foreign)}}}
        ),
        "strategy": config(source={"on_error": listed}, strategy=lambda graph, context: None),
        "cost function": config(source={"on_error": listed}, more={"b": {**bad, "transforms": ["nosuch:f"]}}),
        "a source without a row": config(source={"on_error": listed, "rows": []}),
    }


@pytest.mark.parametrize("what", ["another quarantine", "strategy", "cost function", "a source without a row"])
def test_a_start_that_fails_leaves_nothing_open_and_writes_nothing(tmp_path, what):
    chosen, before = failing(tmp_path)[what], open_files()
    with pytest.raises(MsdError):
        first_batch(chosen)
    assert open_files() <= before
    assert not (tmp_path / "new" / "q.jsonl").exists()

"""`msd which`: the rows of a step, from the beginning or from a saved state."""

import json

import pytest

import msd
from msd.checkpoint import open_store
from msd.cli.main import run
from msd.core.journal import SkipRows
from msd.runtime.statefile import find_state, with_edits

YAML = """
sources:
  web: {path: web.jsonl, transforms: [{kind: tokenize, tokenizer: bytes}], max_epochs: 2, on_exhausted: stop}
batch: {sequence_length: 64, global_batch_size: 2}
mesh: {dp: 2}
num_microbatches: 1
"""


@pytest.fixture
def config(tmp_path):
    rows = [{"text": f"row {number} of a file" * (1 + number % 7)} for number in range(60)]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "config.yaml"
    path.write_text(YAML)
    return path


@pytest.fixture
def states(config):
    """States before steps 0 to 4."""
    with msd.start(msd.load_config(config), runtime="local") as engine, engine.client(0) as client:
        found = [client.state_dict()]
        for _ in range(4):
            next(client)
            found.append(client.state_dict())
    return found


def printed(capsys, *arguments):
    assert run(["which", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def failure(capsys, *arguments):
    status = run(["which", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return status, err


def of_engine(config, step):
    with msd.start(msd.load_config(config), runtime="local") as engine:
        return engine.which(step)


def test_it_lists_what_the_engine_says_of_the_step(config, capsys):
    found = printed(capsys, config, "--step", 3)
    assert found == {"step": 3, "documents": json.loads(json.dumps(of_engine(config, 3)))}


def test_a_rank_is_told_what_it_holds(config, capsys):
    both = [printed(capsys, config, "--step", 3, "--rank", rank)["documents"] for rank in range(2)]
    assert all(rank in entry["ranks"] for rank, entries in enumerate(both) for entry in entries)
    assert sorted(entry["ordinal"] for entries in both for entry in entries) == sorted(
        entry["ordinal"] for entry in of_engine(config, 3)
    )


@pytest.mark.parametrize("saved", [0, 2, 3])
def test_from_a_state_it_is_the_same(config, states, tmp_path, capsys, saved):
    file = tmp_path / "state.json"
    file.write_text(json.dumps(states[saved]))
    assert printed(capsys, config, "--step", 3, "--state", file) == printed(capsys, config, "--step", 3)


def test_of_a_checkpoint_the_nearest_snapshot_before_the_step_is_taken(config, states, tmp_path, capsys):
    store = open_store(str(tmp_path / "ckpt"))
    for step in (1, 4):
        store.save(states[step], step=step, run="r1", lineage="l")
    assert printed(capsys, config, "--step", 3, "--state", tmp_path / "ckpt") == printed(capsys, config, "--step", 3)
    status, error = failure(capsys, config, "--step", 0, "--state", tmp_path / "ckpt")
    assert status == 2
    assert "no snapshot of step 0 or before it" in error


def test_edits_of_the_state_are_heeded(config, states, tmp_path, capsys):
    ordinal = printed(capsys, config, "--step", 3)["documents"][-1]["ordinal"]
    edit = SkipRows(at_step=3, source="web", first=ordinal, last=ordinal)
    file = tmp_path / "state.json"
    file.write_text(json.dumps(states[2]))
    file.write_text(json.dumps(with_edits(find_state(str(file)).parts, [edit])))
    found = printed(capsys, config, "--step", 3, "--state", file)["documents"]
    assert ordinal not in {entry["ordinal"] for entry in found}


def test_people_read_a_table(config, capsys):
    assert run(["which", str(config), "--step", "1", "--rank", "0"]) == 0
    out = capsys.readouterr().out
    assert "step 1 · rank 0" in out
    assert "web.jsonl" in out


def test_what_is_not_there_is_said(config, states, tmp_path, capsys):
    file = tmp_path / "state.json"
    file.write_text(json.dumps(states[4]))
    assert failure(capsys, config, "--step", 2, "--state", file)[1].count("after step 2")
    assert "no step 5000" in failure(capsys, config, "--step", 5000)[1]
    assert "rank 7" in failure(capsys, config, "--rank", 7)[1]
    assert "has no value" in failure(capsys, config, "--state", tmp_path, "--storage", "key")[1]

"""`msd state`: what a state says, what differs, what is damaged, and what is left out of what comes."""

import json

import pytest

import msd
from msd.checkpoint import Lease, open_store
from msd.cli.main import run
from msd.core.journal import SkipRows, SkipSteps, Suspend, edits_from_state, edits_to_state, with_pending
from msd.core.state import wrapped
from msd.runtime.state import read_state, run_state

YAML = """
sources:
  web: {path: web.jsonl, transforms: [{kind: tokenize, tokenizer: bytes}]}
batch: {sequence_length: 64, global_batch_size: 2}
mesh: {dp: 1}
num_microbatches: 1
"""


@pytest.fixture
def config(tmp_path):
    (tmp_path / "web.jsonl").write_text("".join(json.dumps({"text": f"row {n}"}) + "\n" for n in range(60)))
    path = tmp_path / "config.yaml"
    path.write_text(YAML)
    return path


@pytest.fixture
def states(config):
    """States before steps 0 to 3."""
    with msd.start(msd.load_config(config), runtime="local") as engine, engine.client(0) as client:
        found = [client.state_dict()]
        for _ in range(3):
            next(client)
            found.append(client.state_dict())
    return found


@pytest.fixture
def ckpt(tmp_path, states):
    store = open_store(str(tmp_path / "ckpt"))
    for step in (1, 2):
        store.save(states[step], step=step, run="r1", lineage="l")
    return tmp_path / "ckpt"


@pytest.fixture
def state_file(tmp_path, states):
    path = tmp_path / "state.json"
    path.write_text(json.dumps(states[2]))
    return path


def printed(capsys, *arguments, status=0):
    assert run(["state", *map(str, arguments)]) == status
    return json.loads(capsys.readouterr().out)


def failure(capsys, *arguments, status):
    assert run(["state", *map(str, arguments)]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_show_tells_where_each_source_stands(capsys, state_file, states):
    told = printed(capsys, "show", state_file, "--json")
    progress = read_state(states[2]).progress
    assert told["step"] == 2
    assert told["bytes"] == len(json.dumps(states[2]))
    web = told["sources"]["web"]
    assert (web["ordinal"], web["epoch"], web["rows_per_epoch"]) == (progress["sources"]["web"]["ordinal"], 0, 60)
    assert (web["is"], web["credit"]) == ("live", progress["sources"]["web"]["credit"])
    assert told["samples_waiting"] == len(progress["carry"]) == web["waiting"]
    assert told["settings"]["seed"] == 17


def test_show_prints_a_table(capsys, state_file):
    assert run(["state", "show", str(state_file)]) == 0
    out, err = capsys.readouterr()
    assert "before step 2" in out
    assert "web" in out
    assert "samples wait" in err


def test_show_takes_a_snapshot_file_and_what_a_torch_loader_saved(capsys, ckpt, state_file, states):
    newest = open_store(str(ckpt)).newest()
    assert printed(capsys, "show", ckpt / newest.name, "--json")["step"] == 2
    state_file.write_text(json.dumps(wrapped(states[3])))
    assert printed(capsys, "show", state_file, "--json")["step"] == 3


def test_show_of_a_checkpoint_is_its_newest_or_the_step_asked_for(capsys, ckpt):
    assert printed(capsys, "show", ckpt, "--json")["step"] == 2
    told = printed(capsys, "show", ckpt, "--step", 1, "--json")
    assert (told["step"], told["run"]) == (1, "r1")
    assert "has no snapshot of step 7; it has those of steps 1, 2" in failure(
        capsys, "show", ckpt, "--step", 7, status=1
    )


def test_show_writes_the_state_to_restart_from(capsys, ckpt, config, states, tmp_path):
    out = tmp_path / "restart.json"
    assert run(["state", "show", str(ckpt), "--step", "1", "--out", str(out)]) == 0
    assert json.loads(out.read_text()) == states[1]
    capsys.readouterr()
    assert printed(capsys, "show", ckpt, "--step", 1, "--out", "-") == states[1]
    with msd.start(msd.load_config(config), runtime="local") as engine, engine.client(0) as client:
        client.load_state_dict(json.loads(out.read_text()))
        assert next(client).step == 1


def test_show_tells_edits_that_act_that_wait_and_that_were_journalled_since(capsys, ckpt, states):
    parts = read_state(states[2])
    acts, waits, later = (Suspend(at_step=step, source="web", who=who) for step, who in ((1, "a"), (5, "b"), (6, "c")))
    progress = with_pending({**parts.progress, "edits": edits_to_state([acts])}, [waits])
    store = open_store(str(ckpt))
    store.save(run_state(progress, parts.identity), step=2, run="r1", lineage="l")
    store.append({"edit": edits_to_state([later])[0]}, run="r1", lineage="l")
    told = printed(capsys, "show", ckpt, "--json")
    assert told["edits_in_force"] == edits_to_state([acts])
    assert told["edits_pending"] == edits_to_state([waits])
    assert told["edits_journalled_since"] == edits_to_state([later])
    assert told["sources"]["web"]["is"] == "suspended"
    assert run(["state", "show", str(ckpt)]) == 0
    assert "suspend: source web, who b" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "status", "says"),
    [(None, 2, "is not there"), ("{", 1, "is no state: it is not JSON"), ("{}", 1, "the state has no 'kind'")],
)
def test_what_is_no_state_is_one_line(capsys, tmp_path, content, status, says):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    assert says in failure(capsys, "show", path, status=status)


def test_a_checkpoint_that_is_not_there_is_no_file_with_one_state(capsys, tmp_path):
    said = failure(capsys, "show", tmp_path / "ckpt", "--step", "5", status=2)
    assert "is not there" in said
    assert "beside the configuration file" in said


def test_diff_against_the_configuration_it_was_saved_under_finds_nothing(capsys, state_file, config):
    assert printed(capsys, "diff", state_file, config, "--json") == {"differences": [], "positions": []}
    assert run(["state", "diff", str(state_file), str(config)]) == 0
    assert "nothing differs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "part", "rule", "status"),
    [
        ("mixture.weights={web: 2}", "mixture.weights", "allowed", 0),
        ("seed=3", "seed", "forced", 1),
        ("batch.sequence_length=128", "batch.sequence_length", "refused", 1),
    ],
)
def test_diff_tells_each_difference_with_its_rule(capsys, state_file, config, override, part, rule, status):
    (found,) = printed(capsys, "diff", state_file, config, override, "--json", status=status)["differences"]
    assert (found["part"], found["rule"]) == (part, rule)
    assert {"here", "state", "why"} <= set(found)
    assert run(["state", "diff", str(state_file), str(config), override]) == status
    assert rule in capsys.readouterr().out


def test_diff_of_two_states_tells_where_sources_stand(capsys, ckpt, state_file, states, tmp_path):
    later = tmp_path / "later.json"
    later.write_text(json.dumps(states[3]))
    told = printed(capsys, "diff", ckpt, later, "--json")
    assert told["differences"] == []
    assert {"what": "step", "state": 2, "here": 3} in told["positions"]
    assert printed(capsys, "diff", ckpt, state_file, "--json")["positions"] == []


def test_verify_finds_every_file_whole_and_who_holds_it(capsys, ckpt):
    store = open_store(str(ckpt))
    store.append({"edit": {}}, run="r1")
    Lease(store.folder, run="r9").acquire()
    told = printed(capsys, "verify", ckpt, "--json")
    assert [file["problem"] for file in told["files"]] == ["", "", ""]
    assert (told["lease"]["run"], told["lease"]["owner_is"]) == ("r9", "alive")
    assert run(["state", "verify", str(ckpt)]) == 0
    assert "held by run r9 (alive); snapshots: 2, journal entries: 1" in " ".join(capsys.readouterr().err.split())


def test_verify_fails_over_a_damaged_file_and_over_a_state_that_is_none(capsys, ckpt):
    store = open_store(str(ckpt))
    name = store.snapshots()[0].name
    (ckpt / name).write_bytes(b"torn")
    store.save({"kind": "msd"}, step=9, run="r1")
    told = printed(capsys, "verify", ckpt, "--json", status=1)
    problems = {file["step"]: file["problem"] for file in told["files"]}
    assert problems[1] == "its content is not what was written: torn or changed"
    assert "the state has no 'version'" in problems[9]
    assert problems[2] == ""


def test_verify_of_a_folder_without_a_checkpoint_is_misuse(capsys, tmp_path):
    assert "there is no snapshot in" in failure(capsys, "verify", tmp_path, status=2)


def test_skip_writes_a_state_with_the_edits_pending(capsys, state_file, states, tmp_path):
    out = tmp_path / "skipped.json"
    before = state_file.read_text()
    arguments = ["state", "skip", str(state_file), "--steps", "3", "--rows", "web:40-45", "--rows", "web:50"]
    assert run([*arguments, "--out", str(out)]) == 0
    assert state_file.read_text() == before
    pending = edits_from_state(read_state(json.loads(out.read_text())).progress["pending"])
    assert [type(edit) for edit in pending] == [SkipRows, SkipRows, SkipSteps]
    assert [(edit.first, edit.last) for edit in pending[:2]] == [(40, 45), (50, 50)]
    assert pending[2].count == 3
    assert {(edit.at_step, edit.who) for edit in pending} == {(2, "msd state skip")}


def test_skip_in_place_changes_the_file(state_file):
    assert run(["state", "skip", str(state_file), "--steps", "1", "--in-place"]) == 0
    assert len(read_state(json.loads(state_file.read_text())).progress["pending"]) == 1


def test_skip_in_place_of_a_checkpoint_adds_a_snapshot_unless_a_run_lives_there(capsys, ckpt):
    store = open_store(str(ckpt))
    assert run(["state", "skip", str(ckpt), "--steps", "1", "--in-place"]) == 0
    newest = store.newest()
    assert (newest.step, newest.lineage, len(store.snapshots())) == (2, "l", 3)
    assert len(read_state(newest.state).progress["pending"]) == 1
    Lease(store.folder, run="live").acquire()
    capsys.readouterr()
    assert "belongs to run live" in failure(capsys, "skip", ckpt, "--steps", 1, "--in-place", status=1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--steps", "1"], "--out FILE, or --in-place"),
        (["--steps", "1", "--out", "x", "--in-place"], "--out FILE, or --in-place"),
        (["--in-place"], "say what to leave out"),
        (["--rows", "web", "--in-place"], "'web' is no range; write SOURCE:FIRST-LAST"),
        (["--rows", "web:5-3", "--in-place"], "is no range"),
        (["--rows", "web:1-999999999999", "--in-place"], "or suspend the source to draw from it no longer"),
        (["--rows", "books:1-3", "--in-place"], "the state has no source 'books' (sources: web)"),
        (["--step", "3", "--steps", "1", "--in-place"], "--step is for a checkpoint"),
        (["--steps", "1", "--out", "no/such/folder/x"], "cannot be written"),
        (["--steps", "0", "--in-place"], "--steps"),
    ],
)
def test_a_wrong_skip_is_misuse_and_changes_nothing(capsys, state_file, arguments, says):
    before = state_file.read_text()
    assert says in failure(capsys, "skip", state_file, *arguments, status=2)
    assert state_file.read_text() == before


def test_the_group_says_what_it_has_and_a_wrong_line_says_where_help_is(capsys):
    assert run(["state", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("show", "diff", "verify", "skip"))
    assert "`msd state --help`" in failure(capsys, "nonsense", status=2)


def test_a_checkpoint_may_be_a_url_with_options_for_fsspec(capsys, ckpt):
    url = f"file://{ckpt}"
    assert printed(capsys, "show", url, "--json")["step"] == 2
    assert len(printed(capsys, "verify", url, "--storage", "auto_mkdir=1", "--json")["files"]) == 2
    assert "--storage 'x' has no value; write KEY=VALUE" in failure(capsys, "verify", url, "--storage", "x", status=2)
    assert "cannot be reached" in failure(capsys, "verify", "nosuch://x", status=2)

"""Commands on a source without an end go as far as rows are there, then say what is waited for."""

import json
import os
import time
from pathlib import Path

import pytest
import yaml

import msd
from msd.cli import main
from msd.errors import ConfigError

ROWS = 50


@pytest.fixture
def config(tmp_path: Path) -> Path:
    data = tmp_path / "in"
    data.mkdir()
    for number in range(6):
        text = "".join(json.dumps({"text": f"file {number} row {row}"}) + "\n" for row in range(ROWS))
        (data / f"{number}.jsonl").write_text(text)
        os.utime(data / f"{number}.jsonl", (1000 + number, 1000 + number))
    settings = {
        "sources": {
            "fresh": {
                "format": "tail", "path": "in", "spool": "spool", "poll_s": 0.02, "settle_s": 0,
                "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}],
            }
        },
        "batch": {"sequence_length": 128, "global_batch_size": 4},
        "mesh": {"dp": 2},
        "num_microbatches": 1,
        "runtime": {"kind": "local", "deadline_s": 5},
    }  # fmt: skip
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture
def run(capsys):
    """Return what a command writes, errors included."""

    def run(*arguments, status: int = 0) -> str:
        capsys.readouterr()
        began_s = time.monotonic()
        found = main.run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert found == status, err
        assert time.monotonic() - began_s < 20
        return out if status == 0 else err

    return run


def empty(config: Path) -> None:
    for file in (config.parent / "in").iterdir():
        file.unlink()


def test_plan_plans_as_far_as_rows_are_there_and_says_what_it_waits_for(run, config):
    said = json.loads(run("plan", config, "--steps", 1000, "--json"))
    assert 1 <= said["num_steps"] < 1000
    assert not said["is_over"]
    assert "row 300 is not there yet: 300 rows were admitted so far" in said["waits_for"]
    assert said["sources"]["fresh"]["rows_per_epoch"] is None


def test_plan_of_nothing_is_one_line(run, config):
    empty(config)
    said = run("plan", config, status=2)
    assert "row 0 is not there yet: 0 rows were admitted so far; it waits for files to appear in" in said


def test_validate_reads_what_is_there_and_says_what_is_not(run, config):
    said = json.loads(run("validate", config, "--rows", 1000, "--json"))
    assert said["sources"][0]["rows"] == 300
    assert any("row 300 is not there yet" in remark for remark in said["remarks"])
    assert said["problems"] == []
    assert "is fine" in run("validate", config)
    empty(config)
    (config.parent / "spool").rename(config.parent / "old")
    (remark,) = json.loads(run("validate", config, "--json"))["remarks"]
    assert "row 0 is not there yet" in remark


def test_preview_and_which_show_rows_that_are_there(run, config):
    assert json.loads(run("preview", config, "--json"))["rows"]
    documents = json.loads(run("which", config, "--step", 2, "--json"))["documents"]
    assert {document["source"] for document in documents} == {"fresh"}
    assert {document["shard"] for document in documents} <= {f"{number}.jsonl" for number in range(6)}
    assert "is not there yet" in run("which", config, "--step", 5000, status=2)


def test_index_tells_what_was_admitted_and_admits_nothing(run, config):
    fact = json.loads(run("index", config, "--json"))["sources"][0]
    assert (fact["rows"], fact["shards"]) == (0, 0)
    assert not (config.parent / "spool").exists()
    run("plan", config, "--steps", 2)
    fact = json.loads(run("index", config, "--json"))["sources"][0]
    assert fact["rows"] == ROWS * fact["shards"] > 0
    assert any("no end" in remark for remark in fact["remarks"])
    assert "fresh" in run("index", config)


def test_profile_times_what_is_there(run, config, tmp_path):
    run("profile", config, "--seconds", 5, "--out", tmp_path / "profile.json")
    profile = json.loads((tmp_path / "profile.json").read_text())
    assert 0 < profile["sources"]["fresh"]["num_rows"] <= 300


def test_a_state_of_a_run_is_shown_and_followed(run, config, tmp_path):
    with msd.start(msd.load_config(config)) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        for _ in range(3):
            batches = [next(client) for client in clients]
        (tmp_path / "state.json").write_text(json.dumps(clients[0].state_dict()))
        following = [next(client) for client in clients]
    assert "fresh" in run("state", "show", tmp_path / "state.json")
    said = json.loads(run("which", config, "--step", 3, "--state", tmp_path / "state.json", "--json"))
    found = {(one["source"], one["ordinal"], one["part"]) for one in said["documents"]}
    assert found == {tuple(sample) for batch in following for sample in batch.sample_ids}
    assert batches[0].step == 2
    (tmp_path / "spool" / "admission-00000000.json").unlink()
    assert "stands in the first" in run("which", config, "--step", 3, "--state", tmp_path / "state.json", status=1)


def test_what_has_an_end_only_is_refused(run, config):
    with pytest.raises(ConfigError, match="source 'fresh' has no end, so no part of it can be held out"):
        msd.evaluation(msd.load_config(config), rank=0)
    assert "has no end, and what is written has one" in run("run", config, "--out", config.parent / "out", status=2)

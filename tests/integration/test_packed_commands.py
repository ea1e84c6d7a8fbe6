"""What the commands say of a folder of packed sequences: found, checked, planned, shown, traced."""

import json
import shutil

import pytest
import yaml

import msd
from msd.cli.main import run
from msd.core.written import MANIFEST, RUN
from msd.runtime.local import LocalEngine
from msd.testing.folders import write_packed
from msd.testing.same import difference


@pytest.fixture(scope="module")
def made(tmp_path_factory, tiny_corpus):
    """A configuration over the tiny corpus, and beside it a folder of what its first steps hold."""
    place = tmp_path_factory.mktemp("made")
    config = msd.load_config(tiny_corpus / "corpus.yaml", overrides=["batch.document_multiple=4"])
    write_packed(config, place / "packed", steps=3)
    shutil.copy(tiny_corpus / "tokenizer.json", place / "tokenizer.json")
    return config, place


@pytest.fixture
def back(made, tmp_path, capsys):
    """What `msd init` writes for the folder."""
    place = shutil.copytree(made[1], tmp_path / "made")
    assert run(["init", str(place / "packed"), "--out", str(place / "back.yaml")]) == 0
    capsys.readouterr()
    return place / "back.yaml"


def printed(capsys, *arguments):
    assert run([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_init_writes_a_run_that_streams_the_very_steps(made, back):
    written = yaml.safe_load(back.read_text())
    assert written["sources"]["packed"] == {
        "format": "packed", "path": "packed", "options": {"tokenizer": "tokenizer.json"},
    }  # fmt: skip
    assert written["batch"]["document_multiple"] == 4
    with LocalEngine(made[0]) as one, LocalEngine(msd.load_config(back)) as other:
        for _ in range(3):
            for rank in range(2):
                assert not difference(next(one.client(rank)), next(other.client(rank)))


def test_validate_plan_preview_and_which_show_the_documents(back, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # In narrower cells long names are folded.
    (source,) = printed(capsys, "validate", back)["sources"]
    assert (source["problem"], source["rows_per_epoch"], source["rows"]) == (None, 48, 48)
    assert source["vocabulary"] > source["largest_id"]
    planned = printed(capsys, "plan", back, "--steps", 3)
    assert set(planned["sources"]) == {"packed"}
    (shown,) = printed(capsys, "preview", back, "--rows", 1)["rows"]
    assert any(" " in document["text"] for document in shown), "ids are told as the text that they were"
    entries = printed(capsys, "which", back, "--step", 1)["documents"]
    assert {entry["origin"]["source"] for entry in entries} <= {"code", "docstrings", "docs", "descriptions", "photos"}
    assert run(["which", str(back), "--step", "1"]) == 0
    table = capsys.readouterr().out
    assert f"{entries[0]['origin']['source']}:{entries[0]['origin']['ordinal']}.{entries[0]['origin']['part']}" in table


@pytest.mark.parametrize(
    ("override", "said"),
    [("batch.sequence_length=512", "set batch.sequence_length: 1024"),
     ("batch.document_multiple=1", "set batch.document_multiple: 4")],
)  # fmt: skip
def test_validate_tells_once_what_does_not_agree(back, capsys, override, said):
    assert run(["validate", str(back), override]) == 2
    told = capsys.readouterr().err
    assert told.count(said) == 1
    assert "at fault" not in told


def test_an_unfinished_folder_is_told_of_by_every_command(back, capsys):
    (back.parent / "packed" / MANIFEST).rename(back.parent / "packed" / RUN)
    for command in ("validate", "plan", "preview", "which"):
        assert run([command, str(back)]) == 2
        assert "is not finished; run the `msd run` that writes it again" in capsys.readouterr().err

import json
import os
from pathlib import Path

import pytest

from msd.core.sample import Failure
from msd.errors import ConfigError
from msd.loader.quarantine import Quarantine


def failure(ordinal, reason="ValueError: no"):
    return Failure(ordinal=ordinal, reason=reason, shard="a.jsonl", row=ordinal + 100)


def listed(path):
    return [(record["source"], record["ordinal"]) for record in map(json.loads, path.read_text().splitlines())]


def test_a_failed_row_is_listed_with_where_it_lies(tmp_path):
    path = tmp_path / "new" / "bad.jsonl"
    quarantine = Quarantine(path, source="web")
    assert quarantine.write([failure(7, "ValueError: ü")]) == 1
    quarantine.close()
    assert json.loads(path.read_text()) == {
        "source": "web",
        "ordinal": 7,
        "shard": "a.jsonl",
        "row": 107,
        "reason": "ValueError: ü",
    }


def test_a_row_is_listed_once_whatever_is_examined_again_or_resumed(tmp_path):
    path = tmp_path / "bad.jsonl"
    first = Quarantine(path, source="web")
    first.write([failure(1), failure(2), failure(2)])
    first.write([failure(1)])
    first.close()
    resumed = Quarantine(path, source="web")
    assert resumed.write([failure(2), failure(3)]) == 1
    resumed.close()
    assert listed(path) == [("web", 1), ("web", 2), ("web", 3)]


def test_sources_may_share_a_file(tmp_path):
    path = tmp_path / "bad.jsonl"
    web = Quarantine(path, source="web")
    web.write([failure(1)])
    code = Quarantine(path, source="code")
    code.write([failure(1)])
    web.write([failure(2)])
    web.close()
    code.close()
    assert listed(path) == [("web", 1), ("code", 1), ("web", 2)]


def test_a_line_that_a_crash_tore_is_listed_again_on_a_line_of_its_own(tmp_path):
    path = tmp_path / "bad.jsonl"
    first = Quarantine(path, source="web")
    first.write([failure(1), failure(2)])
    first.close()
    path.write_bytes(path.read_bytes()[:-20])
    resumed = Quarantine(path, source="web")
    assert resumed.write([failure(1), failure(2)]) == 1
    resumed.close()
    good = [line for line in path.read_text().splitlines() if line.endswith("}")]
    assert [json.loads(line)["ordinal"] for line in good] == [1, 2]


def test_a_file_that_is_something_else_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("my notes\nare precious")
    with pytest.raises(ConfigError, match="is no list of failed rows"):
        Quarantine(path, source="web")
    assert path.read_text() == "my notes\nare precious"


@pytest.mark.parametrize(
    "text",
    [
        "my notes",
        "one line\n",
        '{"text": "a row of data"}\n',
        '{"source": "web", "text": "a row of data"}\n',
        '{"source": "web", "ordinal": 1, "shard": "a", "row": 2, "reason": "x"}\nnotes\n',
        "5",
        "[" * 5000,
    ],
)
def test_a_file_with_any_line_that_is_no_record_is_refused_and_left_as_it_is(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is no list of failed rows"):
        Quarantine(path, source="web")
    assert path.read_text() == text


@pytest.mark.parametrize("left", [1, 5, 11, 30, 60])
def test_a_list_that_a_crash_cut_anywhere_goes_on(tmp_path, left):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"source": "web", "ordinal": 1, "shard": "a", "row": 2, "reason": "set {1, 2} is wrong"}\n'[:left])
    quarantine = Quarantine(path, source="web")
    assert quarantine.write([failure(1)]) == 1
    quarantine.close()


def test_another_row_or_reason_at_the_same_ordinal_is_another_line(tmp_path):
    path = tmp_path / "bad.jsonl"
    first = Quarantine(path, source="web")
    first.write([failure(1, "ValueError: no")])
    first.close()
    other_seed = Quarantine(path, source="web")
    moved = Failure(ordinal=1, reason="ValueError: no", shard="b.jsonl", row=9)
    assert other_seed.write([moved, failure(1, "KeyError: 'text'"), failure(1, "ValueError: no")]) == 2
    other_seed.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["shard"], line["row"], line["reason"]) for line in lines] == [
        ("a.jsonl", 101, "ValueError: no"),
        ("b.jsonl", 9, "ValueError: no"),
        ("a.jsonl", 101, "KeyError: 'text'"),
    ]


@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null"), tmp_path):
        with pytest.raises(ConfigError, match="is not a regular file"):
            Quarantine(path, source="web")


def test_an_abandoned_file_goes_only_if_it_is_new_and_empty(tmp_path):
    new, held, old = tmp_path / "new", tmp_path / "held", tmp_path / "old"
    old.write_text("")
    for path in (new, held, old):
        quarantine = Quarantine(path, source="web")
        if path is held:
            quarantine.write([failure(1)])
        quarantine.abandon()
    assert not new.exists()
    assert held.exists()
    assert old.exists()


def test_a_path_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        Quarantine(tmp_path / "file" / "bad.jsonl", source="web")

import json

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


def test_a_path_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        Quarantine(tmp_path / "file" / "bad.jsonl", source="web")

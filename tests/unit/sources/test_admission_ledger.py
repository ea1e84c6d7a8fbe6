import json
import multiprocessing
import os
import threading
import time

import pytest

from msd.errors import SourceError
from msd.sources import ledger as ledgers
from msd.sources.ledger import HEADER, Ledger, entry_name, segment_name
from msd.sources.spool import WRITING, create


def said(name: str, rows: int = 3) -> dict:
    return {"name": name, "format": "jsonl", "nbytes": 10, "stamp": "10-1", "blocks": [(0, rows, 0, 10)]}


def ledger(folder, *, source: str = "web") -> Ledger:
    return Ledger(str(folder), source=source, takes="files")


def filled(folder, names) -> Ledger:
    made = ledger(folder)
    for name in names:
        assert made.append(**said(name)) is not None
    return made


def read(folder) -> Ledger:
    found = ledger(folder)
    found.refresh()
    return found


def shown(found: Ledger) -> list[tuple[str, int, str]]:
    return [(e.name, e.first, e.chain) for e in (found.entry(number) for number in range(len(found)))]


def race(folder: str, who: int, count: int, gate) -> None:
    mine = ledger(folder)
    gate.wait()
    for number in range(count):
        while mine.append(**said(f"{who}-{number}")) is None:
            pass


def test_entries_are_read_as_they_were_admitted(tmp_path):
    made = filled(tmp_path, ["a", "b", "c"])
    found = read(tmp_path)
    assert shown(found) == shown(made)
    assert (len(found), found.num_rows, found.chain) == (3, 9, made.chain)
    assert [found.find(ordinal).name for ordinal in (0, 2, 3, 8)] == ["a", "a", "b", "c"]
    assert found.find(9) is None
    assert found.has("b")
    assert not found.has("d")


def test_reading_writes_nothing(tmp_path):
    assert read(tmp_path / "none").num_rows == 0
    assert not (tmp_path / "none").exists()


def test_rows_of_nothing_take_no_ordinal(tmp_path):
    made = ledger(tmp_path)
    for name, rows in (("a", 0), ("b", 2), ("c", 0), ("d", 0), ("e", 1)):
        made.append(**said(name, rows))
    assert [read(tmp_path).find(ordinal).name for ordinal in range(3)] == ["b", "b", "e"]


def test_whoever_loses_a_race_reads_the_other_and_offers_again(tmp_path):
    first, second = ledger(tmp_path), ledger(tmp_path)
    first.append(**said("a"))
    assert second.append(**said("b")) is None
    assert (len(second), second.has("a")) == (1, True)
    assert second.append(**said("b")).number == 1


def test_threads_that_race_lose_nothing_and_keep_one_chain(tmp_path):
    gate = threading.Barrier(4)
    threads = [threading.Thread(target=race, args=(str(tmp_path), who, 20, gate)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    found = read(tmp_path)
    assert sorted(found.entry(number).name for number in range(len(found))) == sorted(
        f"{who}-{number}" for who in range(4) for number in range(20)
    )
    assert not [name for name in os.listdir(tmp_path) if name.startswith(WRITING)]


def test_processes_that_race_lose_nothing_and_keep_one_chain(tmp_path):
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(3)
    processes = [context.Process(target=race, args=(str(tmp_path), who, 10, gate)) for who in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    found = read(tmp_path)
    assert len({found.entry(number).name for number in range(len(found))}) == 30


def test_a_file_is_made_once(tmp_path):
    assert create(tmp_path, "x", b"first")
    assert not create(tmp_path, "x", b"second")
    assert (tmp_path / "x").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("damage", [b"", b'{"kind": "msd adm', b"[]\n", b"\xff\xfe\n"])
def test_a_torn_entry_is_named_and_nothing_is_written(tmp_path, damage):
    filled(tmp_path, ["a", "b", "c"])
    (tmp_path / entry_name(1)).write_bytes(damage)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(SourceError, match=r"sources\.web: .*admission-00000001\.json is damaged") as error:
        read(tmp_path)
    assert "\n" not in str(error.value)
    assert sorted(os.listdir(tmp_path)) == before


def test_an_entry_that_was_edited_is_refused(tmp_path):
    filled(tmp_path, ["a", "b"])
    path = tmp_path / entry_name(0)
    path.write_text(path.read_text().replace('"a"', '"z"'))
    with pytest.raises(SourceError, match="does not say what it said"):
        read(tmp_path)


def test_an_entry_of_another_ledger_is_refused(tmp_path):
    filled(tmp_path / "one", ["a", "b"])
    filled(tmp_path / "two", ["x", "y"])
    (tmp_path / "one" / entry_name(1)).write_bytes((tmp_path / "two" / entry_name(1)).read_bytes())
    with pytest.raises(SourceError, match="follows other entries"):
        read(tmp_path / "one")


def test_an_entry_in_the_middle_that_is_lost_is_noticed(tmp_path):
    made = filled(tmp_path, ["a", "b", "c"])
    content = (tmp_path / entry_name(1)).read_bytes()
    (tmp_path / entry_name(1)).unlink()
    shorter = read(tmp_path)
    assert len(shorter) == 1
    shorter.append(**said("new"))
    with pytest.raises(SourceError, match="follows other entries"):
        shorter.append(**said("newer"))
    (tmp_path / entry_name(1)).write_bytes(content)
    assert shown(read(tmp_path)) == shown(made)


def test_a_spool_of_another_source_is_refused(tmp_path):
    filled(tmp_path, ["a"])
    with pytest.raises(SourceError, match=r"sources\.books: spool .* is the ledger of source 'web'"):
        ledger(tmp_path, source="books").refresh()


def test_a_header_that_is_none_is_refused(tmp_path):
    (tmp_path / HEADER).write_text("{}")
    with pytest.raises(SourceError, match="no header of a ledger"):
        read(tmp_path)
    (tmp_path / HEADER).write_text(json.dumps({"kind": "msd ledger", "version": 9, "source": "web", "takes": "files"}))
    with pytest.raises(SourceError, match="version 9"):
        read(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match=r"sources\.web: spool .*file/spool cannot be written"):
        ledger(tmp_path / "file" / "spool").append(**said("a"))


def test_what_a_writer_left_long_ago_is_removed_and_nothing_else(tmp_path):
    for name, age_s in ((f"{WRITING}old", 7200), (f"{WRITING}new", 10), ("other", 7200)):
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    filled(tmp_path, ["a"])
    assert sorted(os.listdir(tmp_path)) == sorted([f"{WRITING}new", "other", HEADER, entry_name(0)])


class TestSegments:
    @pytest.fixture(autouse=True)
    def _short(self, monkeypatch):
        monkeypatch.setattr(ledgers, "SEGMENT", 4)

    def test_entries_are_written_together_and_read_from_there(self, tmp_path, monkeypatch):
        made = filled(tmp_path, map(str, range(10)))
        assert (tmp_path / segment_name(1)).exists()
        assert not (tmp_path / segment_name(2)).exists()
        opened = []
        content = Ledger._content
        monkeypatch.setattr(Ledger, "_content", lambda self, name: opened.append(name) or content(self, name))
        found = read(tmp_path)
        assert [name for name in opened if "admission" in name] == [entry_name(number) for number in (8, 9, 10)]
        assert shown(found) == shown(made)
        assert found.has("3")

    def test_an_end_before_they_were_written_together_is_made_up_for(self, tmp_path, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "_settle", lambda self: None)
            filled(tmp_path, map(str, range(9)))
        (tmp_path / f"{WRITING}left").write_bytes(b"half")
        found = read(tmp_path)
        assert len(found) == 9
        found.append(**said("more"))
        assert (tmp_path / segment_name(0)).exists()
        assert (tmp_path / segment_name(1)).exists()
        assert [e.name for e in map(read(tmp_path).entry, range(10))] == [*map(str, range(9)), "more"]

    def test_a_damaged_segment_is_not_used(self, tmp_path, caplog):
        made = filled(tmp_path, map(str, range(9)))
        (tmp_path / segment_name(1)).write_bytes(b"torn")
        assert shown(read(tmp_path)) == shown(made)
        assert "segment-000001.jsonl is damaged and not used" in caplog.text

    def test_a_segment_of_another_ledger_is_refused(self, tmp_path):
        filled(tmp_path / "one", map(str, range(9)))
        filled(tmp_path / "two", [f"x{number}" for number in range(9)])
        (tmp_path / "one" / segment_name(1)).write_bytes((tmp_path / "two" / segment_name(1)).read_bytes())
        with pytest.raises(SourceError, match="follows other entries"):
            read(tmp_path / "one")


def test_the_chain_tells_ledgers_apart(tmp_path):
    one = filled(tmp_path / "one", ["a", "b", "c"])
    two = filled(tmp_path / "two", ["a", "b", "x"])
    assert [one.chain_at(number) == two.chain_at(number) for number in range(4)] == [True, True, True, False]
    assert one.chain_at(4) is None

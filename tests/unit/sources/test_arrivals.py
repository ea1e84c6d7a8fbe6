import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from msd.errors import ConfigError, SourceError
from msd.sources.config import ReaderConfig, ShuffleConfig
from msd.sources.unending import Unending


def config(path, spool, **settings) -> ReaderConfig:
    return ReaderConfig(format="tail", path=str(path), spool=str(spool), **{"settle_s": 0, "poll_s": 0.01, **settings})


def lines(first: int, last: int) -> str:
    return "".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(first, last))


def put(folder: Path, name: str, text: str, *, time_s: float = 1000.0) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (time_s, time_s))


def texts(unending: Unending, number: int) -> list[str]:
    admitted = unending.admitted(unending.ledger.entry(number))
    reader, blocks = unending.open_reader(admitted), admitted.blocks
    rows = [row for block in range(blocks.num_blocks) for row in reader.read_block(block, blocks.kept_rows(block))]
    reader.close()
    return [row["text"] for row in rows]


def names(unending: Unending) -> list[str]:
    return [unending.ledger.entry(number).name for number in range(len(unending.ledger))]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TestFolder:
    def test_files_are_taken_once_in_the_order_of_their_times_and_names(self, tmp_path):
        data = tmp_path / "in"
        put(data, "b.jsonl", lines(0, 2), time_s=100)
        put(data, "a.jsonl", lines(2, 4), time_s=200)
        put(data, "deep/c.jsonl", lines(4, 6), time_s=100)
        unending = Unending("web", config(data, tmp_path / "spool"))
        assert unending.admit_to(100) == 6
        assert names(unending) == ["b.jsonl", "deep/c.jsonl", "a.jsonl"]
        assert texts(unending, 1) == ["row 4", "row 5"]

    def test_no_more_is_admitted_than_is_asked_for(self, tmp_path):
        for number in range(5):
            put(tmp_path / "in", f"{number}.jsonl", lines(0, 10))
        unending = Unending("web", config(tmp_path / "in", tmp_path / "spool"))
        assert [unending.admit_to(end) for end in (1, 10, 11)] == [10, 10, 20]

    def test_files_that_may_still_be_written_wait(self, tmp_path):
        data = tmp_path / "in"
        for name in (".hidden.jsonl", "x.jsonl.tmp", "x.jsonl.part", "notes", ".dir/x.jsonl"):
            put(data, name, lines(0, 2))
        put(data, "empty.jsonl", "")
        put(data, "new.jsonl", lines(0, 2), time_s=time.time() + 50)
        unending = Unending("web", config(data, tmp_path / "spool", settle_s=2))
        assert unending.admit_to(10) == 0
        assert "empty.jsonl and 1 more may still be written" in unending.lack

    def test_a_glob_and_a_folder_that_is_not_there_yet(self, tmp_path):
        clock = Clock()
        unending = Unending("web", config(tmp_path / "in" / "*.jsonl", tmp_path / "spool"), clock=clock)
        assert unending.admit_to(1) == 0
        put(tmp_path / "in", "a.jsonl", lines(0, 2))
        put(tmp_path / "in", "a.txt", "no")
        clock.now += 1
        assert unending.admit_to(10) == 2
        assert names(unending) == ["a.jsonl"]

    def test_a_look_that_found_nothing_is_not_repeated_at_once(self, tmp_path):
        (tmp_path / "in").mkdir()
        clock = Clock()
        unending = Unending("web", config(tmp_path / "in", tmp_path / "spool", poll_s=5), clock=clock)
        assert unending.admit_to(1) == 0
        put(tmp_path / "in", "a.jsonl", lines(0, 2))
        assert unending.admit_to(1) == 0
        clock.now += 5
        assert unending.admit_to(1) == 2

    def test_what_others_admit_is_seen_without_a_look(self, tmp_path):
        put(tmp_path / "in", "a.jsonl", lines(0, 2))
        settings = config(tmp_path / "in", tmp_path / "spool", poll_s=1000)
        one, two = Unending("web", settings), Unending("web", settings)
        assert one.admit_to(1) == 2
        put(tmp_path / "in", "b.jsonl", lines(2, 4), time_s=2000)
        assert two.admit_to(10) == 4
        assert one.admit_to(3) == 4
        assert names(one) == names(two) == ["a.jsonl", "b.jsonl"]

    def test_a_file_that_cannot_be_read_is_left_out_until_it_changes(self, tmp_path, caplog):
        data = tmp_path / "in"
        put(data, "a.parquet", "not parquet at all", time_s=100)
        put(data, "b.jsonl", lines(0, 2), time_s=200)
        clock = Clock()
        unending = Unending("web", config(data, tmp_path / "spool"), clock=clock)
        assert unending.admit_to(10) == 2
        assert "a.parquet is left out until it is written again" in caplog.text
        assert "a.parquet cannot be read" in unending.lack
        (data / "a.parquet").unlink()
        parquet.write_table(pa.table({"text": ["one", "two", "three"]}), data / "a.parquet")
        clock.now += 1
        assert unending.admit_to(10) == 5
        assert texts(unending, 1) == ["one", "two", "three"]

    @pytest.mark.parametrize("change", ["longer", "again", "gone"])
    def test_a_file_that_changes_after_it_was_admitted_is_named(self, tmp_path, change):
        data = tmp_path / "in"
        put(data, "a.jsonl", lines(0, 2))
        unending = Unending("web", config(data, tmp_path / "spool"))
        unending.admit_to(1)
        if change == "gone":
            (data / "a.jsonl").unlink()
        else:
            put(data, "a.jsonl", lines(0, 2 + (change == "longer")), time_s=3000)
        with pytest.raises(SourceError, match=r"a\.jsonl (changed|does not exist)"):
            texts(unending, 0)

    def test_files_without_a_row_are_taken_and_hold_up_nobody(self, tmp_path):
        for number in range(100):
            put(tmp_path / "in", f"{number:03d}.jsonl", "\n\n")
        put(tmp_path / "in", "last.jsonl", lines(0, 1), time_s=5000)
        unending = Unending("web", config(tmp_path / "in", tmp_path / "spool"))
        assert unending.admit_to(1) == 0
        assert unending.admit_to(1) == 1
        assert unending.find(0).blocks.shards[0].name == "last.jsonl"


def test_one_file_that_cannot_grow_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="one file that does not grow by lines"):
        Unending("web", config(tmp_path / "x.parquet", tmp_path / "spool"))


class TestLines:
    def log(self, tmp_path, **settings) -> tuple[Path, Unending, Clock]:
        clock = Clock()
        path = tmp_path / "log.jsonl"
        return path, Unending("log", config(path, tmp_path / "spool", **settings), clock=clock), clock

    def append(self, path: Path, text: str) -> None:
        with open(path, "a") as file:
            file.write(text)

    def test_whole_lines_alone_are_taken(self, tmp_path):
        path, unending, clock = self.log(tmp_path)
        assert unending.admit_to(1) == 0
        whole = lines(0, 4)
        self.append(path, whole[:-5])
        clock.now += 1
        assert unending.admit_to(10) == 3
        assert texts(unending, 0) == ["row 0", "row 1", "row 2"]
        assert unending.admit_to(10) == 3
        assert "bytes of a line that has not ended" in unending.lack
        self.append(path, whole[-5:])
        clock.now += 1
        assert unending.admit_to(10) == 4
        assert texts(unending, 1) == ["row 3"]

    def test_ranges_are_cut_in_blocks_and_rows_are_numbered_through_the_file(self, tmp_path):
        path, unending, _ = self.log(tmp_path, shuffle=ShuffleConfig(block_bytes=64))
        self.append(path, lines(0, 400))
        assert unending.admit_to(1000) == 400
        found = [text for number in range(len(unending.ledger)) for text in texts(unending, number)]
        assert found == [f"row {number}" for number in range(400)]
        assert len(unending.ledger) > 1
        last = unending.find(399)
        assert int(last.blocks.first_row_B[-1] + last.blocks.num_rows_B[-1]) == 400

    def test_a_line_longer_than_what_is_taken_at_once_is_taken_alone(self, tmp_path):
        path, unending, _ = self.log(tmp_path, shuffle=ShuffleConfig(block_bytes=64))
        self.append(path, json.dumps({"text": "x" * 5000}) + "\n" + lines(0, 1))
        assert unending.admit_to(2) == 2
        assert texts(unending, 0)[0] == "x" * 5000

    @pytest.mark.parametrize("change", ["cut", "gone", "other", "rotated"])
    def test_a_file_that_is_not_only_appended_to_is_refused(self, tmp_path, change):
        path, unending, _ = self.log(tmp_path)
        self.append(path, lines(0, 4))
        unending.admit_to(4)
        if change == "cut":
            path.write_text(lines(0, 2))
        elif change == "gone":
            path.unlink()
        else:
            path.rename(tmp_path / "log.1")
            path.write_text(lines(10, 20) if change == "rotated" else lines(10, 14))
        with pytest.raises(SourceError, match=r"log\.jsonl was cut, replaced or rewritten") as error:
            unending.admit_to(5)
        assert "\n" not in str(error.value)

    def test_bytes_that_were_rewritten_in_place_are_not_read(self, tmp_path):
        path, unending, _ = self.log(tmp_path)
        self.append(path, lines(0, 4))
        unending.admit_to(4)
        path.write_text(lines(0, 4).replace("row 1", "row 9"))
        with pytest.raises(SourceError, match="was cut, replaced or rewritten"):
            texts(unending, 0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"format": "tail", "path": "x"}, "needs spool"),
        ({"format": "tail", "spool": "s"}, "needs a path"),
        ({"format": "tail", "path": ["a", "b"], "spool": "s"}, "watches one path"),
        ({"format": "tail", "path": "s3://b/x", "spool": "s"}, "path 's3://b/x' is a URL"),
        ({"format": "tail", "path": "x", "spool": "s3://b/s"}, "spool 's3://b/s' is a URL"),
        ({"format": "tail", "path": "x", "spool": "s", "max_epochs": 1}, "max_epochs means nothing"),
        ({"format": "tail", "path": "x", "spool": "s", "split": (0.0, 0.5)}, "split means nothing"),
        ({"format": "tail", "path": "x", "spool": "s", "poll_s": 0}, "poll_s"),
        ({"format": "queue", "spool": "s"}, "needs cls"),
        ({"format": "jsonl", "path": "x", "spool": "s"}, "spool is for sources without an end"),
    ],
)
def test_settings_that_cannot_hold_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        ReaderConfig(**settings)

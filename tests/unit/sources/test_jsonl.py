import gzip
import json

import numpy as np
import pytest
import zstandard

from msd.errors import SourceError
from msd.sources.base import BadRow
from msd.sources.config import ReaderConfig, ShuffleConfig
from msd.sources.index import entry_cost, index_sources, rewrite_seekable
from msd.sources.open import open_reader
from msd.testing.conformance import check_source

ROWS = [{"id": number, "text": "word " * (number % 17) + "é日🙂"} for number in range(300)]
BAD = BadRow("any")


def lines(rows, end="\n"):
    return "".join(json.dumps(row, ensure_ascii=False) + end for row in rows).encode()


def config(path, block_bytes=2000):
    return ReaderConfig(path=str(path), format="jsonl", shuffle=ShuffleConfig(block_bytes=block_bytes))


def units(blocks):
    return len(np.unique(blocks.unit_B))


def test_plain_lines_are_cut_into_blocks_with_random_access(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines(ROWS))
    blocks = check_source(config(tmp_path), expected=ROWS)
    assert blocks.num_blocks > 5
    assert units(blocks) == blocks.num_blocks
    assert blocks.nbytes_B.max() <= 2000
    assert blocks.nbytes == len(lines(ROWS))
    assert not entry_cost(blocks).any()


def test_gzip_is_one_unit_whose_blocks_cost_more_to_enter_the_later(tmp_path):
    half = len(ROWS) // 2
    packed = gzip.compress(lines(ROWS[:half])) + gzip.compress(lines(ROWS[half:])) + bytes(100)
    (tmp_path / "a.jsonl.gz").write_bytes(packed)
    blocks = check_source(config(tmp_path), expected=ROWS)
    assert blocks.num_blocks > 5
    assert units(blocks) == 1
    assert entry_cost(blocks).tolist() == (np.cumsum(blocks.nbytes_B) - blocks.nbytes_B).tolist()


def test_each_zstd_frame_that_begins_with_a_line_is_a_unit(tmp_path):
    pack = zstandard.ZstdCompressor().compress
    skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    data = lines(ROWS)
    inside_a_line = data.index(b"\n", 9000) + 5
    frames = [lines(ROWS[:20]), lines(ROWS[20:40]), data[len(lines(ROWS[:40])) : inside_a_line], data[inside_a_line:]]
    (tmp_path / "a.jsonl.zst").write_bytes(skippable + b"".join(map(pack, frames)) + pack(b"") + skippable)
    blocks = check_source(config(tmp_path), expected=ROWS)
    assert units(blocks) == 3
    assert entry_cost(blocks).max() < len(data) - len(frames[0])


def test_odd_lines_are_rows_or_bad_rows_never_lost(tmp_path):
    data = (
        b'\xef\xbb\xbf{"a": 1}\r\n'
        b"\n   \t\r\n"
        b'{"a": NaN, "a": NaN}\n'
        b'["no object"]\n'
        b'{"a": "\xff\xfe"}\n'
        b'\xef\xbb\xbf{"a": "mark inside"}\n'
        b"\xef\xbb\xbf  \n"
        b'  {"a": 2}\n'
        b"null\n" + b'{"a":' * 20000 + b"\n"
        b'{"a": "\\ud800"}\n'
        b'{"a": 123456789012345678901234567890}\n'
        b'{"cut off'
    )
    (tmp_path / "odd.jsonl").write_bytes(data)
    expected = [
        {"a": 1}, {"a": float("nan")}, BAD, BAD, {"a": "mark inside"}, {"a": 2}, BAD, BAD, {"a": "\ud800"},
        {"a": 123456789012345678901234567890}, BAD,
    ]  # fmt: skip
    for block_bytes in (1, 40, 1 << 20):
        check_source(config(tmp_path, block_bytes), expected=expected)


def test_a_bad_line_says_why(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n[1]\n{"a": "\xff"}\n{"a": \n')
    settings = config(tmp_path)
    blocks = index_sources({"s": settings})["s"]
    rows = open_reader("s", settings, blocks).read_block(0, np.array([1, 2, 3]))
    assert rows[0] == BadRow("line is not a JSON object but an array")
    assert "utf-8" in rows[1].reason
    assert "not JSON" in rows[2].reason
    assert all("\n" not in row.reason for row in rows)


def test_a_line_longer_than_a_block_is_a_block_of_its_own(tmp_path):
    rows = [{"a": "x" * 10}, {"a": "y" * 5000}, {"a": "z"}]
    (tmp_path / "a.jsonl").write_bytes(lines(rows))
    blocks = check_source(config(tmp_path, 100), expected=rows)
    assert blocks.num_rows_B.tolist() == [1, 1, 1]


def test_a_file_of_blank_lines_has_no_rows(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\n\n  \n")
    assert check_source(config(tmp_path), expected=[]).num_rows == 0


@pytest.mark.parametrize(
    ("name", "data", "found"),
    [
        ("a.jsonl", b"", "0 bytes"),
        ("a.jsonl", b"PAR1" + bytes(100), "a Parquet file"),
        ("a.jsonl", gzip.compress(b"{}"), "rename it to end in .gz"),
        ("a.jsonl", "{}".encode("utf-16"), "UTF-16"),
        ("a.jsonl", b'[\n{"a": 1}\n]', "one JSON array"),
        ("a.jsonl", b"<!DOCTYPE html><html>", "an HTML page"),
        ("a.jsonl.gz", b'{"a": 1}\n', "named as compressed"),
        ("a.jsonl.gz", gzip.compress(lines(ROWS))[:-20], "truncated"),
        ("a.jsonl.gz", gzip.compress(lines(ROWS)) + b"rubbish", "damaged"),
        ("a.jsonl.gz", gzip.compress(b"PAR1" + bytes(100)), "a Parquet file"),
        ("a.jsonl.zst", zstandard.compress(lines(ROWS))[:-20], "truncated"),
        ("a.jsonl.zst", zstandard.compress(lines(ROWS)) + b"rubbish", "damaged"),
    ],
    ids=[
        "empty",
        "parquet",
        "gzip-unnamed",
        "utf16",
        "array",
        "html",
        "plain-named-gz",
        "gzip-cut",
        "gzip-tail",
        "gzip-parquet",
        "zstd-cut",
        "zstd-tail",
    ],
)
def test_a_file_that_is_not_whole_json_lines_is_refused_by_name(tmp_path, name, data, found):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=found) as raised:
        index_sources({"web": config(tmp_path)})
    assert str(tmp_path / name) in str(raised.value)
    assert "sources.web" in str(raised.value)


def test_a_file_that_changed_after_the_index_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(ROWS))
    settings = config(tmp_path)
    reader = open_reader("web", settings, index_sources({"web": settings})["web"])
    path.write_bytes(lines(ROWS[1:]))
    with pytest.raises(SourceError, match=r"sources\.web: .*changed since it was indexed.*msd index"):
        reader.read_block(0, np.array([0]))
    path.unlink()
    with pytest.raises(SourceError, match="does not exist"):
        reader.read_block(0, np.array([0]))


def test_consecutive_blocks_of_a_stream_decode_it_once(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines(ROWS)))
    settings = config(tmp_path)
    blocks = index_sources({"s": settings})["s"]
    from msd.sources import spans

    starts = []
    original = spans.StreamCursor
    monkeypatch.setattr(spans, "StreamCursor", lambda *a, **k: starts.append(1) or original(*a, **k))
    reader = open_reader("s", settings, blocks)
    for block in range(blocks.num_blocks):
        reader.read_block(block, np.array([0]))
        reader.read_block(block, np.array([0]))
    assert len(starts) == 1
    reader.read_block(0, np.array([0]))
    assert len(starts) == 2


@pytest.mark.parametrize("packed", ["gz", "zst", "plain"])
def test_a_stream_rewritten_as_frames_has_random_access(tmp_path, packed):
    data = {"gz": gzip.compress, "zst": zstandard.compress, "plain": bytes}[packed](lines(ROWS))
    old = tmp_path / ("a.jsonl" if packed == "plain" else f"a.jsonl.{packed}")
    old.write_bytes(data)
    (tmp_path / "new").mkdir()
    result = rewrite_seekable(str(old), str(tmp_path / "new" / "a.jsonl.zst"), frame_bytes=2000)
    blocks = check_source(config(tmp_path / "new"), expected=ROWS)
    assert result.num_rows == len(ROWS)
    assert result.num_frames == blocks.num_blocks == units(blocks)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.jsonl.zst"]
    assert old.read_bytes() == data


def test_a_rewrite_that_fails_leaves_nothing_behind(tmp_path):
    broken = tmp_path / "a.jsonl.gz"
    broken.write_bytes(gzip.compress(lines(ROWS))[:-30])
    (tmp_path / "new").mkdir()
    with pytest.raises(SourceError, match="truncated"):
        rewrite_seekable(str(broken), str(tmp_path / "new" / "a.jsonl.zst"))
    with pytest.raises(SourceError, match="overwritten"):
        rewrite_seekable(str(broken), str(broken))
    (tmp_path / "fine.jsonl").write_bytes(lines(ROWS))
    with pytest.raises(SourceError, match="cannot write"):
        rewrite_seekable(str(tmp_path / "fine.jsonl"), str(tmp_path / "nowhere" / "a.zst"))
    assert list((tmp_path / "new").iterdir()) == []

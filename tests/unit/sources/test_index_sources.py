import json
import os
import time
import tracemalloc
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from msd.errors import SourceError
from msd.sources import descriptors
from msd.sources.cache import IndexCache
from msd.sources.config import ReaderConfig, ShuffleConfig
from msd.sources.files import Opener
from msd.sources.index import IndexProgress, index_sources
from msd.sources.open import open_reader


def write(path, num_rows=20, text="x" * 40):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"id": number, "text": text}) + "\n" for number in range(num_rows)))


def config(path, block_bytes=200, **settings):
    return ReaderConfig(format="jsonl", path=str(path), shuffle=ShuffleConfig(block_bytes=block_bytes), **settings)


@pytest.fixture
def opened(monkeypatch):
    """Paths of the data files that were opened, in order."""
    paths, original = [], Opener.open
    monkeypatch.setattr(Opener, "open", lambda self, path: paths.append(os.path.basename(path)) or original(self, path))
    return paths


def test_unchanged_files_are_never_opened_again(tmp_path, opened):
    """Answers TT-5."""
    for name in "abc":
        write(tmp_path / "data" / f"{name}.jsonl")
    first = index_sources({"s": config(tmp_path / "data")}, cache_dir=tmp_path / "cache")["s"]
    assert sorted(opened) == ["a.jsonl", "b.jsonl", "c.jsonl"]
    opened.clear()
    second = index_sources({"renamed": config(tmp_path / "data")}, cache_dir=tmp_path / "cache")["renamed"]
    assert opened == []
    assert second.digest == first.digest
    for column in ("shard_B", "unit_B", "first_row_B", "num_rows_B", "offset_B", "nbytes_B"):
        assert np.array_equal(getattr(first, column), getattr(second, column))


def test_only_what_changed_is_scanned(tmp_path, opened):
    for name in "ab":
        write(tmp_path / "data" / f"{name}.jsonl")
    index_sources({"s": config(tmp_path / "data")}, cache_dir=tmp_path / "cache")
    opened.clear()
    write(tmp_path / "data" / "b.jsonl", num_rows=21)
    os.utime(tmp_path / "data" / "a.jsonl", ns=(1, 1))
    write(tmp_path / "data" / "c.jsonl")
    blocks = index_sources({"s": config(tmp_path / "data")}, cache_dir=tmp_path / "cache")["s"]
    assert sorted(opened) == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert [shard.num_rows for shard in blocks.shards] == [20, 21, 20]


def test_another_cut_is_another_index(tmp_path, opened):
    write(tmp_path / "a.jsonl")
    small = index_sources({"s": config(tmp_path / "a.jsonl", 200)}, cache_dir=tmp_path / "cache")["s"]
    large = index_sources({"s": config(tmp_path / "a.jsonl", 400)}, cache_dir=tmp_path / "cache")["s"]
    assert large.num_blocks < small.num_blocks
    assert len(opened) == 2


def test_a_damaged_cache_is_built_again(tmp_path, opened):
    write(tmp_path / "a.jsonl")
    settings = {"s": config(tmp_path / "a.jsonl")}
    digest = index_sources(settings, cache_dir=tmp_path / "cache")["s"].digest
    (kept,) = (tmp_path / "cache").rglob("*.idx")
    whole = kept.read_bytes()
    flipped = whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:]
    for damaged in (b"", whole[:30], flipped, b"\x00" * 500):
        kept.write_bytes(damaged)
        opened.clear()
        assert index_sources(settings, cache_dir=tmp_path / "cache")["s"].digest == digest
        assert opened == ["a.jsonl"]
    assert kept.read_bytes() == whole


def test_a_cache_that_cannot_be_written_costs_a_warning_once(tmp_path, opened, caplog):
    for name in "ab":
        write(tmp_path / "data" / f"{name}.jsonl")
    (tmp_path / "cache").write_text("a file where the directory should be")
    for _ in range(2):
        assert index_sources({"s": config(tmp_path / "data")}, cache_dir=tmp_path / "cache")["s"].num_rows == 40
    assert len(opened) == 4
    assert len(caplog.records) == 2
    assert "set MSD_CACHE to a writable directory" in caplog.text


def test_nothing_is_written_beside_the_data_and_nothing_is_left_half_written(tmp_path, monkeypatch):
    write(tmp_path / "data" / "a.jsonl")
    monkeypatch.setenv("MSD_CACHE", str(tmp_path / "cache"))
    index_sources({"s": config(tmp_path / "data")})
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["a.jsonl"]
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert [path.suffix for path in kept] == [".idx"]


def test_processes_that_index_at_once_agree(tmp_path):
    for number in range(20):
        write(tmp_path / "data" / f"{number}.jsonl")
    settings = {"s": config(tmp_path / "data")}
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(index_sources, settings, cache_dir=tmp_path / "cache") for _ in range(4)]
        assert len({run.result()["s"].digest for run in runs}) == 1
    assert not list((tmp_path / "cache").rglob(".writing-*"))


def test_the_number_of_workers_changes_nothing(tmp_path):
    for number in range(10):
        write(tmp_path / "data" / f"{number}.jsonl", num_rows=number + 1)
    digests = set()
    for workers in (1, 3, 16):
        blocks = index_sources({"s": config(tmp_path / "data")}, cache_dir=tmp_path / str(workers), workers=workers)[
            "s"
        ]
        digests.add(blocks.digest)
    assert len(digests) == 1


def test_progress_counts_shards_and_bytes_of_all_sources(tmp_path):
    """Answers EN-6."""
    for name in ("a/1", "a/2", "b/1"):
        write(tmp_path / f"{name}.jsonl")
    sources = {"a": config(tmp_path / "a"), "b": config(tmp_path / "b")}
    seen: list[IndexProgress] = []
    index_sources(sources, cache_dir=tmp_path / "cache", on_progress=seen.append)
    assert [done.shards_done for done in seen] == [1, 2, 3]
    assert {done.shards_total for done in seen} == {3}
    assert seen[-1].bytes_done == seen[-1].bytes_total == sum(p.stat().st_size for p in tmp_path.rglob("*.jsonl"))
    assert sorted((done.source, done.shard) for done in seen) == [("a", "1.jsonl"), ("a", "2.jsonl"), ("b", "1.jsonl")]
    assert not any(done.is_cached for done in seen)
    again: list[IndexProgress] = []
    index_sources(sources, cache_dir=tmp_path / "cache", on_progress=again.append)
    assert all(done.is_cached for done in again)


def test_all_broken_files_are_reported_at_once_and_whole_ones_are_kept(tmp_path, opened):
    write(tmp_path / "data" / "good.jsonl")
    for number in range(5):
        (tmp_path / "data" / f"bad{number}.jsonl").write_bytes(b"")
    with pytest.raises(SourceError, match=r"bad0\.jsonl.*bad1\.jsonl.*bad2\.jsonl.*and 2 more files"):
        index_sources({"s": config(tmp_path / "data")}, cache_dir=tmp_path / "cache")
    opened.clear()
    with pytest.raises(SourceError):
        index_sources({"s": config(tmp_path / "data")}, cache_dir=tmp_path / "cache")
    assert "good.jsonl" not in opened


def test_a_split_and_its_rest_are_all_rows_once(tmp_path):
    write(tmp_path / "a.jsonl", num_rows=500)
    parts = []
    for split in ((0.0, 0.9), (0.9, 1.0)):
        settings = config(tmp_path / "a.jsonl", split=split)
        blocks = index_sources({"s": settings})["s"]
        reader = open_reader("s", settings, blocks)
        rows = [row for block in range(blocks.num_blocks) for row in reader.read_block(block, blocks.kept_rows(block))]
        assert len(rows) == blocks.num_rows
        parts.append([row["id"] for row in rows])
    assert sorted(parts[0] + parts[1]) == list(range(500))
    assert 20 < len(parts[1]) < 80


def test_the_digest_knows_names_and_cuts_but_not_places(tmp_path):
    digests = []
    for place, name, num_rows in (("1", "a", 20), ("2", "a", 20), ("3", "b", 20), ("4", "a", 21)):
        write(tmp_path / place / f"{name}.jsonl", num_rows=num_rows)
        digests.append(index_sources({"s": config(tmp_path / place)})["s"].digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_hundreds_of_sources_are_indexed_in_seconds(tmp_path):
    """Answers ML-3."""
    for number in range(300):
        write(tmp_path / f"{number}" / "a.jsonl", num_rows=5)
    sources = {f"source{number}": config(tmp_path / f"{number}") for number in range(300)}
    started = time.perf_counter()
    index_sources(sources, cache_dir=tmp_path / "cache")
    cold = time.perf_counter() - started
    index_sources(sources, cache_dir=tmp_path / "cache")
    warm = time.perf_counter() - started - cold
    assert cold < 10
    assert warm < 5


def test_memory_grows_with_blocks_not_with_rows(tmp_path):
    """Answers MS-9."""
    write(tmp_path / "a.jsonl", num_rows=200_000, text="")
    settings = {"s": config(tmp_path / "a.jsonl", 1 << 20)}
    index_sources({"s": config(tmp_path / "a.jsonl", 1 << 21)})
    tracemalloc.start()
    index_sources(settings)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "a.jsonl").stat().st_size > 4_000_000
    assert peak < 8 << 20


def test_an_index_of_another_file_under_the_same_key_is_not_taken(tmp_path):
    from msd.sources.files import ShardFile
    from msd.sources.shard import ShardIndex

    cache = IndexCache(tmp_path)
    file = ShardFile("a", "/data/a", 10, "10-1")
    cache.store(file, "jsonl", 5, ShardIndex.of([(0, 1, 0, 10)], {"text": ["string"]}))
    kept = cache.load(file, "jsonl", 5)
    assert kept is not None
    assert kept.schema == {"text": ["string"]}
    assert cache.load(file._replace(version="10-2"), "jsonl", 5) is None
    assert cache.load(file._replace(path="/data/b"), "jsonl", 5) is None
    assert cache.load(file, "text", 5) is None


def test_a_reader_holds_few_files_open(tmp_path, monkeypatch):
    for number in range(12):
        write(tmp_path / f"{number:02}.jsonl", num_rows=2)
    settings, most = config(tmp_path), []
    blocks = index_sources({"s": settings})["s"]
    monkeypatch.setattr(descriptors, "_OPEN", OrderedDict())
    reader = open_reader("s", settings, blocks)
    for block in range(blocks.num_blocks):
        reader.read_block(block, np.array([0]))
        most.append(descriptors.num_open_files())
    assert most == [1, 2, 3, *[4] * 9]
    reader.close()
    assert descriptors.num_open_files() == 0

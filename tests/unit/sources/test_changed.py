"""A file that is not the one that was indexed gives no row."""

import datetime as dt
import gzip
import io
import json
import os
import tarfile

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from msd.errors import SourceError
from msd.sources.config import ReaderConfig, ShuffleConfig
from msd.sources.index import index_sources
from msd.sources.open import open_reader
from msd.sources.versions import has_changed, version_of_info


def write(path, word):
    rows = [{"text": f"{word} {number:03}"} for number in range(400)]
    if path.suffix == ".parquet":
        # Without statistics and compression, so that the size is the same whatever the words.
        table = pa.Table.from_pylist(rows)
        pq.write_table(table, path, row_group_size=100, compression="none", use_dictionary=False)
    elif path.suffix == ".arrow":
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_file(path, table.schema) as out:
            out.write_table(table, max_chunksize=100)
    elif path.suffix == ".txt":
        path.write_text(word)
    elif path.suffix == ".tar":
        with tarfile.open(path, "w") as out:
            for number in range(40):
                member = tarfile.TarInfo(f"{number:03}.txt")
                member.size = len(word)
                out.addfile(member, io.BytesIO(word.encode()))
    else:
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(data, compresslevel=0, mtime=0) if path.suffix == ".gz" else data)


def indexed(path, **settings):
    config = ReaderConfig(path=str(path), shuffle=ShuffleConfig(block_bytes=2000), **settings)
    blocks = index_sources({"s": config})["s"]
    return blocks, open_reader("s", config, blocks)


CASES = [("a.jsonl", {}), ("a.jsonl.gz", {}), ("a.parquet", {}), ("a.parquet", {"engine": "fastparquet"}),
         ("a.arrow", {}), ("a.tar", {}), ("a.txt", {})]  # fmt: skip


@pytest.mark.parametrize(("name", "settings"), CASES, ids=[f"{n}-{len(s)}" for n, s in CASES])
@pytest.mark.parametrize("when", ["before", "while"])
def test_a_file_written_anew_at_the_same_size_is_refused(tmp_path, name, settings, when):
    path = tmp_path / name
    write(path, "first")
    os.utime(path, (1, 1))
    blocks, reader = indexed(path, **settings)
    if when == "while" and blocks.num_blocks > 1:
        assert len(reader.read_block(0, np.array([0]))) == 1
    nbytes = path.stat().st_size
    write(path, "other")
    assert path.stat().st_size == nbytes
    if when == "while" and name.endswith(".gz"):
        # All of it was read at once, so its rows are those that were indexed.
        assert reader.read_block(blocks.num_blocks - 1, np.array([0]))[0]["text"].startswith("first")
    else:
        with pytest.raises(SourceError, match=r"a\.\S+ changed since it was indexed: .*written again; run `msd index`"):
            reader.read_block(blocks.num_blocks - 1, np.array([0]))
    reader.close()


def test_the_same_data_with_other_times_has_the_same_identity(tmp_path):
    write(tmp_path / "a.jsonl", "first")
    before, _ = indexed(tmp_path)
    os.utime(tmp_path / "a.jsonl", (1, 1))
    after, reader = indexed(tmp_path)
    assert before.shards[0].version != after.shards[0].version
    assert before.digest == after.digest
    assert before.shards == after.shards
    assert reader.read_block(0, np.array([0])) == [{"text": "first 000"}]
    reader.close()


def test_a_remote_file_written_anew_is_refused(request):
    memory, path = fsspec.filesystem("memory"), f"/{request.node.name}.jsonl"
    memory.pipe(path, b'{"text": "first"}\n')
    _, reader = indexed(f"memory:/{path}")
    assert reader.read_block(0, np.array([0])) == [{"text": "first"}]
    reader.close()
    memory.pipe(path, b'{"text": "other"}\n')
    with pytest.raises(SourceError, match="written again"):
        reader.read_block(0, np.array([0]))
    reader.close()
    memory.rm(path)


@pytest.mark.parametrize(
    ("indexed", "now", "changed"),
    [
        ("5-10", "5-10", False),
        ("5-10", "5-11", True),
        ("", "5-11", False),
        ("5-ETag:a", "5-ETag:b", True),
        ("5-ETag:a:b", "5-ETag:a:b", False),
        ("5-LastModified:2026", "5-ETag:b", False),
        ("5-LastModified:2026-01-01", "5-LastModified:Thu, 01 Jan 2026", False),
        ("5-created:1.500", "5-created:2.500", True),
        ("None-", "5-ETag:b", False),
    ],
)
def test_only_versions_of_one_kind_are_compared(indexed, now, changed):
    assert has_changed(indexed, now) is changed


def test_one_time_in_two_notations_is_one_version():
    when = dt.datetime(2026, 1, 1, 0, 0, 0, 614484, tzinfo=dt.UTC)
    listed, asked = (
        version_of_info({"size": 5, "created": when.timestamp()}),
        version_of_info({"size": 5, "created": when}),
    )
    assert listed == asked == "5-created:1767225600.614"
    assert version_of_info({"size": 5, "ETag": '"a"'}) == version_of_info({"size": 5, "ETag": "a", "created": 1})

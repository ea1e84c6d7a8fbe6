import io
import json
import zipfile

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from msd.errors import SourceError
from msd.sources.config import ReaderConfig
from msd.sources.index import index_sources, list_shards
from msd.sources.remote import NUM_RETRIES, RemoteFile, retried
from msd.testing.conformance import check_source

ROWS = [{"text": f"row {number}"} for number in range(50)]


@pytest.fixture
def bucket(request):
    memory = fsspec.filesystem("memory")
    root = f"/{request.node.name}"
    yield memory, root
    memory.rm(root, recursive=True)


def test_remote_files_give_the_same_source_as_local_ones(bucket, tmp_path):
    memory, root = bucket
    data = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    for folder in ("a", "b"):
        memory.pipe(f"{root}/web/{folder}/x.jsonl", data)
        memory.pipe(f"{root}/web/{folder}/.hidden.jsonl", b"rubbish")
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jsonl").write_bytes(data)
    for path in (f"memory:/{root}/web", f"memory:/{root}/web/**/*.jsonl", f"memory:/{root}/web/{{a,b}}/x.jsonl"):
        blocks = check_source({"path": path}, expected=ROWS * 2)
        assert blocks.digest == index_sources({"s": ReaderConfig(path=str(tmp_path))})["s"].digest
        assert blocks.shards[0].path.endswith(f"{root}/web/a/x.jsonl")


def test_remote_parquet_is_read_in_place(bucket):
    memory, root = bucket
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), out, row_group_size=20)
    memory.pipe(f"{root}/x.parquet", out.getvalue())
    blocks = check_source({"path": f"memory:/{root}/x.parquet"}, expected=ROWS)
    assert blocks.num_blocks == 3


def test_a_chained_url_keeps_its_chain(tmp_path):
    with zipfile.ZipFile(tmp_path / "pack.zip", "w") as packed:
        packed.writestr("in/a.jsonl", json.dumps(ROWS[0]) + "\n")
        packed.writestr("in/b.jsonl", json.dumps(ROWS[1]) + "\n")
    url = f"zip://in/*.jsonl::file://{tmp_path}/pack.zip"
    assert [shard.name for shard in list_shards("s", ReaderConfig(format="jsonl", path=url))] == ["a.jsonl", "b.jsonl"]
    check_source({"format": "jsonl", "path": url}, expected=ROWS[:2])


def test_what_does_not_exist_is_refused(bucket):
    memory, root = bucket
    memory.pipe(f"{root}/a.txt", b"x")
    with pytest.raises(SourceError, match="does not exist"):
        list_shards("s", ReaderConfig(format="jsonl", path=f"memory:/{root}/none"))
    with pytest.raises(SourceError, match="matches no file"):
        list_shards("s", ReaderConfig(format="jsonl", path=f"memory:/{root}/*.jsonl"))
    with pytest.raises(SourceError, match="cannot reach nosuch://x"):
        list_shards("s", ReaderConfig(format="jsonl", path="nosuch://x"))


def test_a_transient_error_is_tried_again_with_growing_waits():
    """Answers HF-11."""
    waits, failures = [], [OSError("reset"), TimeoutError("slow"), ConnectionError("gone")]

    def action():
        if failures:
            raise failures.pop()
        return "read"

    assert retried(action, "s3://x", sleep=waits.append) == "read"
    assert len(waits) == NUM_RETRIES
    for number, wait in enumerate(waits):
        assert 0.2 * 2**number <= wait <= 0.3 * 2**number


@pytest.mark.parametrize(("error", "tries"), [(FileNotFoundError, 1), (PermissionError, 1), (ConnectionError, 4)])
def test_an_error_that_lasts_is_raised(error, tries):
    calls = []

    def action():
        calls.append(1)
        raise error("no")

    with pytest.raises(error):
        retried(action, "s3://x", sleep=lambda _: None)
    assert len(calls) == tries


def test_a_read_that_fails_goes_on_at_its_position(bucket, monkeypatch):
    memory, root = bucket
    memory.pipe(f"{root}/x", bytes(range(100)))
    file = RemoteFile(f"memory:/{root}/x", {}, sleep=lambda _: None)
    assert file.read(10) == bytes(range(10))
    original, failures = type(memory).open, [OSError("reset"), OSError("reset")]

    def flaky(self, *arguments, **options):
        if failures:
            raise failures.pop()
        return original(self, *arguments, **options)

    monkeypatch.setattr(type(memory), "open", flaky)
    file._lent.close()
    assert file.read(5) == bytes(range(10, 15))
    assert file.seek(-5, io.SEEK_END) == 95
    assert file.read() == bytes(range(95, 100))
    assert not failures
    file.close()


def test_a_remote_file_that_changed_is_indexed_again(bucket):
    memory, root = bucket
    memory.pipe(f"{root}/a.jsonl", b'{"text": "x"}\n')
    config = ReaderConfig(path=f"memory:/{root}/a.jsonl")
    assert index_sources({"s": config})["s"].num_rows == 1
    memory.pipe(f"{root}/a.jsonl", b'{"text": "x"}\n' * 3)
    blocks = index_sources({"s": config})["s"]
    assert blocks.num_rows_B.tolist() == [3]
    assert np.array_equal(blocks.kept_rows(0), [0, 1, 2])


@pytest.mark.parametrize("pattern", ["a.jsonl", "*.jsonl", ""])
@pytest.mark.parametrize("head", ["simplecache::file://", "simplecache::", "filecache::file://"])
def test_a_cached_local_url_keeps_its_slash(tmp_path, head, pattern):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.jsonl").write_text(json.dumps(ROWS[0]) + "\n")
    url = f"{head}{tmp_path}/d/{pattern}"
    assert [shard.name for shard in list_shards("s", ReaderConfig(format="jsonl", path=url))] == ["a.jsonl"]
    check_source({"format": "jsonl", "path": url}, expected=ROWS[:1])


def test_a_cached_archive_keeps_all_of_its_chain(tmp_path):
    with zipfile.ZipFile(tmp_path / "pack.zip", "w") as packed:
        packed.writestr("in/a.jsonl", json.dumps(ROWS[0]) + "\n")
    for head in ("zip://in/*.jsonl::simplecache::file://", "zip://in/a.jsonl::", "zip://in::file://"):
        check_source({"format": "jsonl", "path": f"{head}{tmp_path}/pack.zip"}, expected=ROWS[:1])


def test_whatever_a_store_raises_names_the_url(tmp_path, monkeypatch, bucket):
    (tmp_path / "no.zip").write_text("no archive")
    monkeypatch.chdir(tmp_path)
    for url, why in (
        ("zip://x::missing.zip", "missing.zip"),
        ("zip://x::no.zip", "BadZipFile"),
        (f"zip://*::file://{tmp_path}/no.zip", "BadZipFile"),
    ):
        with pytest.raises(SourceError, match=f"sources.s: .*{why}") as raised:
            list_shards("s", ReaderConfig(format="jsonl", path=url))
        assert url in str(raised.value)
    memory, root = bucket
    memory.pipe(f"{root}/a.jsonl", b'{"text": "x"}\n')

    def broken(self, path, **options):
        raise LookupError("no such region")

    monkeypatch.setattr("msd.sources.remote.time.sleep", lambda _: None)
    with monkeypatch.context() as patched:
        patched.setattr(type(memory), "info", broken)
        with pytest.raises(SourceError, match=r"memory.*LookupError: no such region"):
            list_shards("s", ReaderConfig(format="jsonl", path=f"memory:/{root}/a.jsonl"))


def test_what_a_store_raises_while_reading_is_tried_again(bucket, monkeypatch):
    memory, root = bucket
    memory.pipe(f"{root}/x", bytes(range(100)))
    file = RemoteFile(f"memory:/{root}/x", {}, sleep=lambda _: None)
    original, failures = type(memory).open, [LookupError("throttled"), ValueError("half an answer")]

    def flaky(self, *arguments, **options):
        if failures:
            raise failures.pop()
        return original(self, *arguments, **options)

    monkeypatch.setattr(type(memory), "open", flaky)
    assert file.read(5) == bytes(range(5))
    file.close()

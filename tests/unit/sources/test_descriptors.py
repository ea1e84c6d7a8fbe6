import errno
import json
import os
import subprocess
import sys
import threading
from collections import OrderedDict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from msd.errors import ConfigError, EngineError, SourceError
from msd.sources import descriptors
from msd.sources.config import ReaderConfig, ShuffleConfig
from msd.sources.descriptors import Lent, limit_open_files, num_open_files, open_files_limit, with_descriptors
from msd.sources.files import Opener, reading
from msd.sources.index import index_sources
from msd.sources.open import open_reader

ROWS = [{"text": f"row {number}"} for number in range(40)]


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Files that other tests hold open do not count."""
    monkeypatch.setattr(descriptors, "_OPEN", OrderedDict())
    monkeypatch.setattr(descriptors, "_chosen_limit", None)


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def put(path, ending):
    path.parent.mkdir(exist_ok=True)
    table = pa.Table.from_pylist(ROWS)
    if ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif ending == "parquet":
        pq.write_table(table, path, row_group_size=10)
    else:
        words = table.set_column(0, "text", table.column("text").dictionary_encode()) if ending == "arrows" else table
        new = pa.ipc.new_stream if ending == "arrows" else pa.ipc.new_file
        with new(path, words.schema) as out:
            out.write_table(words, max_chunksize=10)


def sources(folder, count, ending):
    for number in range(count):
        for shard in "ab":
            put(folder / f"{number}" / f"{shard}.{ending}", ending)
    return {
        f"s{number}": ReaderConfig(path=str(folder / str(number)), shuffle=ShuffleConfig(block_bytes=200))
        for number in range(count)
    }


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "arrow", "arrows"])
def test_readers_share_the_open_files_of_the_process_and_give_every_row(tmp_path, ending):
    configs = sources(tmp_path, 12, ending)
    tables = index_sources(configs)
    readers = {name: open_reader(name, configs[name], tables[name]) for name in configs}
    limit_open_files(5)
    before, most = open_descriptors(), 0
    given = {name: [] for name in configs}
    for block in range(tables["s0"].num_blocks):
        for name, reader in readers.items():
            given[name] += reader.read_block(block, np.arange(tables[name].num_rows_B[block]))
            most = max(most, open_descriptors() - before)
    assert 1 <= most <= 5
    assert all(rows == ROWS * 2 for rows in given.values())
    for reader in readers.values():
        reader.close()
    assert num_open_files() == 0
    assert open_descriptors() == before


def test_threads_share_them_too(tmp_path):
    configs = sources(tmp_path, 6, "jsonl")
    tables = index_sources(configs)
    limit_open_files(2)
    given = {}

    def read(name):
        reader, blocks = open_reader(name, configs[name], tables[name]), tables[name]
        rows = [reader.read_block(block, np.arange(blocks.num_rows_B[block])) for block in range(blocks.num_blocks)]
        given[name] = [row for part in rows for row in part]
        reader.close()

    threads = [threading.Thread(target=read, args=(name,)) for name in configs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert given == dict.fromkeys(configs, ROWS * 2)
    assert num_open_files() == 0


def test_what_is_in_use_is_not_closed_for_others():
    closed = []
    busy, idle, other = (Lent(lambda name=name: name, closed.append) for name in ("busy", "idle", "other"))
    limit_open_files(2)
    with busy.use():
        with idle.use():
            pass
        with other.use():
            pass
    assert closed == ["idle"]


def test_a_process_without_a_free_descriptor_closes_idle_files_and_goes_on():
    freed, failures = [], [OSError(errno.EMFILE, "Too many open files")]
    with Lent(lambda: "idle", freed.append).use():
        pass

    def open_one():
        if failures:
            raise failures.pop()
        return "opened"

    assert with_descriptors(open_one) == "opened"
    assert freed == ["idle"]


@pytest.mark.parametrize(("number", "remedy"), [(errno.EMFILE, "ulimit -n"), (errno.ENFILE, "fs.file-max")])
def test_no_file_is_blamed_for_a_limit_of_the_process(tmp_path, monkeypatch, number, remedy):
    put(tmp_path / "a.jsonl", "jsonl")

    def exhausted():
        raise OSError(number, "Too many open files")

    with pytest.raises(EngineError, match=remedy):
        with_descriptors(exhausted)
    with pytest.raises(EngineError, match=remedy), reading("a.jsonl"):
        exhausted()
    monkeypatch.setattr(Opener, "open", lambda self, path: exhausted())
    with pytest.raises(EngineError, match=remedy):
        index_sources({"s": ReaderConfig(path=str(tmp_path / "a.jsonl"))})


def test_the_limit_can_be_set_and_leaves_room_below_that_of_the_system(monkeypatch):
    monkeypatch.setattr(descriptors, "_soft_limit", lambda: 256)
    assert open_files_limit() == 96
    monkeypatch.setattr(descriptors, "_soft_limit", lambda: 20)
    assert open_files_limit() == 1
    monkeypatch.setattr(descriptors, "_soft_limit", lambda: 1 << 20)
    assert open_files_limit() == 128
    monkeypatch.setenv("MSD_OPEN_FILES", "17")
    assert open_files_limit() == 17
    for wrong in ("0", "-1", "many", "1.5"):
        monkeypatch.setenv("MSD_OPEN_FILES", wrong)
        with pytest.raises(ConfigError, match="MSD_OPEN_FILES must be a number"):
            open_files_limit()
    limit_open_files(3)
    assert open_files_limit() == 3
    with pytest.raises(ConfigError, match="at least 1"):
        limit_open_files(0)


def test_three_hundred_sources_of_five_files_run_at_ulimit_256(tmp_path):
    """Answers ML-1."""
    program = """
import json, os, resource, sys
import numpy as np
from msd.sources.config import ReaderConfig
from msd.sources.index import index_sources
from msd.sources.open import open_reader
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
root, configs = sys.argv[1], {}
for number in range(300):
    os.mkdir(f"{root}/{number}")
    for shard in range(5):
        with open(f"{root}/{number}/{shard}.jsonl", "w") as out:
            out.write('{"text": "x"}\\n' * 4)
    configs[str(number)] = ReaderConfig(path=f"{root}/{number}")
tables = index_sources(configs)
readers = [open_reader(name, configs[name], tables[name]) for name in configs]
rows = sum(len(reader.read_block(shard, np.arange(4))) for shard in range(5) for reader in readers)
print(rows, len(os.listdir("/proc/self/fd")) < 128)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stderr == ""
    assert ran.stdout.split() == ["6000", "True"]


def test_a_broken_file_is_still_a_broken_file(tmp_path):
    with pytest.raises(SourceError, match="cannot be read"), reading("a.jsonl"):
        raise OSError(errno.EIO, "Input/output error")

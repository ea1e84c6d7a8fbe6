import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pytest

from msd.errors import SourceError
from msd.sources.config import ReaderConfig, ShuffleConfig
from msd.sources.index import index_sources
from msd.testing.conformance import check_source

ROWS = [{"id": number, "text": "word " * (number % 7), "kind": "ab"[number % 2]} for number in range(500)]


def config(path, block_bytes=1 << 20, **settings):
    return ReaderConfig(path=str(path), format="arrow", shuffle=ShuffleConfig(block_bytes=block_bytes), **settings)


def table(dictionary=False):
    made = pa.Table.from_pylist(ROWS)
    return made.set_column(2, "kind", made["kind"].dictionary_encode()) if dictionary else made


def write(path, made, *, stream=False, rows=100, compression=None):
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(path, made.schema, options=options) as writer:
        writer.write_table(made, max_chunksize=rows)


@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_record_batches_are_blocks_with_random_access(tmp_path, stream, compression):
    write(tmp_path / "a.arrow", table(), stream=stream, compression=compression)
    blocks = check_source(config(tmp_path), expected=ROWS)
    assert blocks.num_rows_B.tolist() == [100] * 5
    assert blocks.unit_B.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
def test_a_larger_batch_is_one_unit_of_several_blocks(tmp_path, stream):
    write(tmp_path / "a.arrow", table(), stream=stream, rows=250)
    blocks = check_source(config(tmp_path, 2000), expected=ROWS)
    assert blocks.num_blocks > 5
    assert set(blocks.unit_B.tolist()) == {0, 1}


def test_a_stream_with_dictionaries_is_read_from_its_start(tmp_path):
    write(tmp_path / "a.arrow", table(dictionary=True), stream=True)
    blocks = check_source(config(tmp_path), expected=ROWS)
    assert blocks.unit_B.tolist() == [0] * 5


def test_feather_and_columns(tmp_path):
    pyarrow.feather.write_feather(table(dictionary=True), tmp_path / "a.feather", chunksize=64)
    rows = [{"text": row["text"], "id": row["id"]} for row in ROWS]
    check_source(config(tmp_path, columns=["text", "id"]), expected=rows)


@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
def test_a_file_that_is_not_whole_is_refused_by_name(tmp_path, stream):
    path = tmp_path / "a.arrow"
    write(path, table(), stream=stream)
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], b"", b"FEA1" + whole):
        path.write_bytes(data)
        with pytest.raises(SourceError, match=r"a\.arrow"):
            index_sources({"s": config(tmp_path)})


def test_rows_outlive_the_reader(tmp_path):
    made = pa.table({"ids": [list(range(number, number + 50)) for number in range(100)]})
    write(tmp_path / "a.arrow", made)
    from msd.sources.open import open_reader

    blocks = index_sources({"s": config(tmp_path)})["s"]
    reader = open_reader("s", config(tmp_path), blocks)
    rows = reader.read_block(0, np.array([7, 3]))
    reader.close()
    assert [row["ids"].tolist()[0] for row in rows] == [7, 3]

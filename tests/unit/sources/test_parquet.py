import datetime as dt
import decimal
import os
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from msd.errors import ConfigError, SourceError
from msd.sources.base import BadRow
from msd.sources.config import ReaderConfig, ShuffleConfig
from msd.sources.index import entry_cost, index_sources
from msd.sources.open import open_reader
from msd.testing.conformance import check_source, same_row

# fastparquet asks pandas for an option when it is imported, and takes the warning, which tests raise, for a no: it
# would decode text in another way here than in a run.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import fastparquet

ENGINES = ["pyarrow", "fastparquet"]


def config(path, block_bytes=1 << 20, **settings):
    return ReaderConfig(path=str(path), format="parquet", shuffle=ShuffleConfig(block_bytes=block_bytes), **settings)


def read(path, **settings):
    blocks = index_sources({"s": config(path, **settings)})["s"]
    reader = open_reader("s", config(path, **settings), blocks)
    return [
        row
        for block in range(blocks.num_blocks)
        for row in reader.read_block(block, np.arange(blocks.num_rows_B[block]))
    ]


def texts(num_rows):
    return [{"id": number, "text": f"row {number} " + "x" * (number % 50)} for number in range(num_rows)]


@pytest.mark.parametrize("engine", ENGINES)
def test_row_groups_within_the_cap_are_blocks_with_random_access(tmp_path, engine):
    pq.write_table(pa.Table.from_pylist(texts(1000)), tmp_path / "a.parquet", row_group_size=100)
    blocks = check_source(config(tmp_path, engine=engine), expected=texts(1000))
    assert blocks.num_rows_B.tolist() == [100] * 10
    assert blocks.unit_B.tolist() == list(range(10))
    assert not entry_cost(blocks).any()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_larger_row_group_is_one_unit_of_several_blocks(tmp_path, engine):
    pq.write_table(pa.Table.from_pylist(texts(1000)), tmp_path / "a.parquet", row_group_size=600)
    blocks = check_source(config(tmp_path, 4000, engine=engine), expected=texts(1000))
    assert blocks.num_blocks > 6
    assert set(blocks.unit_B.tolist()) == {0, 1}
    assert blocks.nbytes_B.max() <= 4000
    assert entry_cost(blocks)[1] == blocks.nbytes_B[0]


def test_values_are_plain_python_and_lists_of_numbers_are_arrays(tmp_path):
    when = dt.datetime(2024, 5, 6, 7, 8, 9, 123456)
    table = pa.table(
        {
            "tokens": pa.array([[1, 2], None, []], pa.list_(pa.int32())),
            "holes": pa.array([[1, None], [], None], pa.list_(pa.int64())),
            "vector": pa.array([[0.5, 1.5], [2.5, 3.5], None], pa.list_(pa.float32(), 2)),
            "image": pa.array([{"bytes": b"\x89", "path": None}, None, {"bytes": None, "path": "p"}]),
            "turns": pa.array([[{"role": "user", "text": "hi"}], [], None]),
            "kind": pa.array(["a", None, "b"]).dictionary_encode(),
            "price": pa.array([decimal.Decimal("1.10"), None, decimal.Decimal("2.00")]),
            "time": pa.array([when, None, when], pa.timestamp("ns")),
            "nested": pa.array([{"at": when}, None, {"at": None}], pa.struct([("at", pa.timestamp("ns"))])),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    first, second, third = read(tmp_path)
    assert first["tokens"].dtype == np.int32
    assert first["tokens"].tolist() == [1, 2]
    assert not first["tokens"].flags.writeable
    assert (second["tokens"], third["tokens"].tolist()) == (None, [])
    assert (first["holes"], second["holes"].tolist(), third["holes"]) == ([1, None], [], None)
    assert (second["vector"].tolist(), third["vector"]) == ([2.5, 3.5], None)
    assert (first["image"], second["image"]) == ({"bytes": b"\x89", "path": None}, None)
    assert first["turns"] == [{"role": "user", "text": "hi"}]
    assert (first["kind"], first["price"]) == ("a", decimal.Decimal("1.10"))
    assert (first["time"], type(first["time"])) == (when, dt.datetime)
    assert first["nested"] == {"at": when}
    check_source(config(tmp_path), expected=[first, second, third])


def test_both_engines_give_the_same_rows(tmp_path):
    when = dt.datetime(2024, 5, 6, 7, 8, 9, 123456)
    table = pa.table(
        {
            "i": pa.array([1, None, -3, 4], pa.int64()),
            "u": pa.array([1, 2, 3, 255], pa.uint8()),
            "f": pa.array([1.5, None, -2.0, None]),
            "nan": pa.array([1.5, float("nan"), 0.0, -0.0], pa.float32()),
            "s": ["a", None, "é日", ""],
            "b": pa.array([b"x", None, b"\xff", b""]),
            "flag": [True, None, False, True],
            "ids": pa.array([[1, 2], None, [], [3]], pa.list_(pa.int32())),
            "words": [["a", None], [], None, ["b"]],
            "when": pa.array([when, None, when, when], pa.timestamp("us")),
            "zoned": pa.array([when, None, when, when], pa.timestamp("us", tz="UTC")),
            "day": [dt.date(2024, 1, 2), None, dt.date(1969, 3, 4), dt.date(2100, 1, 1)],
            "clock": pa.array([dt.time(1, 2, 3, 4), None, dt.time(0), dt.time(23)], pa.time64("us")),
            "kind": pa.array(["a", None, "b", "a"]).dictionary_encode(),
            "nothing": pa.nulls(4),
        }
    )
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(table, tmp_path / name, compression="zstd" if name[0] == "a" else "gzip", row_group_size=3)
    one, other = read(tmp_path), read(tmp_path, engine="fastparquet")
    assert len(one) == 8
    for column in table.column_names:
        for first, second in zip(one, other, strict=True):
            assert same_row(first[column], second[column]), (column, first[column], second[column])


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (pa.array([{"a": 1}]), "fastparquet cannot give column 'x'"),
        (pa.array([decimal.Decimal("1.1")]), "fastparquet cannot give column 'x'"),
        (pa.array([[[1]]]), "fastparquet cannot give column 'x'"),
        (pa.array([1.0, None, float("nan")]), "does not tell nulls and NaN of column 'x' apart"),
        (
            pa.array([[1]], pa.list_(pa.field("element", pa.int32(), nullable=False))),
            "fastparquet cannot give column 'x'",
        ),
    ],
    ids=["struct", "decimal", "nested", "nan", "required"],
)
def test_what_fastparquet_would_change_is_refused_with_the_remedy(tmp_path, column, found):
    pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=f"{found}.*engine: pyarrow"):
        read(tmp_path, engine="fastparquet")
    assert len(read(tmp_path)) == len(column)


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"use_dictionary": False},
        {"dictionary_pagesize_limit": 2000, "data_page_size": 1000},
        {"compression": "zstd", "write_batch_size": 100, "data_page_size": 2000},
    ],
    ids=["default", "plain", "grown-dictionary", "small-pages"],
)
def test_both_engines_agree_however_the_pages_are_laid_out(tmp_path, layout):
    rows = [
        {
            "text": None if n % 7 == 3 else f"text {n} " * 9,
            "words": [f"w{n}", None] * (n % 3),
            "bytes": b"%d" % n * 9,
            "n": n,
        }
        for n in range(3000)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", **layout)
    for engine in ENGINES:
        check_source(config(tmp_path, engine=engine), expected=rows)


def test_a_value_that_fastparquet_did_not_read_is_noticed(tmp_path, monkeypatch):
    pq.write_table(pa.table({"text": ["a", "b", None]}), tmp_path / "a.parquet")
    original = fastparquet.ParquetFile.to_pandas

    def lossy(self, **options):
        frame = original(self, **options)
        frame.loc[1, "text"] = None
        return frame

    monkeypatch.setattr(fastparquet.ParquetFile, "to_pandas", lossy)
    with pytest.raises(SourceError, match="found 2 nulls in column 'text' where the file says 1; set engine: pyarrow"):
        read(tmp_path, engine="fastparquet")


@pytest.mark.parametrize("engine", ENGINES)
def test_only_the_columns_named_are_read(tmp_path, engine):
    pq.write_table(pa.table({"id": [1, 2], "text": ["a", "b"], "extra": [None, 1.5]}), tmp_path / "a.parquet")
    assert [set(row) for row in read(tmp_path, engine=engine, columns=["text", "id"])] == [{"id", "text"}] * 2
    with pytest.raises(SourceError, match=r"no column 'txet'; did you mean 'text'"):
        read(tmp_path, engine=engine, columns=["txet"])


def test_a_value_that_python_cannot_hold_makes_its_row_bad(tmp_path):
    text = pa.array([b"fine", b"\xff\xfe", b"too"]).cast(pa.binary()).view(pa.string())
    far = pa.array([0, 0, 10**15], pa.int64()).view(pa.timestamp("s"))
    pq.write_table(pa.table({"text": text, "at": far.cast(pa.timestamp("ms"))}), tmp_path / "a.parquet")
    first, second, third = read(tmp_path)
    assert first["text"] == "fine"
    assert isinstance(second, BadRow)
    assert "column 'text'" in second.reason
    assert isinstance(third, BadRow)
    assert "column 'at'" in third.reason


def test_shards_that_differ_only_in_storage_make_one_source(tmp_path):
    pq.write_table(
        pa.table({"t": pa.array(["a"], pa.large_string()), "n": pa.array([1], pa.int32())}), tmp_path / "a.parquet"
    )
    pq.write_table(
        pa.table({"n": pa.array([2], pa.int64()), "t": pa.array(["b"]).dictionary_encode()}), tmp_path / "b.parquet"
    )
    pq.write_table(pa.table({"t": ["c"], "n": pa.nulls(1)}), tmp_path / "c.parquet")
    assert [(row["t"], row["n"]) for row in read(tmp_path)] == [("a", 1), ("b", 2), ("c", None)]


@pytest.mark.parametrize(
    ("second", "found"),
    [
        ({"text": ["b"], "extra": [1]}, "only the second has extra"),
        ({"txt": ["b"]}, "only the first has text; only the second has txt"),
        ({"text": [5]}, "text is string in the first and int in the second"),
        ({"text": [["b"]]}, "text is string in the first and list of string in the second"),
    ],
    ids=["extra", "renamed", "kind", "list"],
)
def test_shards_with_different_columns_are_refused_naming_both(tmp_path, second, found):
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table(second), tmp_path / "b.parquet")
    with pytest.raises(SourceError, match=found) as raised:
        read(tmp_path)
    assert "a.parquet" in str(raised.value)
    assert "b.parquet" in str(raised.value)
    assert "make two sources" in str(raised.value)


def test_shards_need_to_agree_only_in_the_columns_that_are_read(tmp_path):
    pq.write_table(pa.table({"text": ["a"], "n": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["b"], "n": ["x"], "m": [1]}), tmp_path / "b.parquet")
    assert read(tmp_path, columns=["text"]) == [{"text": "a"}, {"text": "b"}]


def test_files_that_are_not_whole_parquet_are_refused_by_name(tmp_path):
    whole = tmp_path / "whole.parquet"
    pq.write_table(pa.table({"text": ["a"] * 1000}), whole)
    data = whole.read_bytes()
    whole.unlink()
    cases = {
        "a.parquet": (b"", "0 bytes"),
        "b.parquet": (b'{"text": "a"}\n', "is not a Parquet file: it starts with"),
        "c.parquet": (data[:-10], "truncated"),
        "d.parquet": (data[:4] + bytes(len(data) - 8) + data[-4:], "cannot be read"),
    }
    for name, (content, found) in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(SourceError, match=found) as raised:
            index_sources({"web": config(path)})
        assert str(path) in str(raised.value)
    with pytest.raises(SourceError, match=r"a\.parquet.*b\.parquet.*c\.parquet.*and 1 more"):
        index_sources({"web": config(tmp_path)})


def test_a_damaged_page_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"text {number}" for number in range(1000)]}), path, compression="zstd")
    settings = config(path)
    blocks = index_sources({"s": settings})["s"]
    data = bytearray(path.read_bytes())
    data[100:200] = bytes(100)
    status = path.stat()
    path.write_bytes(data)
    # What a disk does to a file leaves its times alone.
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(SourceError, match=r"sources\.s: .*a\.parquet cannot be read"):
        open_reader("s", settings, blocks).read_block(0, np.array([0]))


def test_a_file_without_rows_is_legal(tmp_path):
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "b.parquet")
    blocks = check_source(config(tmp_path), expected=[{"text": "x"}])
    assert [shard.num_rows for shard in blocks.shards] == [0, 1]


def test_two_columns_of_one_name_are_refused(tmp_path):
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="2 columns named 'a'"):
        index_sources({"s": config(tmp_path)})


def test_a_name_with_a_dot_is_the_column_of_that_name(tmp_path):
    table = pa.table({"x": [{"y": 2}], "x.y": [1], "z": [3]})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path) == [{"x": {"y": 2}, "x.y": 1, "z": 3}]
    assert read(tmp_path, columns=["x.y"]) == [{"x.y": 1}]
    assert read(tmp_path, columns=["z", "x", "z"]) == [{"z": 3, "x": {"y": 2}}]
    with pytest.raises(SourceError, match=r"column 'x\.y'.*names with dots are ambiguous.*set engine: pyarrow"):
        read(tmp_path, columns=["x.y"], engine="fastparquet")
    with pytest.raises(SourceError, match=r"column 'x'.*names with dots are ambiguous.*set engine: pyarrow"):
        read(tmp_path, columns=["x"], engine="fastparquet")
    assert read(tmp_path, columns=["z"], engine="fastparquet") == [{"z": 3}]


def test_no_columns_at_all_are_refused():
    with pytest.raises(ConfigError, match=r"columns: \[\] reads no column"):
        ReaderConfig(path="a.parquet", columns=[])


@pytest.mark.parametrize("engine", ENGINES)
def test_columns_come_in_the_order_asked_each_once(tmp_path, engine):
    pq.write_table(pa.table({"a": [1, 2], "b": [3, 4]}), tmp_path / "a.parquet")
    rows = read(tmp_path, columns=["b", "a", "b"], engine=engine)
    assert [list(row.items()) for row in rows] == [[("b", 3), ("a", 1)], [("b", 4), ("a", 2)]]

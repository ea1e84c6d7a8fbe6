import datetime as dt

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from msd.errors import SourceError
from msd.sources.base import BadRow
from msd.sources.config import ReaderConfig, ShuffleConfig
from msd.sources.index import index_sources
from msd.sources.open import open_reader
from msd.testing.conformance import check_source

ROWS = [{"id": number, "text": "word " * (number % 9)} for number in range(200)]


def config(rows, block_bytes=500, **settings):
    return ReaderConfig(format="memory", rows=rows, shuffle=ShuffleConfig(block_bytes=block_bytes), **settings)


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        tuple(ROWS),
        pa.Table.from_pylist(ROWS),
        pd.DataFrame(ROWS),
        {"id": [row["id"] for row in ROWS], "text": [row["text"] for row in ROWS]},
    ],
    ids=["list", "tuple", "arrow", "frame", "columns"],
)
def test_every_kind_of_rows_gives_the_same_source(rows):
    blocks = check_source(config(rows), expected=ROWS)
    assert blocks.num_blocks > 5
    assert blocks.digest == index_sources({"s": config(ROWS)})["s"].digest


def test_missing_values_of_a_frame_are_none_and_nan_stays():
    frame = pd.DataFrame(
        {
            "text": ["a", None],
            "count": pd.array([1, None], dtype="Int64"),
            "score": [0.5, float("nan")],
            "at": pd.to_datetime(["2024-01-02", None]),
            "ids": [[1, 2], np.array([3])],
        }
    )
    expected = [
        {"text": "a", "count": 1, "score": 0.5, "at": pd.Timestamp(2024, 1, 2), "ids": [1, 2]},
        {"text": None, "count": None, "score": float("nan"), "at": None, "ids": np.array([3])},
    ]
    check_source(config(frame), expected=expected)


def test_columns_choose_from_an_arrow_table():
    table = pa.Table.from_pylist(ROWS)
    check_source(config(table, columns=["text"]), expected=[{"text": row["text"]} for row in ROWS])
    with pytest.raises(SourceError, match="did you mean 'text'"):
        index_sources({"s": config(table, columns=["txt"])})


def test_the_digest_changes_with_the_content():
    changed = [dict(row) for row in ROWS]
    changed[77]["text"] += "!"
    arrays = [{"x": np.arange(5)}, {"x": np.arange(5) + 1}]
    digests = [index_sources({"s": config(rows)})["s"].digest for rows in (ROWS, changed, arrays[:1], arrays[1:])]
    assert len(set(digests)) == 4


def test_the_order_of_a_set_is_not_content():
    first, second = ([{"tags": set(order)}] for order in ((0, 8, 16), (16, 8, 0)))
    assert index_sources({"s": config(first)})["s"].digest == index_sources({"s": config(second)})["s"].digest


def test_values_of_any_type_can_be_held():
    class Opaque:
        pass

    rows = [{"big": 10**30, "when": dt.datetime(2024, 1, 2), "what": Opaque(), "set": {1}, 5: "odd key"}]
    found = index_sources({"s": config(rows)})["s"]
    again = index_sources({"s": config([{**rows[0], "what": Opaque()}])})["s"]
    assert found.digest == again.digest


def test_each_read_gives_a_dictionary_of_its_own():
    settings = config([{"a": 1}])
    reader = open_reader("s", settings, index_sources({"s": settings})["s"])
    reader.read_block(0, np.array([0]))[0]["a"] = 2
    assert reader.read_block(0, np.array([0])) == [{"a": 1}]


def test_an_object_with_items_is_read_without_hashing_all_of_it():
    class Squares:
        asked = 0

        def __len__(self):
            return 10_000

        def __getitem__(self, number):
            Squares.asked += 1
            if number == 3:
                raise KeyError("lost")
            return {"square": number * number}

    settings = config(Squares(), block_bytes=1000)
    blocks = index_sources({"s": settings})["s"]
    assert Squares.asked < 100
    reader = open_reader("s", settings, blocks)
    rows = reader.read_block(0, np.array([3, 2]))
    assert isinstance(rows[0], BadRow)
    assert "KeyError" in rows[0].reason
    assert rows[1] == {"square": 4}


def test_no_rows_are_legal():
    assert check_source(config([]), expected=[]).num_blocks == 0


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([{"a": 1}, 7], "item 1 is a int, not a mapping"),
        ([{"a": 1}, None], "item 1 is a NoneType"),
        ((row for row in ROWS), "can be read only once; pass list"),
        ({"a": [1, 2], "b": [1]}, "columns of one length, got {a: 2, b: 1}"),
        ({"a": "text"}, "columns of one length"),
        (5, "rows is a int; give a list of dictionaries"),
        (pa.array([1]), "give a Table or a RecordBatch"),
    ],
    ids=["number", "none", "generator", "lengths", "string", "int", "array"],
)
def test_what_is_no_rows_is_refused_naming_item_and_type(rows, found):
    with pytest.raises(SourceError, match=found):
        index_sources({"mine": config(rows)})


def test_strings_become_texts():
    check_source(config(["a", "b"]), expected=[{"text": "a"}, {"text": "b"}])


def test_an_item_whose_exception_cannot_say_what_it_is_is_a_bad_row():
    class Mute(Exception):
        def __str__(self):
            raise ValueError

    class Items:
        def __len__(self):
            return 2

        def __getitem__(self, number):
            if number:
                raise Mute
            return {"text": "a"}

    check_source({"format": "memory", "rows": Items()}, expected=[{"text": "a"}, BadRow("any")])

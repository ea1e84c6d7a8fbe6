import dataclasses
import json

import numpy as np
import pytest

from msd.sources.base import BadRow
from msd.sources.config import ReaderConfig, ShuffleConfig
from msd.sources.index import index_sources
from msd.sources.open import open_reader
from msd.testing.conformance import check_index, check_reader, check_source, same_row

ROWS = [{"id": number} for number in range(100)]


@pytest.fixture
def source(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    config = ReaderConfig(path=str(tmp_path), shuffle=ShuffleConfig(block_bytes=100))
    return config, index_sources({"s": config})["s"]


class Spoiled:
    """A reader with one fault."""

    def __init__(self, reader, fault):
        self.reader, self.fault, self.reads, self.is_closed = reader, fault, 0, False

    def read_block(self, block, row_N):
        self.reads += 1
        rows = self.reader.read_block(block, row_N)
        if self.fault == "short" and block == 3:
            return rows[:-1]
        if self.fault == "sorted":
            return self.reader.read_block(block, np.sort(row_N))
        if self.fault == "drifts" and self.reads > 15:
            return [{"id": -1}] * len(rows)
        if self.fault == "once" and self.is_closed:
            raise ValueError("closed")
        return rows

    def close(self):
        if self.fault == "close" and self.is_closed:
            raise ValueError("closed twice")
        self.is_closed = True
        self.reader.close()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("short", AssertionError),
        ("sorted", AssertionError),
        ("drifts", AssertionError),
        ("once", ValueError),
        ("close", ValueError),
    ],
)
def test_a_reader_with_a_fault_does_not_pass(source, fault, error):
    config, blocks = source
    check_reader(lambda: open_reader("s", config, blocks), blocks, expected=ROWS)
    with pytest.raises(error):
        check_reader(lambda: Spoiled(open_reader("s", config, blocks), fault), blocks, expected=ROWS)


@pytest.mark.parametrize("expected", [ROWS[:-1], [*ROWS[:-1], {"id": 99.0}], [*ROWS[:-1], BadRow("any")]])
def test_other_rows_do_not_pass(source, expected):
    with pytest.raises(AssertionError):
        check_source(source[0], expected=expected)


@pytest.mark.parametrize("column", ["first_row_B", "num_rows_B", "shard_B"])
def test_an_index_that_does_not_add_up_does_not_pass(source, column):
    _, blocks = source
    check_index(blocks)
    changed = getattr(blocks, column).copy()
    changed[2] += 1
    fields = {field.name: getattr(blocks, field.name) for field in dataclasses.fields(blocks) if field.init}
    with pytest.raises(AssertionError):
        check_index(type(blocks)(**{**fields, column: changed, "shards": blocks.shards * 2}))


def test_rows_are_the_same_only_with_the_same_types():
    assert same_row({"a": float("nan"), "b": [np.array([1])]}, {"a": float("nan"), "b": [np.array([1])]})
    assert not same_row({"a": 1}, {"a": True})
    assert not same_row({"a": [1]}, {"a": np.array([1])})
    assert not same_row(np.array([1], np.int32), np.array([1], np.int64))
    assert not same_row({"a": 1}, {"a": 1, "b": 2})

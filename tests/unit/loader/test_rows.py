import dataclasses
import os

import pytest

from msd.core.order import SourceOrder
from msd.errors import SourceError
from msd.loader.rows import RowReader
from msd.testing.blocks import sequence
from msd.testing.fakes import list_source

NUM_ROWS = 64


def reading(read_bytes, *, window_blocks=4, block_bytes=1024):
    """Return the reader of 64 rows in blocks of 8, of 128 bytes a row; a row is its own (block, row)."""
    rows = [(number // 8, number % 8) for number in range(NUM_ROWS)]
    table, reader = list_source(rows, rows_per_block=8, block_bytes=block_bytes)
    order = SourceOrder(seed=2, source="web", blocks=table, shuffle=True, window_blocks=window_blocks)
    return RowReader(order, reader, read_bytes=read_bytes), order, reader


def take_all(rows, order, step, limit=NUM_ROWS):
    taken, ordinal = [], 0
    while ordinal < limit:
        window = order.window_at(ordinal)
        stop = min(ordinal + step, window.first_ordinal + window.num_rows, limit)
        taken += rows.take(ordinal, stop, limit=limit)
        ordinal = stop
    return taken


@pytest.mark.parametrize("read_bytes", [1, 500, 4096, 1 << 20])
@pytest.mark.parametrize("step", [1, 5, 32])
def test_rows_come_in_sequence_whatever_is_read_ahead(read_bytes, step):
    rows, order, _ = reading(read_bytes)
    assert take_all(rows, order, step) == sequence(order, 0, NUM_ROWS)
    assert rows.num_rows_read == NUM_ROWS


def test_each_block_of_a_window_within_the_budget_is_read_once_and_forwards():
    rows, order, reader = reading(4096)
    take_all(rows, order, step=3)
    assert sorted(block for block, _ in reader.reads) == list(range(8))
    assert all(asked == sorted(asked) for _, asked in reader.reads)


def test_a_window_over_the_budget_is_read_in_pieces():
    rows, order, reader = reading(1024)
    take_all(rows, order, step=1)
    # 32 rows of a window, 8 of them at a time: at most 4 blocks for each of the 8 pieces.
    assert 8 < rows.num_block_reads <= 32
    assert max(len(asked) for _, asked in reader.reads) <= 8


def test_nothing_is_read_ahead_beyond_the_limit():
    """Answers EN-5."""
    rows, order, _ = reading(1 << 20)
    take_all(rows, order, step=4, limit=10)
    assert rows.num_rows_read == 10


def test_any_rows_can_be_picked():
    rows, order, _ = reading(1024)
    ordinals = [63, 0, 17, 40, 1]
    assert rows.pick(ordinals) == [sequence(order, ordinal, ordinal + 1)[0] for ordinal in ordinals]


def test_going_back_reads_again():
    rows, order, _ = reading(1 << 20)
    rows.take(0, 20, limit=NUM_ROWS)
    assert rows.take(4, 8, limit=NUM_ROWS) == sequence(order, 4, 8)
    assert rows.take(10, 30, limit=NUM_ROWS) == sequence(order, 10, 30)


def test_a_row_is_found_in_its_shard():
    rows, order, _ = reading(1024)
    block, row = sequence(order, 33, 34)[0]
    assert rows.where(33) == ("shard-000", block * 8 + row)


def test_a_reader_that_gives_too_few_rows_is_found_out(monkeypatch):
    rows, _, reader = reading(1 << 20)
    monkeypatch.setattr(reader, "read_block", lambda block, row_N: [])
    with pytest.raises(SourceError, match=r"'shard-000' were asked for, its reader gave 0"):
        rows.take(0, 1, limit=NUM_ROWS)


def test_a_shard_whose_name_is_not_utf8_is_named_so_that_it_can_be_sent():
    table, source = list_source([{"text": "a"}], rows_per_block=1, block_bytes=8)
    shard = dataclasses.replace(table.shards[0], name=os.fsdecode(b"\xff.jsonl"))
    order = SourceOrder(
        seed=5, source="web", blocks=dataclasses.replace(table, shards=(shard,)), shuffle=False, window_blocks=1
    )
    assert RowReader(order, source, read_bytes=8).where(0) == ("\\udcff.jsonl", 0)

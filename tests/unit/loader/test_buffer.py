import numpy as np

from msd.core.sample import Sample, SampleId
from msd.loader.buffer import BufferPool, PayloadBuffer

SMALL = 100
"""Tokens of a sample; with its overhead a row takes 912 bytes."""
ROW = 4 * SMALL + 512


def row(ordinal, tokens=SMALL):
    return (Sample(id=SampleId("web", ordinal, 0), tokens_T=np.full(tokens, ordinal, dtype=np.int32)),)


def held(buffer, ordinals):
    return [ordinal for ordinal in ordinals if buffer.get(ordinal) is not None]


def test_bytes_stay_within_the_bound():
    """Answers DK-6."""
    buffer = PayloadBuffer(3 * ROW)
    for ordinal in range(10):
        buffer.put(ordinal, row(ordinal))
        assert buffer.nbytes == len(buffer) * ROW <= 3 * ROW


def test_the_rows_that_are_needed_soonest_and_the_newest_are_kept():
    buffer = PayloadBuffer(3 * ROW)
    for ordinal in range(10):
        buffer.put(ordinal, row(ordinal))
    assert held(buffer, range(10)) == [0, 1, 9]


def test_rows_that_were_handed_out_go_first_and_the_oldest_of_them():
    buffer = PayloadBuffer(4 * ROW)
    for ordinal in range(4):
        buffer.put(ordinal, row(ordinal))
    assert held(buffer, [1, 0]) == [1, 0]
    buffer.put(4, row(4))
    assert held(buffer, range(5)) == [0, 2, 3, 4]


def test_one_row_larger_than_the_bound_is_held_alone():
    buffer = PayloadBuffer(3 * ROW)
    buffer.put(0, row(0))
    buffer.put(1, row(1, tokens=5000))
    assert held(buffer, [0, 1]) == [1]
    buffer.put(2, row(2))
    assert held(buffer, [1, 2]) == [2]


def test_a_row_that_is_put_again_counts_once():
    buffer = PayloadBuffer(10 * ROW)
    buffer.put(0, row(0))
    buffer.put(0, row(0))
    buffer.put_handed_out(0, row(0))
    assert (len(buffer), buffer.nbytes) == (1, ROW)


def test_release_drops_what_lies_before():
    buffer = PayloadBuffer(10 * ROW)
    for ordinal in range(6):
        buffer.put(ordinal, row(ordinal))
    buffer.get(1)
    buffer.get(4)
    buffer.release(3)
    assert held(buffer, range(6)) == [3, 4, 5]
    assert buffer.nbytes == 3 * ROW
    buffer.clear()
    assert (len(buffer), buffer.nbytes) == (0, 0)


# Buffers that share a pool.


def test_whoever_needs_most_holds_most_and_all_together_no_more_than_there_is():
    pool = BufferPool(30 * ROW, 3)
    much, little, _ = (PayloadBuffer(30 * ROW, pool) for _ in range(3))
    for ordinal in range(100):
        much.put(ordinal, row(ordinal))
    assert len(much) == 20
    for ordinal in range(10):
        little.put(ordinal, row(ordinal))
        assert pool.nbytes == much.nbytes + little.nbytes <= 30 * ROW
    assert len(little) == 3, "its floor is not taken from it"
    much.clear()
    for ordinal in range(10):
        little.put(ordinal, row(ordinal))
    assert len(little) == 10, "what others let go of is there for it"


def test_where_little_room_is_left_what_was_handed_out_is_not_kept():
    pool = BufferPool(30 * ROW, 1)
    buffer = PayloadBuffer(30 * ROW, pool)
    for ordinal in range(14):
        buffer.put(ordinal, row(ordinal))
    assert held(buffer, range(5)) == [0, 1, 2, 3, 4]
    assert held(buffer, range(5)) == [4], "the first four went: more than half of the room was taken"
    assert pool.nbytes == buffer.nbytes == 10 * ROW


def test_what_is_released_is_given_back():
    pool = BufferPool(30 * ROW, 2)
    buffers = [PayloadBuffer(30 * ROW, pool) for _ in range(2)]
    for buffer in buffers:
        for ordinal in range(6):
            buffer.put(ordinal, row(ordinal))
        buffer.put(5, row(5))
        buffer.release(4)
    assert pool.nbytes == 4 * ROW
    buffers[0].clear()
    assert pool.nbytes == 2 * ROW

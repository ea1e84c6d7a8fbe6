import numpy as np

from msd.core.sample import Sample, SampleId
from msd.loader.buffer import PayloadBuffer

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

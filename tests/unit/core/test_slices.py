"""Which positions each context-parallel rank holds, written out."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from msd.core.slices import headtail_positions, held_positions, zigzag_positions
from msd.errors import PlanError

# Rows of 16 positions. Two documents of 8; one of 3 real tokens padded to 4, then one of 12; one over all of it.
TWO, PADDED, ONE = [0, 8, 16], [0, 4, 16], [0, 16]
VECTORS = [
    ("zigzag", TWO, 1, [[*range(16)]]),
    ("zigzag", TWO, 2, [[0, 1, 6, 7, 8, 9, 14, 15], [2, 3, 4, 5, 10, 11, 12, 13]]),
    ("zigzag", TWO, 4, [[0, 7, 8, 15], [1, 6, 9, 14], [2, 5, 10, 13], [3, 4, 11, 12]]),
    ("zigzag", PADDED, 1, [[*range(16)]]),
    ("zigzag", PADDED, 2, [[0, 3, 4, 5, 6, 13, 14, 15], [1, 2, 7, 8, 9, 10, 11, 12]]),
    ("zigzag", ONE, 4, [[0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9]]),
    ("headtail", TWO, 1, [[*range(16)]]),
    ("headtail", TWO, 2, [[0, 1, 2, 3, 12, 13, 14, 15], [4, 5, 6, 7, 8, 9, 10, 11]]),
    ("headtail", PADDED, 2, [[0, 1, 2, 3, 12, 13, 14, 15], [4, 5, 6, 7, 8, 9, 10, 11]]),
    ("headtail", PADDED, 4, [[0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9]]),
]


@pytest.mark.parametrize(("method", "starts", "degree", "expected"), VECTORS)
def test_slices_are_as_written_out(method, starts, degree, expected):
    """Answers ML-7."""
    held = held_positions(method, np.array(starts, dtype=np.int32), sequence_length=16, degree=degree)
    assert held.tolist() == expected


def test_head_and_tail_are_those_of_each_sequence():
    held = headtail_positions(16, 8, 2)
    assert held.tolist() == [[0, 1, 6, 7, 8, 9, 14, 15], [2, 3, 4, 5, 10, 11, 12, 13]]


@given(
    degree=st.integers(1, 5),
    extents=st.lists(st.integers(0, 6), min_size=1, max_size=8).filter(any),
)
def test_a_zigzag_holds_every_position_once_and_an_equal_share_of_every_document(degree, extents):
    starts = np.cumsum([0, *(2 * degree * extent for extent in extents)]).astype(np.int32)
    held = zigzag_positions(starts, degree)
    assert sorted(held.ravel().tolist()) == list(range(starts[-1]))
    assert (np.diff(held, axis=1) > 0).all()
    for first, last in itertools.pairwise(starts.tolist()):
        inside = (held >= first) & (held < last)
        assert inside.sum(axis=1).tolist() == [(last - first) // degree] * degree
        # Pairs (query, key) that a rank computes under a causal mask are as many as any other's.
        pairs = [
            sum(position - first + 1 for position in row[keep].tolist()) for row, keep in zip(held, inside, strict=True)
        ]
        assert len(set(pairs)) <= 1


@given(degree=st.integers(1, 5), chunk=st.integers(1, 4), sequences=st.integers(1, 4))
def test_head_and_tail_hold_every_position_once_and_an_equal_share_of_every_sequence(degree, chunk, sequences):
    length = 2 * degree * chunk
    held = headtail_positions(sequences * length, length, degree)
    assert sorted(held.ravel().tolist()) == list(range(sequences * length))
    assert (held.reshape(degree, sequences, 2 * chunk) // length == np.arange(sequences)[:, None]).all()


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        (lambda: zigzag_positions(np.array([0, 6, 16], dtype=np.int32), 2), "document_multiple to a multiple of 4"),
        (lambda: headtail_positions(20, 10, 2), "sequence_length to a multiple of 4, or batch.slice: none"),
    ],
)
def test_what_does_not_divide_is_refused_with_the_number_to_set(slices, message):
    with pytest.raises(PlanError, match=message):
        slices()

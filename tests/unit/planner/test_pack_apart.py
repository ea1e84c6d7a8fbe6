"""Long and short samples in sequences of their own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msd.errors import ConfigError
from msd.planner.piece import Piece
from msd.planner.primitives.pack import Limits, Pack, begin

LENGTH = 32


def piece(length, number=0, patches=0):
    return Piece(0, number, 0, 0, length, length - 1, 0, 0, patches)


def filled(lengths, sequences=4, apart=12, lookahead=4, **changes):
    op = Pack("best_fit", sequences, LENGTH, 1, lookahead, apart=apart, **changes)
    packer = begin(op, ())
    for number, length in enumerate(lengths):
        if packer.is_closed:
            break
        packer.offer(piece(length, number))
    return packer, [[held.length for held in sequence] for sequence in packer.sequences]


def test_kinds_do_not_mix_while_a_sequence_is_empty():
    _, held = filled([12, 3, 13, 4, 20, 5], sequences=4)
    assert held == [[12, 13], [3, 4, 5], [20], []]


def test_when_none_is_empty_each_fills_what_the_other_leaves():
    _, held = filled([20, 3, 15, 16, 31, 12, 10], sequences=3)
    assert held == [[20, 12], [3, 10], [15, 16]]


def test_limits_hold_for_both_kinds():
    op = Pack("best_fit", 2, LENGTH, 1, 2, apart=12, limits=Limits(patches=10))
    packer = begin(op, ())
    for number, (length, patches) in enumerate([(14, 6), (4, 6), (12, 6), (3, 4), (2, 5)]):
        packer.offer(piece(length, number, patches))
    assert [[held.length for held in sequence] for sequence in packer.sequences] == [[14], [4, 3]]
    assert [waits.length for waits in packer.carry] == [12, 2]


@given(
    lengths=st.lists(st.integers(1, LENGTH), min_size=40, max_size=80),
    apart=st.integers(2, LENGTH),
    lookahead=st.integers(1, 9),
)
def test_nothing_is_lost_none_is_over_and_what_waits_finds_room_in_the_next_step(lengths, apart, lookahead):
    op = Pack("best_fit", 4, LENGTH, 1, lookahead, apart=apart)
    waiting, place, steps = (), 0, 0
    while place < len(lengths):
        packer, taken = begin(op, waiting), [held.ordinal for held in waiting]
        while not packer.is_closed and place < len(lengths):
            packer.offer(piece(lengths[place], place))
            taken.append(place)
            place += 1
        held = [one for sequence in packer.sequences for one in sequence]
        assert sorted(one.ordinal for one in (*held, *packer.carry)) == sorted(taken)
        assert all(sum(one.length for one in sequence) <= LENGTH for sequence in packer.sequences)
        assert not {one.ordinal for one in packer.carry} & {one.ordinal for one in waiting}
        if packer.is_closed:
            assert packer.num_empty == 0
        waiting, steps = tuple(packer.carry), steps + 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "first_fit_decreasing"}, "apart is of method best_fit, got method first_fit_decreasing"),
        ({"apart": 1}, "apart must be at least 2 tokens, got 1"),
        ({"apart": 2.5}, "pack: apart must be an integer"),
    ],
)
def test_what_cannot_be_apart_is_refused(changes, message):
    given_ = {"method": "best_fit", "num_sequences": 4, "sequence_length": 32, "document_multiple": 1, "lookahead": 4}
    with pytest.raises(ConfigError, match=message):
        Pack(**{**given_, "apart": 8, **changes})

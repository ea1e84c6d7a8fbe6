import numpy as np
import pytest

from msd.errors import ConfigError
from msd.planner.piece import Piece, num_valid_between
from msd.planner.primitives.pack import Pack, begin


def piece(ordinal, length, images=0, start=0):
    runs = ((images, max(images, length - 1)),)
    return Piece(0, ordinal, 0, start, length, max(0, length - 1 - images), images, int(images > 0), images, runs)


def op(method, *, num=2, length=10, multiple=1, lookahead=2):
    return Pack(method, num, length, multiple, lookahead)


def lengths(packer):
    return [[p.length for p in sequence] for sequence in packer.sequences]


def packed(chosen, pieces):
    packer = chosen.new()
    for one in pieces:
        packer.offer(one)
    return packer


def test_best_fit_takes_the_fullest_sequence_with_room():
    packer = packed(op("best_fit"), [piece(0, 4), piece(1, 7), piece(2, 3), piece(3, 6)])
    assert lengths(packer) == [[4, 6], [7, 3]]
    assert packer.is_closed
    assert not packer.carry


def test_best_fit_closes_when_as_many_samples_wait_as_may():
    packer = packed(op("best_fit"), [piece(0, 8), piece(1, 8), piece(2, 5)])
    assert not packer.is_closed
    packer.offer(piece(3, 6))
    assert packer.is_closed
    assert [p.ordinal for p in packer.carry] == [2, 3]


def test_what_waited_is_placed_first_in_the_next_step():
    packer = begin(op("best_fit"), [piece(2, 5), piece(3, 6)])
    assert lengths(packer) == [[5], [6]]


def test_best_fit_counts_a_document_at_its_rounded_length():
    packer = packed(op("best_fit", length=12, multiple=4, num=1), [piece(0, 5), piece(1, 5)])
    assert lengths(packer) == [[5]]
    assert [p.length for p in packer.carry] == [5]


def test_a_sequence_with_less_room_than_the_multiple_is_full():
    packer = packed(op("best_fit", length=12, multiple=4, num=1), [piece(0, 9)])
    assert packer.is_closed


def test_concat_cuts_a_part_at_the_end_of_a_sequence_and_carries_what_is_left():
    packer = packed(op("concat"), [piece(0, 8), piece(1, 8), piece(2, 10)])
    assert lengths(packer) == [[8, 2], [6, 4]]
    assert [(p.start, p.length) for p in packer.carry] == [(4, 6)]


def test_concat_never_cuts_image_placeholders():
    packer = packed(op("concat"), [piece(0, 8), piece(1, 8, images=3), piece(2, 5)])
    assert lengths(packer) == [[8], [8, 2]]
    assert [(p.start, p.length) for p in packer.carry] == [(2, 3)]


def test_concat_may_cut_right_after_image_placeholders_and_leaves_images_with_the_first_piece():
    packer = packed(op("concat"), [piece(0, 7), piece(1, 8, images=3)])
    first, second = packer.sequences[0][1], packer.sequences[1][0]
    assert (first.length, first.num_images, first.num_image_tokens, first.num_valid) == (3, 1, 3, 0)
    assert (second.start, second.num_images, second.num_image_tokens, second.num_valid) == (3, 0, 0, 4)


def test_cut_pieces_lose_one_label_at_each_cut():
    head, tail = piece(0, 10).cut(4)
    assert (head.num_valid, tail.num_valid) == (3, 5)


def test_labels_of_a_piece_are_those_whose_target_is_inside():
    runs = ((2, 5), (8, 9))
    brute = {
        (a, b): sum(1 for p in range(a, b - 1) if any(x <= p < y for x, y in runs))
        for a in range(10)
        for b in range(a + 1, 11)
    }
    assert {key: num_valid_between(runs, *key) for key in brute} == brute


def test_none_gives_every_sample_its_own_sequence():
    packer = packed(op("none"), [piece(0, 1), piece(1, 9)])
    assert lengths(packer) == [[1], [9]]
    assert packer.is_closed


def test_an_unknown_method_is_refused_with_the_ones_there_are():
    with pytest.raises(ConfigError, match="best_fit, concat, none"):
        op("first_fit")


@pytest.mark.parametrize(("length", "mean"), [(4096, 400), (16384, 800)])
def test_best_fit_fills_99_percent_of_heavy_tailed_lengths(length, mean):
    rng = np.random.default_rng(5)
    chosen = op("best_fit", num=64, length=length, lookahead=32)
    carry, fill = (), []
    for _ in range(12):
        packer = begin(chosen, carry)
        while not packer.is_closed:
            packer.offer(piece(0, int(np.clip(rng.lognormal(np.log(mean), 1.2), 8, length))))
        fill.append(sum(p.length for s in packer.sequences for p in s) / (64 * length))
        carry = tuple(packer.carry)
        assert packer.num_empty == 0
    assert np.mean(fill) >= 0.99


@pytest.mark.parametrize("num", [1, 2, 3, 8])
def test_what_waits_never_exceeds_a_step_and_waits_for_two_steps_at_most_whatever_the_lookahead(num):
    rng = np.random.default_rng(num)
    chosen = op("best_fit", num=num, length=64, lookahead=1 << 20)
    carry, drawn = (), 0
    first_step: dict[int, int] = {}
    for step in range(60):
        packer = begin(chosen, carry)
        while not packer.is_closed:
            # Never 1 token: a sequence with one token of room can never be filled.
            packer.offer(piece(drawn, int(rng.integers(2, 65))))
            first_step[drawn] = step
            drawn += 1
        assert packer.num_empty == 0
        placed = [one.ordinal for sequence in packer.sequences for one in sequence]
        assert max(step - first_step[ordinal] for ordinal in placed) <= 2
        assert sum(one.length for one in packer.carry) <= num * 64
        carry = tuple(packer.carry)


def test_a_lookahead_of_no_more_than_the_sequences_is_reached_before_any_other_bound():
    packer = packed(op("best_fit", num=3, lookahead=3), [piece(n, 10 if n > 2 else 9) for n in range(5)])
    assert not packer.is_closed
    packer.offer(piece(5, 10))
    assert packer.is_closed
    assert len(packer.carry) == 3


@pytest.mark.parametrize("setting", ["num", "length", "multiple", "lookahead"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "x", None])
def test_a_graph_packs_by_positive_integers(setting, value):
    with pytest.raises(ConfigError, match="pack: "):
        op("best_fit", **{setting: value})

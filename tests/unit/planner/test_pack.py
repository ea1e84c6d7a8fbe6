from dataclasses import replace

import numpy as np
import pytest

from msd.errors import ConfigError
from msd.planner.piece import Piece, num_valid_between
from msd.planner.primitives.pack import Limits, Pack, begin


def piece(ordinal, length, images=0, start=0):
    runs = ((images, max(images, length - 1)),)
    return Piece(0, ordinal, 0, start, length, max(0, length - 1 - images), images, int(images > 0), images, runs)


def op(method, *, num=2, length=10, multiple=1, lookahead=2):
    return Pack(method, num, length, multiple, lookahead)


def lengths(packer):
    return [[p.length for p in sequence] for sequence in packer.sequences]


def packed(chosen, pieces):
    packer = begin(chosen, ())
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
    """Answers ML-8, LB-7."""
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
    with pytest.raises(ConfigError, match="best_fit, first_fit_decreasing, concat, none"):
        op("first_fit")


@pytest.mark.parametrize(("length", "mean"), [(4096, 400), (16384, 800)])
def test_best_fit_fills_99_percent_of_heavy_tailed_lengths(length, mean):
    """Answers TT-12."""
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


def photo(ordinal, length, patches):
    return piece(ordinal, length)._replace(num_patches=patches, num_images=1)


def test_first_fit_decreasing_places_the_longest_first_and_fills_gaps_with_the_short():
    packer = packed(op("first_fit_decreasing", lookahead=1), [piece(n, size) for n, size in enumerate([2, 3, 7, 8, 4])])
    assert packer.is_closed
    assert lengths(packer) == [[8, 2], [7, 3]]
    assert [p.ordinal for p in packer.carry] == [4]


def test_the_pool_closes_when_it_is_larger_than_a_step_by_the_lookahead():
    packer = packed(op("first_fit_decreasing", num=4, lookahead=2), [piece(n, 10) for n in range(4)])
    for ordinal in (4, 5):
        assert not packer.is_closed
        packer.offer(piece(ordinal, 1))
    assert packer.is_closed


def test_a_sample_that_has_waited_its_age_goes_before_longer_ones():
    chosen = op("first_fit_decreasing", num=1)
    young = [piece(n, 9)._replace(drawn=5) for n in range(1, 3)]
    waits = begin(chosen, [piece(0, 2)._replace(drawn=5), *young], step=5)
    goes = begin(chosen, [piece(0, 2)._replace(drawn=4), *young], step=5)
    assert [p.ordinal for p in waits.sequences[0]] == [1]
    assert [p.ordinal for p in goes.sequences[0]] == [0]


def test_the_cost_objective_puts_a_sample_where_attention_is_least():
    pieces = [piece(n, size) for n, size in enumerate([6, 4, 3, 3, 3])]
    by_fill = packed(op("first_fit_decreasing", num=2, length=10), pieces)
    by_cost = packed(replace(op("first_fit_decreasing", num=2, length=10), objective="cost"), pieces)
    assert lengths(by_fill) == [[6, 4], [3, 3, 3]]
    assert lengths(by_cost) == [[6, 3], [4, 3, 3]]


@pytest.mark.parametrize("objective", ["fill", "cost"])
@pytest.mark.parametrize("max_age", [2, 3, 5])
@pytest.mark.parametrize(("num", "lookahead"), [(1, 1), (2, 8), (3, 1000), (8, 4), (16, 64)])
def test_no_sample_of_the_pool_waits_longer_than_its_age(num, lookahead, max_age, objective):
    rng = np.random.default_rng(num)
    chosen = replace(op("first_fit_decreasing", num=num, length=64, lookahead=lookahead), max_age=max_age)
    chosen = replace(chosen, objective=objective)
    carry, drawn, oldest = (), 0, 0
    for step in range(60):
        packer = begin(chosen, carry, step)
        while not packer.is_closed:
            length = int(rng.choice([1, 2, 3, 31, 33, 34, 62, 64]))
            packer.offer(piece(drawn, length)._replace(drawn=step))
            drawn += 1
        assert packer.num_empty == 0
        placed = [one for sequence in packer.sequences for one in sequence]
        assert len(placed) + len(packer.carry) == len({one.ordinal for one in (*placed, *packer.carry)})
        assert all(sum(one.length for one in sequence) <= 64 for sequence in packer.sequences)
        oldest = max([oldest, *(step - one.drawn for one in placed)])
        assert [one.ordinal for one in packer.carry] == sorted(one.ordinal for one in packer.carry)
        carry = tuple(packer.carry)
        assert all(step - one.drawn < max_age for one in carry)
    assert oldest <= max_age


@pytest.mark.parametrize("method", ["best_fit", "first_fit_decreasing"])
def test_fill_of_heavy_tailed_lengths_is_at_least_995_of_1000(method):
    rng = np.random.default_rng(5)
    chosen = op(method, num=64, length=4096, lookahead=32)
    carry, fill = (), []
    for step in range(12):
        packer = begin(chosen, carry, step)
        while not packer.is_closed:
            packer.offer(piece(0, int(np.clip(rng.lognormal(np.log(400), 1.2), 8, 4096)))._replace(drawn=step))
        fill.append(sum(p.length for s in packer.sequences for p in s) / (64 * 4096))
        carry = tuple(packer.carry)
    assert np.mean(fill) >= 0.995


def test_a_max_age_of_one_step_holds_the_lookahead_to_the_sequences():
    packer = packed(replace(op("best_fit", num=2, length=10, lookahead=50), max_age=1), [piece(n, 6) for n in range(4)])
    assert packer.is_closed
    assert len(packer.carry) == 2


@pytest.mark.parametrize("method", ["best_fit", "first_fit_decreasing", "concat"])
def test_limits_are_kept_where_there_is_still_room_for_tokens(method):
    """Answers VB-1."""
    chosen = replace(op(method, num=2, length=100, lookahead=1), limits=Limits(patches=10))
    packer = packed(chosen, [photo(0, 9, 6), photo(1, 9, 5), piece(2, 60), photo(3, 9, 4)])
    patches = [sum(p.num_patches for p in sequence) for sequence in packer.sequences]
    assert max(patches) <= 10
    assert packer.num_empty == 0


def test_best_fit_puts_a_document_without_images_where_no_image_fits():
    chosen = replace(op("best_fit", num=2, length=100), limits=Limits(patches=10))
    packer = packed(chosen, [photo(0, 40, 10), photo(1, 20, 10), piece(2, 50)])
    assert [[p.ordinal for p in sequence] for sequence in packer.sequences] == [[0, 2], [1]]


def test_a_pool_of_photos_and_text_that_share_sequences_leaves_none_empty():
    # By the larger of its shares each takes almost half a sequence, and four share one all the same.
    chosen = replace(op("first_fit_decreasing", num=4, length=100, lookahead=1), limits=Limits(patches=10))
    packer = begin(chosen, ())
    ordinal = 0
    while not packer.is_closed:
        packer.offer(photo(ordinal, 4, 5) if ordinal % 2 else piece(ordinal, 45))
        ordinal += 1
    assert packer.num_empty == 0


def test_a_document_larger_than_a_limit_is_named():
    limits = Limits(patches=10, attention=100)
    assert limits.excess(photo(0, 9, 11)) == "11 patches > batch.limits.patches 10"
    assert limits.excess(piece(0, 11)) == "121 attention > batch.limits.attention 100"
    assert limits.excess(photo(0, 10, 10)) == ""
    with pytest.raises(ConfigError, match="limit images must be at least 1"):
        Limits(images=0)


def by_tokens(max_tokens, multiple_of):
    return replace(op("none", length=100), max_tokens=max_tokens, multiple_of=multiple_of)


def test_a_step_by_tokens_takes_samples_while_they_have_no_more():
    packer = packed(by_tokens(20, 1), [piece(n, 6) for n in range(4)])
    assert packer.is_closed
    assert lengths(packer) == [[6], [6], [6]]
    assert [p.ordinal for p in packer.carry] == [3]


def test_samples_over_the_multiple_wait_in_order():
    packer = packed(by_tokens(20, 2), [piece(n, 6) for n in range(4)])
    assert [[p.ordinal for p in sequence] for sequence in packer.sequences] == [[0], [1]]
    assert [p.ordinal for p in packer.carry] == [2, 3]


def test_a_step_by_tokens_has_at_least_the_multiple_of_sequences():
    packer = packed(by_tokens(5, 4), [piece(n, 6) for n in range(5)])
    assert lengths(packer) == [[6]] * 4


@pytest.mark.parametrize(("drop", "held", "empty"), [(True, 248, 0), (False, 256, 7)])
def test_of_249_samples_over_a_multiple_of_8_the_last_step_drops_one_or_is_padded(drop, held, empty):
    packer = packed(by_tokens(10**6, 8), [piece(n, 6) for n in range(249)])
    assert packer.finish(drop=drop)
    assert (len(packer.sequences), packer.num_empty, len(packer.carry)) == (held, empty, int(drop))


def test_a_last_step_of_fewer_samples_than_the_multiple_is_dropped_whole():
    packer = packed(by_tokens(10**6, 8), [piece(n, 6) for n in range(7)])
    assert not packer.finish(drop=True)
    assert len(packer.carry) == 7

"""The sequence of a source: arithmetic from ordinals to rows."""

import pytest

from msd.core.index import Split
from msd.core.order import AUTO_WINDOW_BLOCKS, SourceOrder, auto_window_blocks
from msd.testing.blocks import made_up_blocks, sequence


def order_of(rows, *, window=2, seed=17, source="web", shuffle=True, **table):
    blocks = made_up_blocks(rows, **table)
    return SourceOrder(seed=seed, source=source, blocks=blocks, shuffle=shuffle, window_blocks=window)


def every_row(order):
    return sorted((block, row) for block in range(order.blocks.num_blocks) for row in order.blocks.kept_rows(block))


@pytest.mark.parametrize("rows", [[1], [3, 4, 5], [0, 3, 0, 0, 2, 0], [7] * 9])
@pytest.mark.parametrize("window", [1, 2, 100])
def test_each_epoch_gives_every_row_once(rows, window):
    order = order_of(rows, window=window)
    for epoch in range(3):
        start = epoch * order.rows_per_epoch
        assert sorted(sequence(order, start, start + order.rows_per_epoch)) == every_row(order)


def test_epochs_differ_and_seeds_differ_and_names_differ():
    def first_epoch(**change):
        order = order_of([20] * 10, **change)
        return tuple(sequence(order, 0, 200))

    order = order_of([20] * 10)
    seen = {first_epoch(), first_epoch(seed=18), first_epoch(source="web2"), tuple(sequence(order, 200, 400))}
    assert len(seen) == 4


def test_an_ordinal_is_found_without_walking_from_the_start():
    order, fresh = order_of([13, 0, 29, 5, 8]), order_of([13, 0, 29, 5, 8])
    walked = sequence(order, 0, 10 * 55)
    assert sequence(fresh, 9 * 55 + 20, 9 * 55 + 30) == walked[9 * 55 + 20 : 9 * 55 + 30]


def test_windows_meet_without_gap_or_overlap():
    order = order_of([4, 0, 0, 9, 1, 0, 6], window=2)
    ordinal = 0
    for _ in range(40):
        window = order.window_at(ordinal)
        assert window.first_ordinal == ordinal
        assert window == order.window_at(ordinal + window.num_rows - 1)
        ordinal += window.num_rows


def test_blocks_of_a_unit_stay_in_file_order_and_together():
    order = order_of([5] * 8, units=[0, 0, 0, 1, 1, 2, 3, 3], window=1)
    for epoch in range(6):
        blocks = [block for block, _ in sequence(order, epoch * 40, epoch * 40 + 40)]
        strung = list(dict.fromkeys(blocks))
        for unit in ([0, 1, 2], [3, 4], [5], [6, 7]):
            at = strung.index(unit[0])
            assert strung[at : at + len(unit)] == unit


def test_rows_are_permuted_within_their_window_only():
    order = order_of([10] * 6, window=3)
    window = order.window_at(0)
    block_N, row_N = order.window_rows(window)
    assert set(block_N.tolist()) == set(order.window_blocks_of(window).tolist())
    assert list(zip(block_N, row_N, strict=True)) != sorted(zip(block_N, row_N, strict=True))


def test_without_shuffle_rows_come_in_file_order_in_every_epoch():
    order = order_of([3, 0, 2], shuffle=False)
    assert sequence(order, 0, 10) == [(0, 0), (0, 1), (0, 2), (2, 0), (2, 1)] * 2


def test_a_split_and_its_rest_share_the_rows_out():
    low, high = (order_of([50] * 4, split=Split(low=a, high=b)) for a, b in ((0.0, 0.3), (0.3, 1.0)))
    halves = [set(sequence(half, 0, half.rows_per_epoch)) for half in (low, high)]
    assert halves[0].isdisjoint(halves[1])
    assert len(halves[0] | halves[1]) == 200
    assert 35 <= len(halves[0]) <= 85


@pytest.mark.parametrize(
    ("rows", "max_epochs", "total"),
    [
        ([100], None, None),
        ([100], 1, 100),
        ([100], 2.5, 250),
        ([100], 0.29, 29),
        ([3], 1 / 3, 1),
        ([3], 0.5, 1),
        ([0], 2, 0),
    ],
)
def test_fractions_of_epochs_count_rows_as_they_are_written(rows, max_epochs, total):
    assert order_of(rows).total_ordinals(max_epochs) == total


def test_a_source_without_rows_has_no_ordinals():
    with pytest.raises(ValueError, match="'web' has no rows"):
        order_of([]).window_at(0)
    with pytest.raises(ValueError, match="'web' has no rows"):
        order_of([0, 0]).window_at(0)


def test_an_ordinal_below_zero_is_refused():
    with pytest.raises(ValueError, match="count from 0, got -1"):
        order_of([5]).window_at(-1)


@pytest.mark.parametrize(
    ("num_blocks", "block_bytes", "expected"),
    [(0, 1, 1), (1, 1 << 30, 1), (500, 1 << 30, 1), (500, 1 << 20, 8), (500, 10, AUTO_WINDOW_BLOCKS), (3, 10, 3)],
)
def test_the_automatic_window_fits_bytes_and_blocks(num_blocks, block_bytes, expected):
    assert auto_window_blocks(made_up_blocks([1] * num_blocks, block_bytes=block_bytes)) == expected

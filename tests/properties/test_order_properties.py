"""The order of samples over random indexes: every row once an epoch, and nothing depends on who reads."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from msd.core.index import Split
from msd.core.order import SourceOrder
from msd.testing.blocks import made_up_blocks, sequence


@st.composite
def tables(draw):
    """Block tables with empty blocks, units of several blocks, several shards, and splits."""
    rows = draw(st.lists(st.integers(0, 12), min_size=1, max_size=14))
    steps = draw(st.lists(st.sampled_from([(0, 0), (0, 1), (1, 1)]), min_size=len(rows), max_size=len(rows)))
    shards = [sum(step[0] for step in steps[: place + 1]) for place in range(len(rows))]
    units = [sum(step[1] for step in steps[: place + 1]) for place in range(len(rows))]
    low = draw(st.sampled_from([0.0, 0.0, 0.25]))
    first = shards[0]
    return made_up_blocks(rows, shards=[s - first for s in shards], units=units, split=Split(low=low, high=1.0))


def order_of(blocks, *, window, seed=17, source="web", shuffle=True):
    return SourceOrder(seed=seed, source=source, blocks=blocks, shuffle=shuffle, window_blocks=window)


def windows_of(order, epochs):
    found, ordinal = [], 0
    while ordinal < epochs * order.rows_per_epoch:
        window = order.window_at(ordinal)
        found.append(window)
        ordinal = window.first_ordinal + window.num_rows
    return found


@settings(max_examples=150)
@given(blocks=tables(), window=st.integers(1, 16), seed=st.integers(0, 2**40), shuffle=st.booleans())
def test_each_epoch_gives_every_kept_row_once(blocks, window, seed, shuffle):
    """Answers WD-5."""
    order = order_of(blocks, window=window, seed=seed, shuffle=shuffle)
    expected = sorted((b, row) for b in range(blocks.num_blocks) for row in blocks.kept_rows(b).tolist())
    for epoch in range(3):
        found = sequence(order, epoch * len(expected), (epoch + 1) * len(expected))
        assert sorted(found) == expected


@settings(max_examples=100)
@given(blocks=tables(), window=st.integers(1, 16), owners=st.integers(1, 7), turns=st.randoms(use_true_random=False))
def test_any_assignment_of_windows_to_owners_gives_the_same_sequence(blocks, window, owners, turns):
    """Answers RY-9, WD-2."""
    whole = sequence(order_of(blocks, window=window), 0, 2 * blocks.num_rows)
    hosts = [order_of(blocks, window=window) for _ in range(owners)]
    prepared = windows_of(hosts[0], epochs=2)
    arrived = {}
    for place in random.Random(turns.random()).sample(range(len(prepared)), len(prepared)):
        block_N, row_N = hosts[turns.randrange(owners)].window_rows(prepared[place])
        arrived[place] = list(zip(block_N.tolist(), row_N.tolist(), strict=True))
    assert [row for place in sorted(arrived) for row in arrived[place]] == whole


@settings(max_examples=100)
@given(blocks=tables(), window=st.integers(1, 16), data=st.data())
def test_entering_anywhere_continues_the_undisturbed_sequence(blocks, window, data):
    """Answers GR-6, HF-1, RY-8."""
    total = 3 * blocks.num_rows
    start = data.draw(st.integers(0, total))
    whole = sequence(order_of(blocks, window=window), 0, total)
    assert sequence(order_of(blocks, window=window), start, total) == whole[start:]


@settings(max_examples=100)
@given(blocks=tables(), window=st.integers(1, 16))
def test_blocks_of_a_unit_follow_one_another_in_file_order(blocks, window):
    order = order_of(blocks, window=window)
    strung = [block for one in windows_of(order, epochs=1) for block in order.window_blocks_of(one).tolist()]
    for unit in set(blocks.unit_B.tolist()):
        places = [place for place, block in enumerate(strung) if blocks.unit_B[block] == unit]
        assert [strung[place] for place in places] == sorted(strung[place] for place in places)
        held = [b for b in range(blocks.num_blocks) if blocks.unit_B[b] == unit and blocks.kept_B[b]]
        between = strung[strung.index(held[0]) : strung.index(held[-1]) + 1] if held else []
        assert all(blocks.unit_B[block] == unit for block in between)


@settings(max_examples=60)
@given(blocks=tables(), window=st.integers(1, 16), others=st.lists(st.text(max_size=4), max_size=3))
def test_a_source_does_not_notice_other_sources(blocks, window, others):
    alone = sequence(order_of(blocks, window=window), 0, 2 * blocks.num_rows)
    among = [order_of(blocks, window=window, source=name) for name in [*others, "web"]]
    for other in among[:-1]:
        sequence(other, 0, 2 * blocks.num_rows)
    assert sequence(among[-1], 0, 2 * blocks.num_rows) == alone

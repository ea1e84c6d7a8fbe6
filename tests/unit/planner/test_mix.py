from msd.planner.mixture.schedule import WEIGHT_UNIT
from msd.planner.primitives.mix import Credits


def drawn(credits, count, units=1):
    found = []
    for _ in range(count):
        source = credits.largest()
        credits.take(source, units)
        found.append(source)
    return found


def test_equal_sources_take_turns_and_the_first_by_name_begins():
    credits = Credits(3)
    credits.set_shares([1.0, 1.0, 1.0])
    assert drawn(credits, 6) == [0, 1, 2, 0, 1, 2]


def test_a_draw_adds_each_weight_and_takes_the_whole_from_the_one_drawn():
    credits = Credits(2)
    credits.set_shares([0.75, 0.25])
    credits.take(0, 8)
    assert credits.as_list() == [-2 * WEIGHT_UNIT, 2 * WEIGHT_UNIT]


def test_a_source_with_weight_zero_is_never_drawn_and_its_credit_rests():
    credits = Credits(2)
    credits.load([0, 0])
    credits.set_shares([0.5, 0.5])
    credits.take(0, 2)
    credits.set_shares([1.0, 0.0])
    assert drawn(credits, 5, units=9) == [0] * 5
    assert credits.as_list()[1] == WEIGHT_UNIT


def test_the_credit_of_a_dropped_source_is_spread_by_weight():
    credits = Credits(3)
    credits.load([8 * WEIGHT_UNIT, -4 * WEIGHT_UNIT, -4 * WEIGHT_UNIT])
    credits.set_shares([0.0, 0.75, 0.25])
    credits.spread(0)
    assert credits.as_list() == [0, 2 * WEIGHT_UNIT, -2 * WEIGHT_UNIT]


def test_large_steps_do_not_overflow():
    credits = Credits(2)
    credits.set_shares([0.5, 0.5])
    for _ in range(20):
        credits.take(credits.largest(), 1 << 31)
    assert sum(credits.as_list()) == 0
    assert max(credits.as_list()) <= WEIGHT_UNIT << 31

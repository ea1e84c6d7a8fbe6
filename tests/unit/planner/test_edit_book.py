"""Edits at a boundary between steps: what is due, what waits, what would leave nothing to draw."""

import pytest

from msd.core.journal import Resume, SetWeights, SkipRows, SkipSteps, Suspend
from msd.errors import ConfigError
from msd.planner.edit_book import EditBook

BOTH = [True, True]
BOOK = EditBook(("a", "b"))


def shares_at(live_S, reweighted):
    return tuple(float(is_live) for is_live in live_S)


def at(book, step):
    return book.at(step, BOTH, shares_at)


def test_an_edit_waits_for_its_step_and_acts_from_then_on():
    book = BOOK.with_edit(Suspend(at_step=2, source="a")).with_edit(Resume(at_step=4, source="a"))
    suspended = []
    for step in range(5):
        book = at(book, step)
        suspended.append(book.now.suspended)
        book = book.past(step, {"a": 0, "b": 0})
    assert suspended == [set(), set(), {"a"}, {"a"}, set()]
    assert not book.pending
    assert book.state_dict() == {}


def test_what_changes_a_book_leaves_it_as_it_was():
    edit = SkipSteps(at_step=0, count=3)
    assert at(BOOK.with_edit(edit), 0).num_steps_to_drop == 3
    assert at(BOOK, 0).num_steps_to_drop == 0
    assert BOOK.pending == ()


def test_rows_are_passed_over_until_they_are_behind():
    book = at(BOOK.with_edit(SkipRows(at_step=1, source="b", first=3, last=5)), 0)
    assert (len(book.skips), book.sources_that_skip) == (1, set())
    book = at(book.past(0, {"a": 0, "b": 2}), 1)
    assert (len(book.skips), book.sources_that_skip) == (1, {"b"})
    assert len(at(book.past(1, {"a": 0, "b": 5}), 2).skips) == 1
    assert at(book.past(1, {"a": 0, "b": 6}), 2).skips == ()


def test_an_edit_that_would_leave_nothing_to_draw_is_refused():
    book = BOOK.with_edit(Suspend(at_step=3, source="a"))
    book.expect_shares(book.pending[-1], 0, BOTH, shares_at)
    book = book.with_edit(Suspend(at_step=5, source="b"))
    with pytest.raises(ConfigError, match="from step 5 on nothing could be drawn"):
        book.expect_shares(book.pending[-1], 0, BOTH, shares_at)


def test_weights_that_were_set_hold_and_are_part_of_the_position():
    edit = SetWeights(at_step=0, weights={"a": 1.0, "b": 3.0}, ramp=0)
    book = at(BOOK.with_edit(edit), 0)
    assert book.reweighted.at_step == 0
    assert book.now.target(book.names, BOTH) == (0.25, 0.75)
    assert set(book.state_dict()) == {"pending"}
    assert set(book.past(0, {"a": 0, "b": 0}).state_dict()) == {"edits"}

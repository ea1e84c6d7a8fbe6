"""How long waits are, and what is done about them."""

import pytest

from msd.coordinator import StallTerms
from msd.coordinator.stalls import Watch
from msd.coordinator.standing import Stall
from msd.planner.planner import Starved

ROW = Starved("web", 31)


def watch(then: str = "suspend", stall: Stall | None = None) -> Watch:
    return Watch({"web": StallTerms(10.0, then)}, deadline_s=60.0, stall=stall)


def look(watch: Watch, now_s: float, row: Starved | None = ROW) -> str:
    return watch.look(now_s, None if row is None else "a row", row)


def test_a_wait_that_a_planner_before_this_one_began_goes_on():
    one = watch(stall=Stall("web", 31, 7.0))
    assert one.stall == Stall("web", 31, 7.0)
    assert look(one, 500.0, None) == "go on"
    assert one.stall == Stall("web", 31, 7.0)
    assert look(one, 502.0) == "go on"
    assert one.stall == Stall("web", 31, 9.0)
    assert look(one, 503.0) == "suspend"


def test_what_was_said_of_a_wait_before_is_not_said_again():
    one = watch("wait", Stall("web", 31, 12.0))
    assert [s for s in range(500, 520) if look(one, float(s)) == "warn"] == [508, 518]


@pytest.mark.parametrize("row", [Starved("web", 32), Starved("books", 31)])
def test_a_wait_for_another_row_begins_anew(row):
    one = watch(stall=Stall("web", 31, 9.0))
    assert look(one, 500.0, row) == "go on"
    assert one.stall == Stall(row.source, row.ordinal, 0.0)
    assert look(one, 501.5, ROW) == "go on", "it came, and is wanted by another step"


def test_a_verdict_that_is_put_off_comes_again_at_each_look():
    one = watch()
    assert [look(one, s) for s in (0.0, 10.0, 11.0)] == ["go on", "suspend", "warn"]
    assert one.put_off()
    assert look(one, 12.0) == "suspend"
    assert not one.put_off()
    assert look(one, 13.0) == "suspend"


def test_a_generation_waits_for_nothing_that_the_one_before_it_waited_for():
    one = watch(stall=Stall("web", 31, 9.0))
    look(one, 500.0)
    one.begin()
    assert one.stall is None
    assert look(one, 509.0) == "go on"

import pytest

from msd.coordinator.lane import Lane
from msd.core.journal import SkipSteps
from msd.core.order import SourceOrder
from msd.core.plan import StepPlan
from msd.planner.planner import Planner, Starved
from msd.testing.blocks import made_up_blocks
from msd.testing.tables import row, settings_of, table_of

SOURCES = {"web": [row(20)] * 40, "books": [row(50)] * 40}


def make(*, ahead_bytes=1 << 20, **changes) -> Lane:
    settings = settings_of(SOURCES, **changes)
    orders = {
        name: SourceOrder(seed=1, source=name, blocks=made_up_blocks([20, 20]), shuffle=True, window_blocks=1)
        for name in SOURCES
    }
    totals = {terms.name: terms.total_ordinals for terms in settings.sources}
    return Lane(Planner(settings), orders, totals, ahead_bytes=ahead_bytes)


def feed(lane: Lane, requests) -> None:
    for request in requests:
        rows = [SOURCES[request.source][0]] * request.num_rows
        lane.arrive(table_of(request.source, request.start, rows))


def steps_of(lane: Lane, count: int) -> list[StepPlan]:
    plans = []
    while len(plans) < count:
        outcome = lane.plan()
        if isinstance(outcome, StepPlan):
            plans.append(outcome)
        feed(lane, lane.requests())
    return plans


def test_every_source_is_asked_for_rows_ahead_of_need():
    assert {request.source for request in make().requests()} == set(SOURCES)


def test_a_source_without_a_share_is_not_asked_until_it_is_needed():
    lane = make(weights={"web": 1, "books": 0})
    assert {request.source for request in lane.requests()} == {"web"}


def test_what_planning_waits_for_is_asked_first():
    lane = make()
    lane.requests()
    outcome = lane.plan()
    assert isinstance(outcome, Starved)
    assert lane.starved == outcome
    requests = lane.requests()
    assert requests[0].source == outcome.source
    assert lane.requests() == []


def test_steps_come_one_after_the_other_as_rows_arrive():
    lane = make()
    assert [plan.step for plan in steps_of(lane, 4)] == [0, 1, 2, 3]
    assert lane.step == 4


def test_metadata_that_comes_backwards_and_twice_changes_no_plan():
    expected = [plan.digest for plan in steps_of(make(), 4)]
    lane, found = make(), []
    while len(found) < 4:
        outcome = lane.plan()
        if isinstance(outcome, StepPlan):
            found.append(outcome.digest)
        requests = lane.requests()
        feed(lane, [*reversed(requests), *requests])
    assert found == expected


def test_what_was_not_answered_is_asked_again():
    lane = make()
    asked = lane.requests()
    feed(lane, asked[:1])
    lane.ask_again(lambda request: True)
    assert lane.requests() == asked[1:]


@pytest.mark.parametrize("end", ["stop", "drop"])
def test_the_end_is_an_outcome(end):
    lane = make(max_epochs={"web": 1, "books": 1}, end={"web": end, "books": end})
    outcomes = []
    while not outcomes or outcomes[-1] is not None:
        outcome = lane.plan()
        if not isinstance(outcome, Starved):
            outcomes.append(outcome)
        feed(lane, lane.requests())
    assert len(outcomes) > 2
    assert lane.starved is None


def test_what_is_drawn_to_be_dropped_holds_back_no_request_behind_it():
    lane = make(ahead_bytes=16_000)
    lane.note(SkipSteps(at_step=0, count=400))
    rounds = 0
    while not isinstance(lane.plan(), StepPlan):
        rounds += 1
        feed(lane, lane.requests())
    assert rounds < 150, "six hundred, if it did"

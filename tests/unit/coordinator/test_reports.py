"""What training reports: it outlives the planner, and is forgotten once every rank has come past it."""

from dataclasses import replace
from itertools import pairwise

import pytest
from driven_ranks import SOURCES, Ranks, make, of_kind

from msd.coordinator import course
from msd.coordinator.commands import Assign, Fail, Refuse, Replicate
from msd.core.journal import Report, SetWeights
from msd.errors import ConfigError
from msd.planner.config import FeedbackConfig, MixtureConfig
from msd.testing.tables import feed_of, steps_of

KEPT = 3


def towards_loss(shares, losses, step):
    return {name: losses.get(name, 1.0) for name in shares}


@pytest.fixture(autouse=True)
def _few_are_kept(monkeypatch):
    monkeypatch.setattr(course, "MOST_REPORTS", KEPT)


def made():
    return make(mixture=MixtureConfig(feedback=FeedbackConfig(function=towards_loss, every=2)))


def report(ranks, number):
    """Report something else each time, and return the edit as it was journalled."""
    losses = {"web": 1.0 + number % 3, "books": 1.0 + number % 5}
    edit, commands = ranks.run.coordinator.edit(Report(at_step=0, losses=losses), move_late=True)
    ranks.note(commands)
    return edit


def reported(steps, ranks=None):
    """Ranks that took some steps with a report before each, and the reports."""
    ranks = Ranks(made()) if ranks is None else ranks
    edits = []
    for step in steps:
        edits.append(report(ranks, step))
        ranks.ask_all([step])
    return ranks, edits


def expected(edits, count):
    """What steps hold in a run that is planned in one go, by digest of their membership."""
    run = made()
    planner, waiting, found = run.new_planner(None), list(edits), []
    steps = steps_of(planner, feed_of(SOURCES, run.settings))
    while len(found) < count:
        while waiting and waiting[0].noted_at <= planner.step:
            planner.apply(waiting.pop(0))
        found.append(next(steps).membership_digest)
    return found


def assigned(ranks):
    return {c.plan.step: c.plan.membership_digest for c in of_kind(Assign, ranks.met)}


def newest_copy(ranks):
    return of_kind(Replicate, ranks.met)[-1].standing


def test_weights_follow_reports_and_few_of_them_are_kept():
    ranks, edits = reported(range(1, 16))
    found = assigned(ranks)
    assert found == dict(enumerate(expected(edits, len(found))))
    assert len({c.plan.report.samples_by_source.get("web") for c in of_kind(Assign, ranks.met)}) > 1
    assert not of_kind(Fail, ranks.met)
    coordinator = ranks.run.coordinator
    assert coordinator.edits == ()
    assert coordinator.losses == edits[-1].losses
    copy = newest_copy(ranks)
    assert copy.num_forgotten + len(copy.edits) == len(edits)
    assert len(copy.edits) <= KEPT + coordinator.next_step - copy.first_step
    assert coordinator.first_step == copy.first_step > 5


def test_a_planner_that_is_born_from_the_copy_goes_on_with_what_was_reported():
    ranks, edits = reported(range(1, 12))
    stands = [ranks.run.coordinator.rank_standing(rank) for rank in (0, 1)]
    places = [replace(one, progress=ranks.run.coordinator.progress_before(one.next_step)) for one in stands]
    before, copy = assigned(ranks), newest_copy(ranks)
    again = ranks.run.born_again(copy)
    ranks.met = ranks.run.settle(again.begin())
    for place in places:
        ranks.connect(place.rank, place)
    ranks.ask_all(range(12, 15))
    _, more = reported(range(15, 20), ranks)
    found = before | assigned(ranks)
    assert found == dict(enumerate(expected([*edits, *more], len(found))))
    assert not of_kind(Fail, ranks.met)
    assert not of_kind(Refuse, ranks.met)


def test_a_copy_with_more_forgotten_is_the_newer_one():
    ranks, _ = reported(range(1, 12))
    copies = [c.standing for c in of_kind(Replicate, ranks.met)]
    ages = [copy.num_forgotten + len(copy.edits) for copy in copies]
    assert ages == sorted(ages)
    assert any(len(later.edits) < len(copy.edits) for copy, later in pairwise(copies))


def test_a_rank_that_comes_without_a_state_must_load_once_what_came_before_is_forgotten():
    ranks, _ = reported(range(1, 12))
    state = ranks.run.coordinator.progress_before(12)
    ranks.leaves(1)
    met = ranks.connect(1)
    (refused,) = of_kind(Refuse, met)
    assert "came without a state to a run that goes on" in str(refused.error)
    met = ranks.load(1, state) + ranks.load(0, state) + ranks.ask_all(range(13, 16))
    assert {c.plan.step for c in of_kind(Assign, met)} == set(range(12, 18))
    assert not of_kind(Fail, ranks.met)


def test_nothing_is_forgotten_while_a_rank_is_missing():
    ranks = Ranks(made())
    ranks.leaves(1)
    reported(range(1, 12), ranks)
    assert newest_copy(ranks).num_forgotten == 0
    met = ranks.connect(1) + ranks.asks(1, 1)
    assert not of_kind(Refuse, met)
    assert set(ranks.assigned("c1")) == set(range(4))
    assert not of_kind(Fail, ranks.met)


def test_what_people_decided_stays_in_the_journal():
    ranks, _ = reported(range(1, 6))
    wanted = SetWeights(at_step=30, weights={"web": 1.0}, who="somebody")
    ranks.note(ranks.run.coordinator.edit(wanted)[1])
    reported(range(6, 20), ranks)
    (kept,) = ranks.run.coordinator.edits
    assert (kept.at_step, kept.who) == (30, "somebody")


def test_a_step_that_cannot_be_planned_again_is_refused_by_where_the_run_keeps_what_was_reported():
    ranks, _ = reported(range(1, 12))
    with pytest.raises(ConfigError, match=r"step 2 lies before step .* from where on it keeps what was reported"):
        ranks.run.coordinator.answer(2)


def test_a_run_without_feedback_refuses_reports_and_goes_on():
    ranks = Ranks(make())
    with pytest.raises(ConfigError, match=r"this run has no mixture\.feedback"):
        report(ranks, 1)
    ranks.ask_all(range(1, 4))
    assert not of_kind(Fail, ranks.met)

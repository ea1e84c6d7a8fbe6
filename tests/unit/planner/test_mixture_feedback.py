"""Weights that follow reports: when they are asked for, what may come back, and that a replay draws the same."""

import json

import pytest

from msd.errors import ConfigError, PlanError, StateError
from msd.planner.config import MixtureConfig
from msd.planner.config.mixture import FeedbackConfig
from msd.planner.planner import Planner
from msd.testing.tables import feed_of, row, settings_of, steps_of

MADE = {"a": [row(8)] * 5, "b": [row(8)] * 7}


def towards_loss(shares, losses, step):
    """The source with the larger loss gets three quarters."""
    worst = max(losses, key=lambda name: (losses[name], name))
    return {name: 3.0 if name == worst else 1.0 for name in shares}


def chosen(function=towards_loss, every=2, **mixture):
    feedback = FeedbackConfig(function=function, every=every)
    return settings_of(MADE, packing="none", mixture=MixtureConfig(feedback=feedback, **mixture))


def drawn(planner, count, settings, *, reports=()):
    """Samples of `a` in each of the next steps; each report is made when its step to be made at comes next."""
    found, steps = [], steps_of(planner, feed_of(MADE, settings))
    for _ in range(count):
        for made_at, losses, at_step in reports:
            if planner.step == made_at:
                planner.report(losses, at_step=at_step)
        found.append(next(steps).report.samples_by_source.get("a", 0))
    return found


def test_nothing_changes_before_something_is_reported():
    settings = chosen()
    assert drawn(Planner(settings), 6, settings) == [4] * 6


def test_weights_are_asked_for_at_the_next_multiple_of_every_after_a_report():
    settings = chosen()
    planner = Planner(settings)
    reports = [(1, {"a": 2.0, "b": 1.0}, 1), (5, {"b": 3.0}, 7)]
    assert drawn(planner, 12, settings, reports=reports) == [4, 4, 6, 6, 6, 6, 6, 6, 2, 2, 2, 2]
    state = planner.state_dict()
    assert state["mixture"]["losses"] == {"a": 2.0, "b": 3.0} == planner.losses
    assert "pending" not in state


def test_what_is_reported_before_the_first_step_counts_for_it():
    settings = chosen()
    assert drawn(Planner(settings), 2, settings, reports=[(0, {"b": 1.0}, 0)]) == [2, 2]


def test_the_function_is_told_shares_in_force_the_newest_losses_and_the_step():
    calls = []

    def noted(shares, losses, step):
        calls.append((shares, losses, step))
        return {"a": 1.0, "b": 3.0}

    settings = chosen(noted)
    drawn(Planner(settings), 5, settings, reports=[(0, {"a": 2.0}, 1), (2, {"b": 1.0}, 3)])
    assert calls == [({"a": 0.5, "b": 0.5}, {"a": 2.0}, 2), ({"a": 0.25, "b": 0.75}, {"a": 2.0, "b": 1.0}, 4)]


def test_a_step_that_is_planned_is_out_of_reach():
    settings = chosen()
    planner = Planner(settings)
    next(steps_of(planner, feed_of(MADE, settings)))
    with pytest.raises(ConfigError, match="step 0 comes too late: steps up to 0 are planned; the first that it can"):
        planner.report({"a": 1.0}, at_step=0)


def test_a_step_that_is_being_drawn_is_drawn_again_with_what_is_reported_for_it():
    settings = chosen()
    planner = Planner(settings)
    assert planner.plan() is not None
    planner.report({"b": 1.0}, at_step=0)
    planner.report({"b": 2.0, "a": 3.0}, at_step=0)
    assert drawn(planner, 3, settings) == drawn(Planner(settings), 3, settings, reports=[(0, {"a": 3.0}, 0)])
    assert planner.losses == {"a": 3.0, "b": 2.0}


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ({"c": 1.0}, "there is no source 'c' \\(sources: a, b\\)"),
        ({"a": float("nan")}, "the loss of 'a' must be a finite number, got 'nan'"),
        ({"a": "low"}, "the loss of 'a' must be a finite number, got 'low'"),
    ],
)
def test_a_report_that_means_nothing_is_refused(losses, message):
    with pytest.raises(ConfigError, match=message):
        Planner(chosen()).report(losses, at_step=1)


def test_a_run_without_feedback_takes_no_report():
    with pytest.raises(ConfigError, match=r"this run has no mixture\.feedback"):
        Planner(settings_of(MADE)).report({"a": 1.0}, at_step=1)


def raises(shares, losses, step):
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raises, "mixture.feedback raises raised RuntimeError: no at step 2"),
        (lambda *_: None, "raised TypeError"),
        (lambda *_: {"c": 1.0}, "gave a weight to 'c' at step 2; the sources are a, b"),
        (lambda *_: {"a": float("nan")}, "at step 2: weight of 'a' must be 0 or more, got nan"),
        (lambda *_: {"a": -1.0}, "at step 2: weight of 'a' must be 0 or more, got -1"),
        (lambda *_: {"a": 0.0}, "at step 2: all weights are 0"),
    ],
)
def test_a_function_that_gives_no_weights_ends_the_run_by_name(function, message):
    settings = chosen(function)
    with pytest.raises(PlanError, match=message):
        drawn(Planner(settings), 3, settings, reports=[(0, {"a": 1.0}, 1)])


@pytest.mark.parametrize("saved_at", range(11))
def test_a_run_that_goes_on_from_any_step_draws_what_the_whole_one_did(saved_at):
    settings = chosen()
    reports = [(1, {"a": 2.0, "b": 1.0}, 3), (5, {"b": 3.0}, 8)]
    whole = drawn(Planner(settings), 11, settings, reports=reports)
    first, second = Planner(settings), Planner(settings)
    before = drawn(first, saved_at, settings, reports=reports)
    state = json.loads(json.dumps(first.state_dict()))
    second.load_state_dict(state)
    assert second.state_dict() == state
    assert before + drawn(second, 11 - saved_at, settings, reports=reports) == whole


def test_a_report_made_while_a_step_is_drawn_is_part_of_the_position_before_it():
    settings = chosen()
    planner = Planner(settings)
    planner.plan()
    planner.report({"a": 2.0}, at_step=1)
    state = planner.state_dict()
    (waiting,) = state["pending"]
    assert (state["step"], waiting["edit"], waiting["at_step"], waiting["losses"]) == (0, "report", 1, {"a": 2.0})
    resumed = Planner(settings)
    resumed.load_state_dict(state)
    assert drawn(resumed, 4, settings) == drawn(planner, 4, settings) == [4, 4, 6, 6]


def test_a_report_leaves_the_position_of_a_plan_that_was_given_out():
    settings = chosen()
    planner = Planner(settings)
    plan = next(steps_of(planner, feed_of(MADE, settings)))
    before = plan.digest
    planner.report({"a": 2.0}, at_step=3)
    assert plan.digest == before
    assert [edit["at_step"] for edit in planner.state_dict()["pending"]] == [3]
    assert "pending" not in plan.progress


def test_no_source_is_idle_that_feedback_may_give_a_share():
    assert Planner(chosen(weights={"a": 1.0})).idle_sources == frozenset()


def test_a_state_with_feedback_is_refused_by_a_run_without():
    planner = Planner(chosen())
    states = [planner.state_dict()]
    planner.report({"a": 1.0}, at_step=0)
    # Also where nothing but a report that waits tells of it.
    states.append({key: value for key, value in planner.state_dict().items() if key != "mixture"})
    for state in states:
        with pytest.raises(StateError, match=r"set mixture\.feedback"):
            Planner(settings_of(MADE, packing="none")).load_state_dict(state)


def test_a_state_from_before_feedback_starts_without_reports():
    settings = chosen()
    planner = Planner(settings)
    planner.load_state_dict(Planner(settings_of(MADE, packing="none")).state_dict())
    assert drawn(planner, 4, settings, reports=[(1, {"a": 1.0}, 1)]) == [4, 4, 6, 6]


@pytest.mark.parametrize(
    "broken",
    [
        {"weights": {"c": 1.0}},
        {"weights": {"a": 0.0}},
        {"weights": {"a": -1.0}},
        {"losses": {"c": 1.0}},
        {"losses": {"a": "low"}},
        {"speed": 1},
        {"reports": []},
    ],
)
def test_a_state_whose_feedback_cannot_be_is_refused(broken):
    planner = Planner(chosen())
    state = planner.state_dict()
    with pytest.raises(StateError, match="the state is damaged"):
        planner.load_state_dict({**state, "mixture": {**state["mixture"], **broken}})

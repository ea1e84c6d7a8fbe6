"""How shares turn within the next steps: by the schedule on any clock, and by weights that were set for later."""

import pytest

from msd.core.journal import SetWeights
from msd.planner.config import MixtureConfig, StageConfig
from msd.planner.config.mixture import FeedbackConfig
from msd.planner.planner import Planner
from msd.testing.tables import feed_of, row, settings_of, steps_of

MADE = {"a": [row(10)] * 50, "b": [row(10)] * 50}
HALF, ALL_B = {"a": 0.5, "b": 0.5}, {"a": 0.0, "b": 1.0}


def planner_at(step, mixture):
    settings = settings_of(MADE, packing="none", mixture=mixture)
    planner = Planner(settings)
    for plan in steps_of(planner, feed_of(MADE, settings)):
        if plan.step + 1 == step:
            return planner
    raise AssertionError


@pytest.mark.parametrize(
    ("clock", "place"),
    [("step", {"step": 20}), ("samples", {"at": 160}), ("tokens", {"at": 1600}), ("epoch", {"at": 1.6})],
)
def test_a_stage_is_seen_ahead_on_every_clock(clock, place):
    mixture = MixtureConfig(clock=clock, schedule=[StageConfig(**place, weights={"b": 1})])
    planner = planner_at(10, mixture)
    assert planner.shares_ahead(5) == [HALF, HALF]
    assert planner.shares_ahead(15) == [HALF, ALL_B, ALL_B]


def test_a_clock_within_steps_is_seen_ahead():
    mixture = MixtureConfig(clock="microbatch", schedule=[StageConfig(at=20, weights={"b": 1})])
    planner = planner_at(2, mixture)
    per_step = planner.settings.num_microbatches
    assert planner.shares_ahead(20 // per_step - 3)[-1] == HALF
    assert planner.shares_ahead(20 // per_step)[-1] == ALL_B


def test_nothing_is_known_ahead_of_the_first_step_on_a_clock_that_counts_what_is_drawn():
    mixture = MixtureConfig(clock="tokens", schedule=[StageConfig(at=1600, weights={"b": 1})])
    assert Planner(settings_of(MADE, mixture=mixture)).shares_ahead(1000) == [HALF, HALF]


def test_a_ramp_is_seen_as_far_as_it_will_have_come():
    mixture = MixtureConfig(schedule=[StageConfig(step=12, ramp=8, weights={"b": 1})])
    assert planner_at(10, mixture).shares_ahead(6) == [HALF, HALF, {"a": 0.25, "b": 0.75}]


def test_weights_that_wait_are_seen_from_their_step_on():
    planner = planner_at(4, MixtureConfig())
    planner.apply(SetWeights(at_step=30, weights={"a": 1}))
    planner.apply(SetWeights(at_step=10, weights={"b": 1}, ramp=4))
    assert planner.shares_ahead(5) == [HALF, HALF]
    assert planner.shares_ahead(8) == [HALF, HALF, {"a": 0.25, "b": 0.75}]
    assert planner.shares_ahead(20) == [HALF, HALF, ALL_B]
    assert planner.shares_ahead(26)[-1] == {"a": 1.0, "b": 0.0}


def test_weights_in_force_hide_the_schedule():
    mixture = MixtureConfig(schedule=[StageConfig(step=12, weights={"b": 1})])
    planner = planner_at(4, mixture)
    planner.apply(SetWeights(at_step=4, weights={"a": 1, "b": 1}))
    assert planner.shares_ahead(50)[0] == HALF
    assert ALL_B not in planner.shares_ahead(50)


def test_what_feedback_said_stays_until_it_is_asked_again():
    mixture = MixtureConfig(feedback=FeedbackConfig(function=lambda shares, losses, step: {"b": 1.0}, every=2))
    settings = settings_of(MADE, packing="none", mixture=mixture)
    planner = Planner(settings)
    planner.report({"a": 1.0}, at_step=0)
    steps = steps_of(planner, feed_of(MADE, settings))
    next(steps)
    assert planner.shares_ahead(9) == [ALL_B, ALL_B]

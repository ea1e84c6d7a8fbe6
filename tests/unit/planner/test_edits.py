"""Edits of a run that goes on: what each does, from which step on, and what is refused."""

import json

import pytest

from msd.core.journal import Resume, SetWeights, SkipRows, SkipSteps, Suspend, with_pending
from msd.core.sample import Outcome
from msd.errors import BadSampleRateError, ConfigError, EngineError
from msd.planner.config import BatchStageConfig, MixtureConfig, StageConfig
from msd.planner.config.mixture import FeedbackConfig
from msd.planner.planner import Planner, Starved
from msd.testing.tables import Row, feed_of, row, settings_of, steps_of

MADE = {"a": [row(8)] * 7, "b": [row(8)] * 9, "c": [row(8)] * 5}
TEXT = {"a": [row(30), row(20, 10), row(), row(25), row(64), row(40)], "b": [row(7), row(9), row(60)] * 3}


def settings(made=None, **changes):
    return settings_of(made or MADE, **{"packing": "none", "global_batch_size": 6} | changes)


def planned(chosen, made, edits=(), count=8, planner=None):
    planner = planner or Planner(chosen)
    for edit in edits:
        planner.apply(edit)
    steps = steps_of(planner, feed_of(made, chosen))
    return [plan for _, plan in zip(range(count), steps, strict=False)]


def drawn(plan):
    return dict(sorted(plan.report.samples_by_source.items()))


def test_a_suspended_source_is_not_drawn_from_and_its_credit_rests_until_it_is_resumed():
    edits = [Suspend(at_step=2, source="b", who="me", reason="slow"), Resume(at_step=5, source="b")]
    plans = planned(settings(), MADE, edits)
    assert [("b" in drawn(plan)) for plan in plans] == [True, True, False, False, False, True, True, True]
    credit = [plan.progress["sources"]["b"]["credit"] for plan in plans]
    assert credit[1] == credit[2] == credit[4]
    assert plans[2].notes == ("source 'b' is suspended by me: slow",)
    assert plans[5].notes == ("source 'b' is resumed",)


def test_what_a_suspended_source_leaves_goes_to_the_others_by_weight():
    plans = planned(settings(weights={"a": 2, "b": 3, "c": 1}), MADE, [Suspend(at_step=1, source="b")], 4)
    assert [drawn(plan) for plan in plans[1:]] == [{"a": 4, "c": 2}] * 3


def test_samples_of_a_suspended_source_that_wait_are_delivered():
    chosen = settings(TEXT, packing="best_fit", global_batch_size=4)
    plans = planned(chosen, TEXT, count=6)
    step, source = next((plan.step + 1, entry["source"]) for plan in plans[:-1] for entry in plan.progress["carry"])
    (after,) = planned(chosen, TEXT, [Suspend(at_step=step, source=source)], step + 1)[step:]
    assert source in drawn(after)


def test_an_edit_for_a_planned_step_is_refused_with_the_first_that_it_can_reach():
    chosen = settings()
    planner = Planner(chosen)
    planned(chosen, MADE, count=3, planner=planner)
    with pytest.raises(ConfigError, match=r"step 2 comes too late: steps up to 2 are planned; .* reach is 3"):
        planner.apply(Suspend(at_step=2, source="b"))


def test_an_edit_told_twice_acts_once():
    skip = SkipSteps(at_step=1, count=2, when="noon")
    once = planned(settings(), MADE, [skip], 4)
    assert [plan.digest for plan in planned(settings(), MADE, [skip, skip], 4)] == [plan.digest for plan in once]


def test_an_edit_for_the_step_being_filled_acts_from_its_first_draw_and_keeps_what_was_observed():
    chosen = settings()
    planner, feed = Planner(chosen), feed_of(MADE, chosen, 2)
    planner.observe(feed.table("a", 0))
    planner.observe(feed.table("b", 0))
    assert planner.plan() == Starved("c", 0)
    planner.apply(Suspend(at_step=0, source="c"))
    assert (planner.needs("a"), planner.needs("b"), planner.needs("c")) == (2, 2, 0)
    assert "c" in planner.idle_sources
    assert planner.plan() == Starved("a", 2)
    first = next(steps_of(planner, feed))
    assert first.digest == planned(chosen, MADE, [Suspend(at_step=0, source="c")], 1)[0].digest


def test_rows_that_are_skipped_are_passed_over_and_told_of():
    edits = [SkipRows(at_step=1, source="a", first=2, last=4)]
    plans = planned(settings({"a": MADE["a"]}), MADE, edits, 3)
    ordinals = [[i.ordinal for i in plan.sample_ids()] for plan in plans]
    assert ordinals == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17]]
    plans = planned(settings({"a": MADE["a"]}), MADE, [SkipRows(at_step=1, source="a", first=5, last=8)], 3)
    assert [i.ordinal for i in plans[1].sample_ids()] == [9, 10, 11, 12, 13, 14]
    assert plans[1].notes == (
        "rows 5 to 8 of source 'a' are passed over from here on (skip); those before 6 were drawn already",
        "source 'a': 3 rows left out, as was asked for (skipped)",
    )
    assert "edits" not in plans[1].progress


def test_parts_of_a_skipped_row_that_were_drawn_stay():
    made = {"a": [row(8, 8, 8, 8), row(8), row(8), row(8)]}
    chosen = settings(made, global_batch_size=2)
    plans = planned(chosen, made, [SkipRows(at_step=1, source="a", first=0, last=0)], 2)
    assert [i[1:] for i in plans[0].sample_ids()] == [(0, 0), (0, 1)]
    assert [i[1:] for i in plans[1].sample_ids()] == [(1, 0), (2, 0)]


def test_a_killed_row_counts_toward_the_rate_and_is_listed_with_how_it_ended():
    made = {"a": [row(8)] * 200}
    chosen = settings(made, global_batch_size=50, terms={"a": {"max_rate": 0.01}})
    edits = [SkipRows(at_step=0, source="a", first=n, last=n, reason="killed", how=f"SIG{n}") for n in (7, 93)]
    with pytest.raises(BadSampleRateError, match=r"2 of the last 100 rows failed.*ordinal 93: it ended .*\(SIG93\)"):
        planned(chosen, made, edits)
    plans = planned(chosen, made, edits[:1], 3)
    assert plans[-1].progress["sources"]["a"]["bad"] == [[0, 1]]
    assert "source 'a': 1 row left out: it ended or hung its process twice (killed)" in plans[0].notes


def test_rows_that_loaders_answer_as_killed_or_skipped_are_treated_alike():
    made = {"a": [row(8), Row((), Outcome.KILLED), Row((), Outcome.SKIPPED), *[row(8)] * 5]}
    chosen = settings(made, global_batch_size=4, terms={"a": {"max_rate": 1.0}})
    (plan,) = planned(chosen, made, count=1)
    assert [i.ordinal for i in plan.sample_ids()] == [0, 3, 4, 5]
    assert plan.progress["sources"]["a"]["bad"] == [[0, 1]]
    assert plan.progress["sources"]["a"]["barren"] == [0, 0, 0, 0, 0, 1, 1]
    with pytest.raises(BadSampleRateError, match=r"ordinal 1 was killed and on_error.policy is raise"):
        planned(settings(made, terms={"a": {"raises": True}}), made, count=1)


def test_an_epoch_that_was_skipped_whole_is_no_error():
    made = {"a": [row(8)] * 4}
    plans = planned(settings(made, global_batch_size=2), made, [SkipRows(at_step=1, source="a", first=2, last=9)], 2)
    assert [i.ordinal for i in plans[1].sample_ids()] == [10, 11]


@pytest.mark.parametrize("packing", ["none", "best_fit", "concat", "first_fit_decreasing"])
def test_a_step_after_skipped_steps_holds_what_came_after_them(packing):
    chosen = settings(TEXT, packing=packing, global_batch_size=4)
    plain = planned(chosen, TEXT, count=9)
    plans = planned(chosen, TEXT, [SkipSteps(at_step=2, count=3)], 6)
    held = [sorted(plan.sample_ids()) for plan in plain]
    assert [sorted(plan.sample_ids()) for plan in plans] == [*held[:2], *held[5:]]
    assert [plan.step for plan in plans] == list(range(6))
    assert plans[2].progress["sources"] == plain[5].progress["sources"]
    dropped = sum(len(ids) for ids in held[2:5])
    assert f"3 steps are skipped: {dropped} documents of" in plans[2].notes[1]


def test_what_is_dropped_has_the_sizes_of_its_steps_and_the_step_those_of_its_number():
    batch = {"schedule": [BatchStageConfig(step=3, global_batch_size=2)]}
    chosen = settings({"a": MADE["a"]}, global_batch_size=4, batch=batch)
    plans = planned(chosen, MADE, [SkipSteps(at_step=2, count=3)], 4)
    assert [[i.ordinal for i in plan.sample_ids()] for plan in plans] == [
        [0, 1, 2, 3], [4, 5, 6, 7], [16, 17, 18, 19], [20, 21],
    ]  # fmt: skip


def test_data_that_ends_among_skipped_steps_ends_the_run_and_says_so():
    chosen = settings({"a": MADE["a"]}, global_batch_size=2, max_epochs={"a": 1})
    planner = Planner(chosen)
    assert len(planned(chosen, MADE, [SkipSteps(at_step=1, count=9)], planner=planner)) == 1
    assert planner.closing_notes[-1] == "the data ended after 2 of the steps that were to be skipped"


def test_weights_that_are_set_hold_from_their_step_on_in_place_of_the_schedule():
    mixture = MixtureConfig(schedule=[StageConfig(step=4, weights={"c": 1})], unit="samples")
    edits = [SetWeights(at_step=2, weights={"a": 2, "b": 1})]
    plans = planned(settings(mixture=mixture), MADE, edits, 6)
    assert [drawn(plan) for plan in plans[2:]] == [{"a": 4, "b": 2}] * 4


def test_a_ramp_starts_from_the_shares_in_force():
    chosen = settings(global_batch_size=60, unit="samples")
    edits = [SetWeights(at_step=1, weights={"a": 1}, ramp=4), SetWeights(at_step=3, weights={"b": 1}, ramp=2)]
    plans = planned(chosen, MADE, edits, 7)
    assert [drawn(plan).get("a", 0) for plan in plans] == [20, 20, 30, 40, 20, 0, 0]
    assert [drawn(plan).get("b", 0) for plan in plans] == [20, 20, 15, 10, 35, 60, 60]
    assert "ramp_from" in plans[3].progress
    assert "ramp_from" not in plans[4].progress


def test_weights_that_are_set_replace_those_of_feedback_until_it_is_asked_next():
    feedback = FeedbackConfig(function=lambda shares, losses, step: {"c": 1}, every=3)
    mixture = MixtureConfig(unit="samples", feedback=feedback)
    chosen = settings(mixture=mixture)
    planner = Planner(chosen)
    planner.report({"a": 1.0}, at_step=0)
    plans = planned(chosen, MADE, [SetWeights(at_step=3, weights={"a": 1, "b": 1})], 8, planner)
    assert [drawn(plan) for plan in plans] == [{"c": 6}] * 3 + [{"a": 3, "b": 3}] * 3 + [{"c": 6}] * 2


def test_feedback_is_not_asked_while_a_ramp_goes_on():
    feedback = FeedbackConfig(function=lambda shares, losses, step: {"c": 1}, every=1)
    planner = Planner(settings(mixture=MixtureConfig(unit="samples", feedback=feedback)))
    planner.report({"a": 1.0}, at_step=0)
    plans = planned(planner.settings, MADE, [SetWeights(at_step=1, weights={"a": 1}, ramp=3)], 6, planner)
    assert [drawn(plan).get("a", 0) for plan in plans] == [0, 0, 2, 4, 0, 0]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (Suspend(at_step=0, source="x"), "suspend: there is no source 'x'"),
        (SkipRows(at_step=0, source="a", first=5, last=4), "the last not before the first; got 5 to 4"),
        (SkipRows(at_step=0, source="c", first=10, last=10), "source 'c' ends at ordinal 10, got 10"),
        (SkipRows(at_step=0, source="a", first=5, last=10**12), "skip at most 10000 at once, or suspend the source"),
        (SkipSteps(at_step=0, count=0), r"count must lie in \[1, 1000000\], got 0"),
        (SetWeights(at_step=0, weights={"code": 1}), "no source 'code' .*by source, without groups"),
        (SetWeights(at_step=0, weights={"a": 0}), "set_weights: all weights are 0"),
        (SetWeights(at_step=0, weights={"a": 1}, ramp=-1), "ramp must be 0 steps or more, got -1"),
        (Suspend(at_step=-1, source="a"), "at_step must be a step, got -1"),
        (Suspend(at_step="3", source="a"), r"suspend: .*Expected `int`, got `str`.*at_step"),
        (SetWeights(at_step=0, weights={"a": "1"}), r"set_weights: .*Expected `float`, got `str`"),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(edit, said):
    planner = Planner(settings(max_epochs={"c": 2}))
    before = json.dumps(planner.state_dict())
    with pytest.raises(ConfigError, match=said):
        planner.apply(edit)
    assert json.dumps(planner.state_dict()) == before


def test_an_edit_that_leaves_nothing_to_draw_is_refused():
    planner = Planner(settings(weights={"a": 1, "b": 1, "c": 0}))
    planner.apply(Suspend(at_step=0, source="a"))
    with pytest.raises(ConfigError, match="from step 0 on nothing could be drawn"):
        planner.apply(Suspend(at_step=0, source="b"))
    planner.apply(Suspend(at_step=4, source="b"))
    with pytest.raises(ConfigError, match="from step 5 on nothing could be drawn"):
        planner.apply(SetWeights(at_step=5, weights={"a": 1, "b": 2}))


def test_that_nothing_can_be_drawn_is_an_error_where_it_shows_late():
    chosen = settings(max_epochs={"a": 1, "c": 1}, end={"a": "drop", "c": "drop"})
    with pytest.raises(EngineError, match=r"every source that could be drawn is suspended \(b\)"):
        planned(chosen, MADE, [Suspend(at_step=1, source="b")])


def test_no_edit_reaches_a_run_that_has_ended():
    chosen = settings({"a": MADE["a"]}, max_epochs={"a": 1})
    planner = Planner(chosen)
    planned(chosen, MADE, planner=planner)
    with pytest.raises(ConfigError, match="the run has ended before step 1"):
        planner.apply(SkipSteps(at_step=4, count=1))


def test_rows_to_be_spared_are_those_of_edits_that_act_or_wait():
    chosen = settings()
    planner = Planner(chosen)
    early, late = (SkipRows(at_step=step, source="a", first=first, last=9) for step, first in ((0, 3), (7, 8)))
    planned(chosen, MADE, [early, late], 1, planner)
    assert planner.skips == (early, late)
    planned(chosen, MADE, count=6, planner=planner)
    assert planner.skips == (late,)


def test_a_position_from_before_an_edit_can_be_told_of_it():
    chosen = settings()
    edits = [SkipSteps(at_step=1, count=1), Suspend(at_step=5, source="a")]
    position = planned(chosen, MADE, count=2)[-1].progress
    told = with_pending(position, edits)
    assert [entry["source"] for entry in told["pending"]] == ["a"]
    assert with_pending(told, edits) is told
    planner, other = Planner(chosen), Planner(chosen)
    planner.load_state_dict(json.loads(json.dumps(told)))
    other.load_state_dict(position)
    other.apply(edits[1])
    assert planner.state_dict() == other.state_dict() == told


def test_no_edit_leaves_no_trace_in_a_position():
    plan = planned(settings(), MADE, [Suspend(at_step=0, source="a"), Resume(at_step=0, source="a")], 1)[0]
    plain = planned(settings(), MADE, count=1)[0]
    assert plan.progress == plain.progress

"""Runs with edits: saved and loaded anywhere, filled step by step or taken back, they are the same run."""

import json
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msd.core.journal import Report, Resume, SetWeights, SkipRows, SkipSteps, Suspend
from msd.core.sample import Outcome
from msd.planner.config import BatchStageConfig, FeedbackConfig, MixtureConfig, StageConfig
from msd.planner.planner import Planner, Starved
from msd.testing.tables import Row, failed_row, feed_of, row, settings_of, steps_of

PROFILE = settings(derandomize=True, deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
LENGTH = 48
NAMES = ["a", "b", "c"]
NUM_STEPS = 9
"""Steps of a run; edits come at one of them."""


@st.composite
def rows(draw):
    some = st.lists(st.integers(1, LENGTH), min_size=1, max_size=3).map(lambda lengths: row(*lengths))
    none = st.sampled_from([row(), failed_row(), Row((), Outcome.KILLED)])
    # The first row survives, so that no epoch is barren.
    kept = draw(st.integers(1, LENGTH))
    return [row(kept), *draw(st.lists(st.one_of(some, some, none), min_size=3, max_size=20))]


@st.composite
def edits(draw, at_step=None):
    step = draw(st.integers(0, NUM_STEPS - 1)) if at_step is None else at_step
    kind = draw(st.sampled_from(["suspend", "resume", "rows", "steps", "weights", "report"]))
    source = draw(st.sampled_from(NAMES))
    # Source c is never suspended and keeps a weight, so that there is always something to draw.
    if kind == "suspend":
        return Suspend(at_step=step, source=draw(st.sampled_from(["a", "b"])), reason=draw(st.sampled_from(["", "x"])))
    if kind == "resume":
        return Resume(at_step=step, source=source)
    if kind == "rows":
        first = draw(st.integers(0, 40))
        reason = draw(st.sampled_from(["skip", "killed"]))
        return SkipRows(at_step=step, source=source, first=first, last=first + draw(st.integers(0, 9)), reason=reason)
    if kind == "report":
        names = draw(st.sets(st.sampled_from(NAMES), min_size=1))
        return Report(at_step=step, losses={name: draw(st.integers(1, 9)) for name in sorted(names)})
    if kind == "steps":
        return SkipSteps(at_step=step, count=draw(st.integers(1, 4)))
    weights = {name: draw(st.integers(0, 5)) for name in draw(st.sets(st.sampled_from(["a", "b"])))}
    return SetWeights(at_step=step, weights=weights | {"c": 1.0}, ramp=draw(st.integers(0, 5)))


@st.composite
def mixtures(draw):
    unit, clock = draw(st.sampled_from(["tokens", "samples"])), draw(st.sampled_from(["step", "tokens", "microbatch"]))
    place = {"step": 3} if clock == "step" else {"at": {"tokens": 900, "microbatch": 7}[clock]}
    stages = [StageConfig(**place, ramp=draw(st.integers(0, 4)), weights={"a": 1, "c": 3})]
    if draw(st.booleans()):
        return MixtureConfig(unit=unit, clock=clock, feedback=FeedbackConfig(function=towards_loss, every=2))
    return MixtureConfig(unit=unit, clock=clock, schedule=draw(st.sampled_from([[], stages])))


def towards_loss(shares, losses, step):
    return {name: losses.get(name, 1.0) for name in shares}


@st.composite
def runs(draw):
    made = {name: draw(rows()) for name in NAMES}
    packing = draw(st.sampled_from(["best_fit", "concat", "none", "first_fit_decreasing"]))
    stages = [BatchStageConfig(step=4, global_batch_size=8, ramp=2)]
    finite = draw(st.booleans())
    chosen = settings_of(
        made,
        mixture=draw(mixtures()),
        packing=packing,
        sequence_length=LENGTH,
        global_batch_size=4,
        num_microbatches=2,
        multiple_of=2,
        batch={"last": draw(st.sampled_from(["pad", "drop"])), "schedule": draw(st.sampled_from([[], stages]))},
        max_epochs={"a": 2} if finite else None,
        end={"a": "drop"},
        terms={name: {"max_rate": 1.0} for name in NAMES},
    )
    return made, chosen


def whole(planner, feed, count=NUM_STEPS):
    return [plan for _, plan in zip(range(count), steps_of(planner, feed), strict=False)]


def is_unwanted(edit, chosen):
    """Whether an edit would be refused, for rows after the end, or leave an epoch without its sure survivor."""
    if isinstance(edit, Report):
        return chosen.mixture.feedback is None
    if not isinstance(edit, SkipRows):
        return False
    terms = next(one for one in chosen.sources if one.name == edit.source)
    rows = range(edit.first, edit.last + 1)
    kills_first = edit.reason == "killed" and any(n % terms.rows_per_epoch == 0 for n in rows)
    return kills_first or edit.first >= (terms.total_ordinals or 10**6)


def edited(chosen, journal):
    planner = Planner(chosen)
    for edit in journal:
        if is_unwanted(edit, chosen):
            continue
        planner.apply(edit)
    return planner


@PROFILE
@given(made_up=runs(), journal=st.lists(edits(), max_size=6), chunk=st.integers(1, 30), data=st.data())
def test_a_run_with_edits_that_is_saved_and_loaded_anywhere_is_one_run(made_up, journal, chunk, data):
    made, chosen = made_up
    plans = whole(edited(chosen, journal), feed_of(made, chosen))
    position, found = edited(chosen, journal).state_dict(), []
    while len(found) < len(plans):
        saved = json.loads(json.dumps(position))
        planner = Planner(chosen)
        planner.load_state_dict(saved)
        assert planner.state_dict() == saved
        more = whole(planner, feed_of(made, chosen, chunk), data.draw(st.integers(1, 4)))
        assert more, f"the run ended after {len(found)} steps, not {len(plans)}"
        found += more
        position = found[-1].progress
    assert [plan.digest for plan in found[: len(plans)]] == [plan.digest for plan in plans]
    assert [plan.notes for plan in found[: len(plans)]] == [plan.notes for plan in plans]


@PROFILE
@given(made_up=runs(), journal=st.lists(edits(), min_size=1, max_size=5), chunk=st.integers(1, 30), data=st.data())
def test_an_edit_that_comes_while_its_step_is_being_filled_is_as_one_that_came_before(made_up, journal, chunk, data):
    made, chosen = made_up
    feed = feed_of(made, chosen, chunk)
    planner, told, plans = Planner(chosen), [], []
    waiting = sorted((edit for edit in journal if not is_unwanted(edit, chosen)), key=lambda edit: edit.at_step)
    for _ in range(4000):
        if len(plans) == NUM_STEPS:
            break
        while waiting and planner.step == waiting[0].at_step and data.draw(st.booleans()):
            needs = {name: planner.needs(name) for name in NAMES}
            told.append(waiting.pop(0))
            planner.apply(told[-1])
            assert {name: planner.needs(name) for name in NAMES} == needs
        outcome = planner.plan()
        if outcome is None:
            break
        if isinstance(outcome, Starved):
            planner.observe(feed.table(outcome.source, outcome.ordinal))
            continue
        plans.append(outcome)
        waiting = [edit for edit in waiting if edit.at_step >= planner.step]
    expected = whole(edited(chosen, told), feed_of(made, chosen))
    # Positions tell of edits from when they came; what steps hold is the same whenever that was.
    assert [plan.membership_digest for plan in plans] == [plan.membership_digest for plan in expected]
    assert [plan.notes for plan in plans] == [plan.notes for plan in expected]
    assert planner.state_dict()["sources"] == (expected[-1].progress["sources"] if expected else {}) or not expected


@PROFILE
@given(made_up=runs(), journal=st.lists(edits(), max_size=5))
def test_no_sample_is_delivered_twice_whatever_is_edited_and_none_that_is_skipped(made_up, journal):
    made, chosen = made_up
    plans = whole(edited(chosen, journal), feed_of(made, chosen))
    seen = Counter((*plan.sample_id(d), int(plan.start_D[d])) for plan in plans for d in range(plan.num_documents))
    assert all(count == 1 for count in seen.values())
    for edit in journal:
        if isinstance(edit, SkipRows) and edit.at_step == 0 and not is_unwanted(edit, chosen):
            assert not any(s == edit.source and edit.first <= o <= edit.last for s, o, _, _ in seen)


@PROFILE
@given(made_up=runs(), at_step=st.integers(0, 4), count=st.integers(1, 4))
def test_skipped_steps_are_those_that_would_have_come(made_up, at_step, count):
    made, chosen = made_up
    if chosen.batch.schedule or chosen.mixture.schedule:
        # Sizes and weights that move with the step are those of its number, so only what is dropped can be compared.
        return
    plain = whole(Planner(chosen), feed_of(made, chosen), NUM_STEPS + count)
    plans = whole(edited(chosen, [SkipSteps(at_step=at_step, count=count)]), feed_of(made, chosen))
    held = [sorted(plan.sample_ids()) for plan in plain]
    left = [*held[:at_step], *held[at_step + count :]]
    found = [sorted(plan.sample_ids()) for plan in plans]
    assert found == left[: len(found)]
    assert len(found) == min(NUM_STEPS, len(left))


@PROFILE
@given(made_up=runs(), journal=st.lists(edits(), max_size=3), gone=st.sampled_from(["a", "b"]), done=st.integers(0, 8))
def test_a_source_may_go_and_come_and_the_rest_goes_on(made_up, journal, gone, done):
    made, chosen = made_up
    plans = whole(edited(chosen, journal), feed_of(made, chosen), done)
    state = json.loads(json.dumps(plans[-1].progress if plans else edited(chosen, journal).state_dict()))
    left = {name: rows for name, rows in made.items() if name != gone}
    terms = tuple(one for one in chosen.sources if one.name != gone)
    mixture = MixtureConfig(unit=chosen.mixture.unit, feedback=chosen.mixture.feedback)
    fewer = settings_of(left, mixture=mixture).__class__(
        **{name: getattr(chosen, name) for name in chosen.__slots__} | {"sources": terms, "mixture": mixture}
    )
    planner = Planner(fewer)
    planner.load_state_dict(state)
    there = planner.state_dict()
    before = {name: entry for name, entry in state["sources"].items() if name != gone}
    assert {name: {**entry, "credit": 0} for name, entry in there["sources"].items()} == {
        name: {**entry, "credit": 0} for name, entry in before.items()
    }
    owed = sum(entry["credit"] for entry in state["sources"].values())
    live = [entry for entry in there["sources"].values() if not entry["ended"]]
    assert not live or sum(entry["credit"] for entry in there["sources"].values()) == owed
    again = Planner(fewer)
    again.load_state_dict(json.loads(json.dumps(there)))
    assert again.state_dict() == there
    rest = whole(planner, feed_of(left, fewer), 3)
    assert all(sample_id.source != gone for plan in rest for sample_id in plan.sample_ids())

"""A position taken to another run: sources that come and go, other mixtures, other batches where that is forced."""

import json

import pytest

from msd.core.journal import Resume, SetWeights, SkipRows, SkipSteps, Suspend
from msd.core.mesh import Mesh
from msd.errors import StateError
from msd.planner.config import BatchStageConfig, MixtureConfig, StageConfig
from msd.planner.config.batch import LimitsConfig
from msd.planner.config.mixture import FeedbackConfig
from msd.planner.planner import Planner
from msd.testing.tables import feed_of, row, settings_of, steps_of

MADE = {"a": [row(30), row(20, 10), row(25), row(64), row(40)], "b": [row(7), row(9), row(60)], "c": [row(33)] * 4}
LEFT = {name: MADE[name] for name in ("a", "b")}


def run(made, count, state=None, edits=(), **changes):
    chosen = settings_of(made, **changes)
    planner = Planner(chosen)
    if state is not None:
        planner.load_state_dict(json.loads(json.dumps(state)))
    for edit in edits:
        planner.apply(edit)
    steps = steps_of(planner, feed_of(made, chosen))
    return [plan for _, plan in zip(range(count), steps, strict=False)]


def loaded(state, made, **changes):
    planner = Planner(settings_of(made, **changes))
    planner.load_state_dict(json.loads(json.dumps(state)))
    return planner


def waiting_for(source, made=MADE, **changes):
    """Return a position at which samples of a source wait."""
    for plan in run(made, 20, **changes):
        if any(piece["source"] == source for piece in plan.progress["carry"]):
            return plan.progress
    raise AssertionError(f"no sample of {source} ever waits")


def test_a_source_that_is_gone_leaves_what_it_was_owed_and_its_samples_that_wait():
    state = waiting_for("c")
    planner = loaded(state, LEFT)
    after = planner.state_dict()
    credits = {name: entry["credit"] for name, entry in after["sources"].items()}
    assert set(credits) == {"a", "b"}
    assert sum(credits.values()) == sum(entry["credit"] for entry in state["sources"].values())
    assert after["carry"] == [piece for piece in state["carry"] if piece["source"] != "c"]
    first = next(steps_of(planner, feed_of(LEFT, planner.settings)))
    waited = len(state["carry"]) - len(after["carry"])
    assert first.notes == (f"source 'c' is gone: {waited} samples of it that waited are dropped",)
    assert loaded(after, LEFT).state_dict() == after


def test_clocks_go_on_from_what_a_source_was_drawn_that_is_gone():
    schedule = [StageConfig(at=2500, weights={"a": 1})]
    mixture = MixtureConfig(clock="tokens", schedule=schedule)
    state = run(MADE, 5, mixture=mixture)[-1].progress
    tokens = sum(entry["tokens"] for entry in state["sources"].values())
    assert tokens - state["sources"]["c"]["tokens"] < 2500 <= tokens
    (plan,) = run(LEFT, 1, state, mixture=mixture)
    assert plan.progress["removed"]["tokens"] == state["sources"]["c"]["tokens"]
    drawn = plan.progress["sources"]["b"]["ordinal"] - state["sources"]["b"]["ordinal"]
    assert drawn == 0


def test_edits_of_a_source_that_is_gone_go_with_it():
    edits = [
        Suspend(at_step=1, source="c"), SkipRows(at_step=1, source="c", first=900, last=990),
        SetWeights(at_step=1, weights={"a": 1, "b": 1, "c": 1}), SkipRows(at_step=9, source="c", first=900, last=990),
        SkipSteps(at_step=9, count=1), Resume(at_step=11, source="c"), SetWeights(at_step=12, weights={"c": 1}),
    ]  # fmt: skip
    state = run(MADE, 3, edits=edits)[-1].progress
    after = loaded(state, LEFT).state_dict()
    assert [(edit["edit"], edit.get("weights")) for edit in after["edits"]] == [("set_weights", {"a": 1, "b": 1})]
    assert [edit["edit"] for edit in after["pending"]] == ["skip_steps"]


def test_weights_of_which_no_source_is_left_hold_no_more():
    state = run(MADE, 3, edits=[SetWeights(at_step=1, weights={"c": 1}, ramp=9)])[-1].progress
    (plan,) = run(LEFT, 1, state)
    assert not {"edits", "ramp_from"} & set(plan.progress)
    assert "every source that had a weight by an edit is gone: the weights of the configuration hold" in plan.notes


def test_a_new_source_that_weights_leave_out_is_told_of():
    state = run(LEFT, 3, edits=[SetWeights(at_step=1, weights={"a": 1, "b": 1})])[-1].progress
    (plan,) = run(MADE, 1, state)
    assert "c" not in plan.report.tokens_by_source
    assert "source 'c' is new and is not drawn: the weights that were set at step 1 hold" in plan.notes[0]


def test_what_was_reported_of_a_source_that_is_gone_is_forgotten():
    feedback = FeedbackConfig(function=lambda shares, losses, step: losses, every=2)
    mixture = MixtureConfig(feedback=feedback)
    planner = Planner(settings_of(MADE, mixture=mixture))
    planner.report({"a": 1.0, "c": 2.0}, at_step=0)
    planner.report({"c": 5.0}, at_step=7)
    planner.report({"c": 5.0, "a": 6.0}, at_step=7)
    steps = steps_of(planner, feed_of(MADE, planner.settings))
    state = [plan.progress for _, plan in zip(range(3), steps, strict=False)][-1]
    after = loaded(state, LEFT, mixture=mixture).state_dict()
    assert after["mixture"] == {"weights": {"a": 1.0}, "losses": {"a": 1.0}}
    assert [(edit["at_step"], edit["losses"]) for edit in after["pending"]] == [(7, {"a": 6.0})]


@pytest.mark.parametrize(
    "mixture",
    [
        MixtureConfig(weights={"a": 5, "b": 1}),
        MixtureConfig(mode="proportional"),
        MixtureConfig(schedule=[StageConfig(step=2, ramp=5, weights={"b": 1})]),
        MixtureConfig(clock="tokens", schedule=[StageConfig(at=900, weights={"b": 1})]),
        MixtureConfig(clock="microbatch", schedule=[StageConfig(at=2, weights={"b": 1})]),
    ],
)
def test_another_mixture_holds_from_the_next_step_on(mixture):
    state = run(MADE, 3)[-1].progress
    plain, (plan,) = run(MADE, 1, state)[0], run(MADE, 1, state, mixture=mixture)
    assert plan.step == 3
    assert plan.membership_digest != plain.membership_digest
    waited = {(piece["source"], piece["ordinal"]) for piece in state["carry"]}
    assert waited <= {(source, ordinal) for source, ordinal, _ in plan.sample_ids()}


def test_another_mesh_and_number_of_microbatches_change_no_step():
    plans = run(MADE, 6, document_multiple=4, mesh=Mesh.of(dp=4), num_microbatches=2)
    for mesh, num_microbatches in ((Mesh.of(dp=2), 4), (Mesh.of(dp=8), 1), (Mesh.of(dp=1), 8)):
        rest = run(MADE, 3, plans[2].progress, document_multiple=4, mesh=mesh, num_microbatches=num_microbatches)
        assert [plan.membership_digest for plan in rest] == [plan.membership_digest for plan in plans[3:]]
        assert [plan.progress for plan in rest] == [plan.progress for plan in plans[3:]]


@pytest.mark.parametrize(
    "changes",
    [
        {"global_batch_size": 2},
        {"global_batch_size": 16},
        {"lookahead": 2},
        {"batch": {"last": "pad"}},
        {"batch": {"limits": LimitsConfig(attention=64 * 64), "oversize": "drop"}},
    ],
)
def test_another_batch_is_taken_where_it_is_forced_and_delivers_what_waits(changes):
    state = waiting_for("a")
    with pytest.raises(StateError, match="the state was saved with batch"):
        loaded(state, MADE, **changes)
    plans = run(MADE, 12, {**state, "force": True}, **changes)
    assert "force" not in plans[0].progress
    waited = {(piece["source"], piece["ordinal"], piece["part"]) for piece in state["carry"]}
    assert waited <= {sample_id for plan in plans for sample_id in plan.sample_ids()}
    again = json.loads(json.dumps(plans[0].progress))
    assert [plan.digest for plan in run(MADE, 3, again, **changes)] == [plan.digest for plan in plans[1:4]]


def test_what_waits_and_fits_no_sequence_any_more_is_refused_or_dropped_as_configured():
    state = {**waiting_for("a"), "force": True}
    longest = max(piece["length"] for piece in state["carry"])
    limits = LimitsConfig(attention=longest**2 - 1)
    with pytest.raises(StateError, match=r"cannot resume: sample \w:\d+\.\d waits and fits no sequence: .*attention"):
        loaded(state, MADE, batch={"limits": limits})
    (plan,) = run(MADE, 1, state, batch={"limits": limits, "oversize": "drop"})
    assert any("batch.oversize: drop" in note for note in plan.notes)


@pytest.mark.parametrize(
    "changes",
    [
        {"sequence_length": 128},
        {"packing": "concat"},
        {"unit": "samples"},
        {"batch": {"schedule": [BatchStageConfig(step=9, sequence_length=32)]}},
    ],
)
def test_what_samples_were_cut_or_counted_by_is_refused_even_where_it_is_forced(changes):
    state = {**waiting_for("a"), "force": True}
    with pytest.raises(StateError, match="cannot resume: the state was saved with"):
        loaded(state, MADE, **changes)


def test_another_mixture_of_the_strategy_is_taken_and_told():
    def eager(graph, context):
        from msd.planner.strategies.curriculum import curriculum

        return curriculum(graph, context, until=9)

    state = run(MADE, 3)[-1].progress
    (plan,) = run(MADE, 1, state, strategy=eager)
    assert plan.notes == ("the mixture of the strategy is another than the one that the state was saved with",)

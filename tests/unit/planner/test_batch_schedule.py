"""Sizes of steps that change over a run, and samples that fit none of them."""

import itertools
import json
from functools import partial

import pytest

from msd.core.mesh import Mesh
from msd.errors import ConfigError, InputError, SourceError, StateError
from msd.planner.batch_schedule import BatchSchedule
from msd.planner.check import check_plan
from msd.planner.config import BatchConfig, BatchStageConfig, LimitsConfig, MixtureConfig, PackingConfig, StageConfig
from msd.planner.planner import Planner
from msd.planner.primitives.pack import Limits
from msd.planner.strategies.long_short import long_short
from msd.testing.tables import Part, Row, feed_of, row, settings_of, steps_of

MADE = {"a": [row(n) for n in (30, 20, 10, 25, 15, 5, 64, 40)], "b": [row(12, 7), row(), row(50)]}


def stage(step, **sizes):
    return BatchStageConfig(step=step, **sizes)


def schedule(*stages, multiple_of=1, **batch):
    return BatchSchedule(BatchConfig(schedule=list(stages), **batch), multiple_of)


def plans_of(made, chosen, count):
    return list(itertools.islice(steps_of(Planner(chosen), feed_of(made, chosen)), count))


def sequences_of(plan):
    return plan.num_buckets * plan.num_microbatches * plan.sequences_per_microbatch


def test_a_ramp_is_linear_and_rounded_down_to_the_multiple():
    sizes = schedule(stage(10, global_batch_size=32, ramp=4), global_batch_size=8, multiple_of=4)
    assert [sizes.at(step).num_sequences for step in (0, 9, 10, 11, 12, 13, 14, 99)] == [8, 8, 8, 12, 20, 24, 32, 32]


def test_a_ramp_downward_and_one_that_is_cut_short_start_from_where_the_run_is():
    sizes = schedule(stage(0, global_batch_size=16, ramp=8), stage(4, global_batch_size=4, ramp=2), global_batch_size=8)
    assert [sizes.at(step).num_sequences for step in range(8)] == [8, 9, 10, 11, 12, 8, 4, 4]


def test_the_length_changes_at_once_and_stays_where_a_stage_says_nothing():
    sizes = schedule(
        stage(3, sequence_length=64), stage(5, global_batch_size=4), sequence_length=32, global_batch_size=8
    )
    found = [(sizes.at(step).sequence_length, sizes.at(step).num_sequences) for step in (2, 3, 5)]
    assert found == [(32, 8), (64, 8), (64, 4)]
    assert sizes.lengths == (32, 64)


def test_a_budget_of_tokens_has_fewer_sequences_where_they_are_longer():
    sizes = schedule(
        stage(3, sequence_length=64), sequence_length=16, global_batch_size=1, tokens_per_step=300, multiple_of=4
    )
    assert [sizes.at(step).num_sequences for step in (0, 3)] == [16, 4]
    assert sizes.at(0).max_tokens == 300


def test_the_lookahead_follows_the_sequences_unless_it_is_set():
    stages = [stage(5, global_batch_size=64)]
    assert [schedule(*stages, global_batch_size=8).at(step).lookahead for step in (0, 5)] == [8, 32]
    assert schedule(*stages, packing=PackingConfig(lookahead=3)).at(5).lookahead == 3


def test_sizes_that_are_named_must_be_multiples():
    with pytest.raises(ConfigError, match=r"step 7: global_batch_size 10 is not a multiple of batch\.multiple_of 4"):
        schedule(stage(7, global_batch_size=10), global_batch_size=8, multiple_of=4)


def test_a_run_takes_the_sizes_of_its_schedule():
    chosen = settings_of(
        MADE,
        global_batch_size=4,
        sequence_length=64,
        multiple_of=4,
        mesh=Mesh.of(dp=2),
        num_microbatches=2,
        batch={"schedule": [stage(2, global_batch_size=8), stage(4, sequence_length=128)]},
    )
    plans = plans_of(MADE, chosen, 6)
    assert [(sequences_of(p), p.sequence_length) for p in plans] == [(4, 64)] * 2 + [(8, 64)] * 2 + [(8, 128)] * 2


def test_a_shorter_stage_cuts_what_is_longer_into_pieces_that_follow_one_another():
    made = {"a": [row(60), row(10)]}
    chosen = settings_of(
        made,
        packing="none",
        sequence_length=64,
        global_batch_size=2,
        batch={"schedule": [stage(1, sequence_length=25)]},
    )
    plans = plans_of(made, chosen, 3)
    assert [plan.length_D.tolist() for plan in plans] == [[60, 10], [25, 25], [10, 10]]
    assert plans[1].start_D.tolist() == [0, 25]
    assert plans[1].progress["sources"]["a"]["start"] == 50
    assert plans[1].num_valid_D.tolist() == [24, 24]
    assert plans[2].report.samples_by_source == {"a": 1}


def test_a_run_goes_on_inside_a_sample_that_a_stage_cut():
    made = {"a": [row(60), row(10)]}
    chosen = settings_of(
        made,
        packing="none",
        sequence_length=64,
        global_batch_size=1,
        batch={"schedule": [stage(0, sequence_length=25)]},
    )
    plans = plans_of(made, chosen, 6)
    for done in range(1, 6):
        planner = Planner(chosen)
        planner.load_state_dict(json.loads(json.dumps(plans[done - 1].progress)))
        assert planner.state_dict() == plans[done - 1].progress
        rest = itertools.islice(steps_of(planner, feed_of(made, chosen)), 6 - done)
        assert [plan.digest for plan in rest] == [plan.digest for plan in plans[done:]]


@pytest.mark.parametrize("start", [60, 99])
def test_a_state_inside_a_sample_that_is_shorter_is_damaged(start):
    made = {"a": [row(60), row(10)]}
    chosen = settings_of(made, batch={"schedule": [stage(0, sequence_length=32)]})
    state = Planner(chosen).state_dict()
    state["sources"]["a"]["start"] = start
    planner = Planner(chosen)
    planner.load_state_dict(state)
    with pytest.raises(StateError, match=rf"sources.a.start cannot be {start} in a sample of 60 tokens"):
        next(steps_of(planner, feed_of(made, chosen)))


@pytest.mark.parametrize(
    ("overflow", "delivered", "note"),
    [
        ("split", [25, 25, 10, 10, 25, 25], None),
        ("truncate", [25, 10] * 3, "1 sample cut off after 25 tokens (overflow: truncate)"),
        ("drop", [10] * 6, "2 samples left out: longer than the 25 tokens of a sequence (overflow: drop)"),
    ],
)
def test_a_shorter_stage_does_with_a_longer_sample_what_its_source_says(overflow, delivered, note):
    made = {"a": [row(60), row(10)]}
    chosen = settings_of(
        made,
        packing="none",
        sequence_length=64,
        global_batch_size=2,
        terms={"a": {"overflow": overflow}},
        batch={"schedule": [stage(0, sequence_length=25)]},
    )
    plans = plans_of(made, chosen, 3)
    assert [n for plan in plans for n in plan.length_D.tolist()] == delivered
    assert plans[0].notes == (() if note is None else (f"source 'a': {note}",))


def test_what_waits_at_the_boundary_to_a_shorter_stage_is_cut_and_goes_first():
    made = {"a": [row(64), row(60), row(50), row(40)]}
    chosen = settings_of(
        made,
        sequence_length=64,
        global_batch_size=2,
        lookahead=2,
        document_multiple=1,
        batch={"schedule": [stage(1, sequence_length=20)]},
    )
    plans = plans_of(made, chosen, 4)
    carried = [piece["length"] for piece in plans[0].progress["carry"]]
    assert carried == [50, 40]
    assert plans[1].ordinal_D.tolist()[0] == 2
    held = sorted(
        (int(p.ordinal_D[d]), int(p.start_D[d]), int(p.length_D[d])) for p in plans for d in range(p.num_documents)
    )
    assert [one for one in held if one[0] == 2] == [(2, 0, 20), (2, 20, 20), (2, 40, 10)]


def test_a_source_of_which_a_stage_can_take_nothing_is_an_error_and_no_endless_loop():
    made = {"a": [row(60), row(), row(50)]}
    chosen = settings_of(
        made,
        sequence_length=64,
        terms={"a": {"overflow": "drop"}},
        batch={"schedule": [stage(0, sequence_length=20)]},
    )
    with pytest.raises(
        SourceError,
        match=r"epoch 0 of 3 rows gave no sample \(1 filtered, 2 too large.*, raise batch.sequence_length or",
    ):
        plans_of(made, chosen, 1)


def photos(*sizes):
    return {"a": [Row((Part(tokens, images),)) for tokens, images in sizes]}


def test_a_sample_over_a_limit_is_named_with_the_remedy():
    made = photos((30, 4), (30, 9))
    chosen = settings_of(made, global_batch_size=1, batch={"limits": LimitsConfig(patches=20)})
    with pytest.raises(
        InputError, match=r"pack: sample a:1\.0 fits no sequence: 36 patches > batch\.limits\.patches 20; raise"
    ):
        plans_of(made, chosen, 5)


def test_a_sample_over_a_limit_is_left_out_and_counted_when_asked():
    made = photos((30, 4), (30, 9))
    chosen = settings_of(
        made, global_batch_size=1, packing="none", batch={"limits": LimitsConfig(patches=20), "oversize": "drop"}
    )
    plans = plans_of(made, chosen, 3)
    assert [plan.ordinal_D.tolist() for plan in plans] == [[0], [2], [4]]
    assert plans[1].notes == (
        "source 'a': 1 sample left out: patches > batch.limits.patches 20 (batch.oversize: drop)",
    )


def test_a_run_of_image_tokens_longer_than_a_stages_sequence_is_named():
    made = photos((60, 40))
    chosen = settings_of(made, sequence_length=64, batch={"schedule": [stage(0, sequence_length=32)]})
    with pytest.raises(InputError, match="40 image_tokens in one run > the 32 tokens of a sequence"):
        plans_of(made, chosen, 1)


@pytest.mark.parametrize("limit", ["patches", "image_tokens", "images", "attention"])
def test_a_sequence_over_a_limit_is_found(limit):
    made = photos((20, 4), (20, 4), (20, 4))
    (plan,) = plans_of(made, settings_of(made, global_batch_size=2, mesh=Mesh.of(dp=2)), 1)
    held = {"patches": 16, "image_tokens": 4, "images": 1, "attention": 400}[limit]
    (line,) = check_plan(plan, None, Limits(**{limit: 3 * held - 1}))
    assert f"hold more than batch.limits.{limit} {3 * held - 1}" in line
    assert check_plan(plan, None, Limits(**{limit: 3 * held})) == []


@pytest.mark.parametrize("strategy", [None, partial(long_short, long_tokens=14)], ids=["default", "long_short"])
def test_a_layout_keeps_the_limits_of_every_sequence(strategy):
    made = photos(*[(10 + n % 7, 1 + n % 5) for n in range(40)])
    chosen = settings_of(
        made,
        global_batch_size=16,
        mesh=Mesh.of(dp=4),
        num_microbatches=2,
        batch={"limits": LimitsConfig(patches=32, attention=900)},
        strategy=strategy,
    )
    plans = plans_of(made, chosen, 6)
    assert all(check_plan(plan, None, Limits(patches=32, attention=900)) == [] for plan in plans)


def test_documents_trade_places_under_limits():
    made = photos(*[(4 + 13 * n % 40, (1 + n % 3) if n % 2 else 0) for n in range(60)])
    chosen = settings_of(
        made, global_batch_size=16, mesh=Mesh.of(dp=4), num_microbatches=2, batch={"limits": LimitsConfig(patches=20)}
    )
    plans = plans_of(made, chosen, 6)
    # Whole sequences that trade places come to a sixth.
    assert sum(plan.report.lockstep for plan in plans) < sum(plan.report.packed_lockstep for plan in plans) / 7


@pytest.mark.parametrize(
    ("last", "samples", "sequences"), [("drop", 248, 248), ("pad", 249, 256), ("repeat_tail", 256, 256)]
)
def test_the_remainder_of_249_samples_over_8_ranks(last, samples, sequences):
    made = {"a": [row(9)] * 249}
    chosen = settings_of(
        made,
        packing="none",
        sequence_length=16,
        max_epochs={"a": 1},
        mesh=Mesh.of(dp=8),
        multiple_of=8,
        batch={"tokens_per_step": 10_000, "last": last},
    )
    planner = Planner(chosen)
    (plan,) = steps_of(planner, feed_of(made, chosen))
    assert (plan.num_documents, sequences_of(plan)) == (samples, sequences)
    assert plan.is_last
    assert plan.global_num_valid_tokens == 8 * samples
    assert [len(plan.documents_of(b)) > 0 for b in range(8)] == [True] * 8
    assert any("1 documents of 9 tokens stay undelivered" in note for note in plan.notes) == (last == "drop")


def test_a_budget_of_tokens_is_kept_by_every_step_of_single_samples():
    chosen = settings_of(MADE, packing="none", mesh=Mesh.of(dp=2), multiple_of=2, batch={"tokens_per_step": 200})
    plans = plans_of(MADE, chosen, 12)
    assert all(int(plan.length_D.sum()) <= 200 for plan in plans)
    assert all(sequences_of(plan) % 2 == 0 for plan in plans)
    assert len({sequences_of(plan) for plan in plans}) > 1


def test_a_mixture_that_changes_within_a_step_counts_the_tokens_of_its_budget():
    made = {"a": [row(10)] * 9, "b": [row(10)] * 9}
    mixture = MixtureConfig(clock="microbatch", weights={"a": 1}, schedule=[StageConfig(at=1, weights={"b": 1})])
    chosen = settings_of(
        made, packing="none", mixture=mixture, num_microbatches=2, multiple_of=2, batch={"tokens_per_step": 80}
    )
    first, second = plans_of(made, chosen, 2)
    assert first.report.samples_by_source == {"a": 4, "b": 4}
    assert second.report.samples_by_source == {"b": 8}


def test_a_cut_sample_counts_once_where_weights_count_samples():
    made = {"a": [row(60)] * 9, "b": [row(20)] * 9}
    chosen = settings_of(
        made, packing="none", sequence_length=64, unit="samples", batch={"schedule": [stage(0, sequence_length=20)]}
    )
    plans = plans_of(made, chosen, 12)
    drawn = {name: sum(plan.report.samples_by_source.get(name, 0) for plan in plans) for name in made}
    assert drawn == {"a": 24, "b": 24}


def test_multiples_that_are_left_to_the_mesh_are_those_of_the_state_where_they_serve():
    ramp = {"schedule": [stage(1, global_batch_size=32, ramp=8)]}
    first = settings_of(
        MADE,
        global_batch_size=8,
        document_multiple=8,
        multiple_of=8,
        mesh=Mesh.of(dp=4),
        num_microbatches=2,
        batch=ramp,
    )
    plans = plans_of(MADE, first, 6)
    smaller = settings_of(
        MADE,
        global_batch_size=8,
        document_multiple=4,
        multiple_of=4,
        mesh=Mesh.of(dp=2),
        num_microbatches=2,
        batch=ramp,
    )
    planner = Planner(smaller)
    planner.load_state_dict(json.loads(json.dumps(plans[2].progress)))
    assert planner.state_dict() == plans[2].progress
    rest = list(itertools.islice(steps_of(planner, feed_of(MADE, smaller)), 3))
    assert [plan.membership_digest for plan in rest] == [plan.membership_digest for plan in plans[3:]]
    larger = settings_of(
        MADE, global_batch_size=16, document_multiple=8, multiple_of=16, mesh=Mesh.of(dp=4), num_microbatches=4,
        batch={"schedule": [stage(1, global_batch_size=32, ramp=8)]},
    )  # fmt: skip
    with pytest.raises(StateError, match=r"batch\.global_batch_size 8, this run has 16"):
        Planner(larger).load_state_dict(plans[2].progress)


def test_a_mesh_that_the_fixed_multiple_does_not_serve_is_refused_with_the_number_to_start_with():
    tokens = {"batch": {"tokens_per_step": 512}}
    state = Planner(settings_of(MADE, multiple_of=4, mesh=Mesh.of(dp=4), **tokens)).state_dict()
    with pytest.raises(
        StateError, match=r"this one's is 4, and this mesh needs a multiple of 6; .*batch.multiple_of: 12"
    ):
        Planner(settings_of(MADE, multiple_of=6, mesh=Mesh.of(dp=6), **tokens)).load_state_dict(state)


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"packing": {"method": "first_fit_decreasing", "max_age": 3}}, "batch.packing.max_age"),
        ({"packing": {"method": "first_fit_decreasing", "objective": "cost"}}, "batch.packing.objective"),
        ({"batch": {"limits": LimitsConfig(attention=99_999)}}, "batch.limits"),
        ({"batch": {"oversize": "drop"}}, "batch.oversize"),
        ({"batch": {"tokens_per_step": 512}}, "batch.tokens_per_step"),
        ({"batch": {"schedule": [stage(3, global_batch_size=16)]}}, "batch.schedule"),
    ],
)
def test_a_state_of_a_run_with_another_option_is_refused_by_name_both_ways(changes, setting):
    method = changes.get("packing", {}).get("method", "best_fit")
    plain, other = Planner(settings_of(MADE, packing=method)), Planner(settings_of(MADE, **changes))
    for planner, state in ((plain, other.state_dict()), (other, plain.state_dict())):
        before = planner.state_dict()
        with pytest.raises(StateError, match=rf"cannot resume: .*{setting}"):
            planner.load_state_dict(state)
        assert planner.state_dict() == before

import json
import re

import numpy as np
import pytest

from msd.core.mesh import Mesh
from msd.core.pipeline import one_f_one_b
from msd.core.sample import SampleId
from msd.errors import BadSampleRateError, EngineError, InputError, PlanError, SourceError, StateError
from msd.planner.config import MixtureConfig, StageConfig
from msd.planner.planner import Planner, Starved
from msd.testing.tables import LengthCost, failed_row, feed_of, row, settings_of, steps_of, table_of

TEXT = {"web": [row(n) for n in (30, 20, 10, 25, 15, 5, 64, 40)], "code": [row(12, 7), row(), row(40)]}


def plans_of(made, chosen, count=None):
    steps = steps_of(Planner(chosen), feed_of(made, chosen))
    return list(steps) if count is None else [plan for _, plan in zip(range(count), steps, strict=False)]


def test_a_planner_names_the_row_it_waits_for_and_goes_on_where_it_stopped():
    chosen = settings_of({"a": [row(8)] * 4}, packing="none", global_batch_size=3)
    planner = Planner(chosen)
    assert planner.plan() == Starved("a", 0)
    planner.observe(table_of("a", 0, [row(8)] * 2))
    assert planner.plan() == Starved("a", 2)
    assert planner.state_dict()["step"] == 0
    planner.observe(table_of("a", 2, [row(8)]))
    assert planner.plan().sample_ids() == [SampleId("a", n, 0) for n in range(3)]
    assert planner.step == 1


def test_tables_with_a_gap_are_refused():
    planner = Planner(settings_of(TEXT))
    planner.observe(table_of("web", 0, [row(8)] * 3))
    assert planner.needs("web") == 3
    with pytest.raises(ValueError, match="from ordinal 3, got a table from 4"):
        planner.observe(table_of("web", 4, [row(8)]))


@pytest.mark.parametrize("length", [0, 65])
def test_a_sample_that_fits_no_sequence_is_refused(length):
    with pytest.raises(ValueError, match="1 to sequence_length 64"):
        Planner(settings_of(TEXT)).observe(table_of("web", 0, [row(length)]))


def test_parts_of_a_row_follow_one_another():
    made = {"a": [row(5, 6, 7), row(), row(8, 9)]}
    chosen = settings_of(made, packing="none", global_batch_size=5, max_epochs={"a": 1})
    (plan,) = plans_of(made, chosen)
    ids = sorted(zip(plan.sample_ids(), plan.length_D.tolist(), strict=True))
    assert [(i.ordinal, i.part, n) for i, n in ids] == [(0, 0, 5), (0, 1, 6), (0, 2, 7), (2, 0, 8), (2, 1, 9)]


def test_weights_count_tokens_by_default_and_samples_when_asked():
    made = {"long": [row(40)] * 3, "short": [row(10)] * 3}
    tokens = plans_of(made, settings_of(made, weights={"long": 1, "short": 1}), 20)
    samples = plans_of(made, settings_of(made, weights={"long": 1, "short": 1}, unit="samples"), 20)
    by_tokens = [sum(p.report.tokens_by_source[name] for p in tokens) for name in made]
    by_samples = [sum(p.report.samples_by_source[name] for p in samples) for name in made]
    assert abs(by_tokens[0] - by_tokens[1]) <= 9 * 40
    assert abs(by_samples[0] - by_samples[1]) <= 9


def test_a_schedule_changes_what_is_drawn_at_its_step():
    mixture = MixtureConfig(weights={"web": 1.0}, schedule=[StageConfig(step=3, weights={"code": 1.0})])
    plans = plans_of(TEXT, settings_of(TEXT, mixture=mixture, packing="none"), 5)
    assert [sorted(plan.report.tokens_by_source) for plan in plans] == [["web"]] * 3 + [["code"]] * 2


def test_stop_ends_the_run_when_the_source_would_be_drawn_again():
    made = {"a": [row(8)] * 6, "b": [row(8)] * 50}
    chosen = settings_of(made, packing="none", global_batch_size=4, max_epochs={"a": 1})
    plans = plans_of(made, chosen)
    assert sum(plan.report.samples_by_source.get("a", 0) for plan in plans) == 6
    assert len(plans) == 3


def test_drop_lets_the_others_go_on_with_its_share():
    made = {"a": [row(8)] * 6, "b": [row(8)] * 5}
    chosen = settings_of(made, packing="none", global_batch_size=4, max_epochs={"a": 1}, end={"a": "drop"})
    plans = plans_of(made, chosen, 6)
    assert [plan.report.samples_by_source.get("a", 0) for plan in plans] == [2, 2, 2, 0, 0, 0]
    assert any("ended after 6 rows" in note for plan in plans for note in plan.notes)


def test_the_credit_of_a_source_that_ends_goes_to_the_others():
    made = {"a": [row(11)] * 3, "b": [row(7)] * 5, "c": [row(9)] * 5}
    chosen = settings_of(made, packing="none", global_batch_size=5, max_epochs={"a": 1}, end={"a": "drop"})
    last = plans_of(made, chosen, 4)[-1].progress["sources"]
    assert last["a"]["ended"]
    assert last["a"]["credit"] == 0
    assert last["b"]["credit"] + last["c"]["credit"] == 0


def test_error_names_the_source_and_the_step():
    made = {"a": [row(8)] * 6}
    chosen = settings_of(made, packing="none", global_batch_size=4, max_epochs={"a": 1}, end={"a": "error"})
    with pytest.raises(EngineError, match="source 'a' is exhausted at step 1 after 6 rows"):
        plans_of(made, chosen)


def test_an_empty_source_and_one_without_weight_never_block():
    made = {"a": [row(8)] * 3, "empty": [], "idle": [row(8)]}
    plans = plans_of(made, settings_of(made, weights={"a": 1, "empty": 1, "idle": 0}), 4)
    assert all(set(plan.report.tokens_by_source) == {"a"} for plan in plans)
    assert plans[0].notes == ("source 'empty' has no rows and is left out",)


def test_only_empty_sources_are_an_input_error():
    with pytest.raises(InputError, match="no source has a row to give: a has no rows, b has no rows; check paths"):
        Planner(settings_of({"a": [], "b": []}))
    made = {"a": [], "b": [row(8)]}
    with pytest.raises(InputError, match="every source with a weight is empty"):
        plans_of(made, settings_of(made, weights={"a": 1, "b": 0}))


def test_less_than_a_row_of_an_epoch_is_said_to_be_that():
    made = {"a": [row(8)] * 3, "b": [row(8)] * 3}
    why = r"no whole row under max_epochs or mixture.repetitions (3 rows an epoch)"
    plans = plans_of(made, settings_of(made, max_epochs={"a": 0}, end={"a": "drop"}), 1)
    assert plans[0].notes == (f"source 'a' has {why} and is left out",)
    with pytest.raises(InputError, match=re.escape(f"no source has a row to give: a has {why}, b has {why}; check")):
        Planner(settings_of(made, max_epochs={"a": 0, "b": 0}, end={"a": "drop", "b": "drop"}))


def test_an_epoch_without_one_survivor_names_the_reasons():
    made = {"a": [row(), row(), failed_row()]}
    said = (
        r"epoch 0 of 3 rows gave no sample \(2 filtered, 1 failed\).*made-up.jsonl.*; loosen its filters .*, repair its"
    )
    with pytest.raises(SourceError, match=said):
        plans_of(made, settings_of(made, terms={"a": {"max_rate": 1.0}}))


def test_a_barren_later_epoch_is_found_too():
    made = {"a": [row(8), row()] + [row()] * 2}
    chosen = settings_of({"a": made["a"][:2]}, packing="none", global_batch_size=1)
    with pytest.raises(SourceError, match="epoch 1 of 2 rows"):
        plans_of(made, chosen, 2)


def bad_every(nth, count):
    return [failed_row() if n % nth == nth - 1 else row(8) for n in range(count)]


def test_too_many_failures_stop_the_run_with_rate_count_and_list():
    made = {"a": bad_every(20, 400)}
    with pytest.raises(BadSampleRateError, match=r"5 of the last 100 rows failed, 0.05 > .*made-up.jsonl row \d+"):
        plans_of(made, settings_of(made, terms={"a": {"max_rate": 0.04}}))


def test_failures_of_one_reason_are_told_once():
    made = {"a": bad_every(10, 400)}
    with pytest.raises(BadSampleRateError) as caught:
        plans_of(made, settings_of(made, terms={"a": {"max_rate": 0.04}}))
    assert str(caught.value).count("made-up.jsonl") == 1
    assert "(10 times)" in str(caught.value)


def test_failures_up_to_the_rate_are_skipped_and_the_next_sample_takes_their_place():
    made = {"a": bad_every(20, 400)}
    chosen = settings_of(made, packing="none", global_batch_size=19, terms={"a": {"max_rate": 0.05}})
    plans = plans_of(made, chosen, 30)
    assert sorted(i.ordinal for i in plans[1].sample_ids()) == list(range(20, 39))
    assert sum(count for _, count in plans[-1].progress["sources"]["a"]["bad"]) == 29


def test_the_rate_looks_at_the_last_ten_thousand_rows_only():
    rows = [failed_row() if n < 150 and n % 2 else row(8) for n in range(12_000)]
    chosen = settings_of({"a": rows}, packing="none", global_batch_size=500, terms={"a": {"max_rate": 0.5}})
    planner = Planner(chosen)
    planner.observe(table_of("a", 0, rows))
    while planner.needs("a") and planner.state_dict()["sources"]["a"]["ordinal"] < 11_000:
        planner.plan()
    planner.observe(table_of("a", 12_000, [failed_row(), *([row(8)] * 999)]))
    while planner.state_dict()["sources"]["a"]["ordinal"] < 12_400:
        planner.plan()
    assert planner.state_dict()["sources"]["a"]["bad"] == [[120, 1]]


def test_policy_raise_stops_at_the_first_failure_and_keeps_stopping():
    made = {"a": [row(8), failed_row(), row(8)]}
    planner = Planner(settings_of(made, terms={"a": {"raises": True}}))
    planner.observe(table_of("a", 0, made["a"]))
    for _ in range(2):
        with pytest.raises(BadSampleRateError, match=r"row 1 \(ordinal 1\) failed and on_error\.policy is raise"):
            planner.plan()


def test_a_state_of_another_geometry_is_refused_by_name():
    state = Planner(settings_of(TEXT, document_multiple=4)).state_dict()
    for changes, message in (
        ({"document_multiple": 8}, "this one's is 4.*with batch.document_multiple: 8"),
        ({"document_multiple": 8, "batch": {"document_multiple": 8}}, "set batch.document_multiple: 4"),
        ({"document_multiple": 4, "sequence_length": 128}, "batch.sequence_length 64, this run has 128"),
        ({"document_multiple": 4, "lookahead": 3}, "batch.packing.lookahead"),
        ({"document_multiple": 4, "packing": "concat"}, "batch.packing.method"),
    ):
        with pytest.raises(StateError, match=message):
            Planner(settings_of(TEXT, **changes)).load_state_dict(state)


def test_a_state_of_other_data_is_refused():
    state = Planner(settings_of(TEXT)).state_dict()
    with pytest.raises(StateError, match="source 'web' had 8 rows an epoch, now it has 1"):
        Planner(settings_of({**TEXT, "web": [row(5)]})).load_state_dict(state)


@pytest.mark.parametrize("broken", [{}, {"sources": {}}, None])
def test_half_a_state_is_refused_and_changes_nothing(broken):
    planner = Planner(settings_of(TEXT))
    before = json.dumps(planner.state_dict())
    state = broken if broken is None else {**planner.state_dict(), "carry": [{"source": "web"}], **broken}
    with pytest.raises(StateError, match="cannot resume"):
        planner.load_state_dict(state)
    assert json.dumps(planner.state_dict()) == before


def test_a_source_added_on_resume_starts_with_nothing_owed():
    chosen = settings_of({"web": TEXT["web"]})
    state = plans_of({"web": TEXT["web"]}, chosen, 3)[-1].progress
    planner = Planner(settings_of(TEXT))
    planner.load_state_dict(state)
    assert planner.state_dict()["sources"]["code"]["credit"] == 0
    assert planner.step == 3


def test_first_needed_counts_what_is_carried():
    plans = plans_of(TEXT, settings_of(TEXT), 6)
    for plan in plans:
        first = Planner.first_needed(plan.progress)
        carried = {(entry["source"], entry["ordinal"]) for entry in plan.progress["carry"]}
        assert all(first[name] <= plan.progress["sources"][name]["ordinal"] for name in first)
        assert all(first[name] <= ordinal for name, ordinal in carried)
    assert any(plan.progress["carry"] for plan in plans)


def test_a_resume_on_another_mesh_holds_the_same_samples():
    chosen = settings_of(TEXT, document_multiple=4, mesh=Mesh.of(dp=2), num_microbatches=4)
    plans = plans_of(TEXT, chosen, 6)
    other = settings_of(TEXT, document_multiple=4, mesh=Mesh.of(dp=4, cp=2, tp=2), num_microbatches=1)
    planner = Planner(other)
    planner.load_state_dict(json.loads(json.dumps(plans[2].progress)))
    steps = steps_of(planner, feed_of(TEXT, other))
    rest = [plan for _, plan in zip(range(3), steps, strict=False)]
    assert [p.membership_digest for p in rest] == [p.membership_digest for p in plans[3:]]
    assert (rest[0].num_buckets, rest[0].slice_axis, rest[0].consumers_B[0]) == (4, "cp", (0, 1, 2, 3))


def test_a_cost_function_that_lies_is_a_plan_error():
    class Negative(LengthCost):
        def __call__(self, num_tokens_D, num_patches_D):
            return -1.0 * num_tokens_D

    with pytest.raises(PlanError, match="at least 0"):
        plans_of(TEXT, settings_of(TEXT, cost={"backbone": Negative()}), 1)


def test_a_last_step_that_is_known_to_be_the_last_says_so():
    made = {"a": [row(8)] * 10}
    chosen = settings_of(made, packing="none", global_batch_size=4, max_epochs={"a": 1}, batch={"last": "pad"})
    plans = plans_of(made, chosen)
    assert [plan.is_last for plan in plans] == [False, False, True]
    assert plans[-1].num_documents == 2


def test_padding_the_last_step_spreads_what_there_is_over_the_microbatches():
    made = {"a": [row(60)] * 5}
    chosen = settings_of(
        made, global_batch_size=8, mesh=Mesh.of(dp=2), num_microbatches=2, max_epochs={"a": 1}, batch={"last": "pad"}
    )
    (plan,) = plans_of(made, chosen)
    assert all(len(plan.documents_of(b, m)) for b in range(2) for m in range(2))
    assert plan.offset_D.max() == 64


def test_shares_and_predictions_are_reported():
    cost = LengthCost(linear=2.0, is_flops=True, flops_per_s=1000.0)
    chosen = settings_of(TEXT, cost={"backbone": cost}, mesh=Mesh.of(pp=2, dp=1), num_microbatches=4)
    (plan,) = plans_of(TEXT, chosen, 1)
    report = plan.report
    assert report.step_flops == 2.0 * plan.length_D.sum()
    slots = [2.0 * plan.length_D[plan.slot_D == m].sum() / 2000.0 for m in range(4)]
    forward = np.array(slots)[:, None].repeat(2, axis=1) / 3
    assert report.predicted_step_s == pytest.approx(float(one_f_one_b(forward, 2 * forward)))
    assert report.fill == plan.length_D.sum() / (8 * 64)

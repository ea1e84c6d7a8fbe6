"""Mixtures through whole steps: units, clocks, repetition, and what the end of a source means."""

from dataclasses import replace

import pytest

from msd.errors import ConfigError, EngineError, InputError, StateError
from msd.planner.config import MixtureConfig, StageConfig
from msd.planner.config.mixture import GroupConfig
from msd.planner.mixture.mixer import Mixer
from msd.planner.mixture.schedule import MixtureSchedule
from msd.planner.piece import Piece
from msd.planner.planner import Planner
from msd.planner.primitives.pack import Pack
from msd.planner.strategy import mix_and_pack
from msd.testing.tables import Part, Row, feed_of, row, settings_of, steps_of


def plans_of(made, chosen, count=None):
    steps = steps_of(Planner(chosen), feed_of(made, chosen))
    return list(steps) if count is None else [plan for _, plan in zip(range(count), steps, strict=False)]


def samples(plans, name):
    return [plan.report.samples_by_source.get(name, 0) for plan in plans]


EQUAL = {"a": [row(8)] * 5, "b": [row(8)] * 5}
SIZES = {"a": [row(8)] * 10, "b": [row(8)] * 30, "c": [row(8)] * 90}


def switching(clock, at, *, ramp=0, num_microbatches=1, **changes):
    """Equal sources, one sample a sequence; all of `a`, then from `at` on all of `b`."""
    stage = StageConfig(**({"step": at} if clock == "step" else {"at": at}), weights={"b": 1.0}, ramp=ramp)
    mixture = MixtureConfig(weights={"a": 1.0}, clock=clock, schedule=[stage])
    return settings_of(
        EQUAL, packing="none", global_batch_size=4, mixture=mixture, num_microbatches=num_microbatches, **changes
    )


@pytest.mark.parametrize(
    ("clock", "at"), [("step", 2), ("samples", 8), ("samples", 5), ("tokens", 64), ("tokens", 33), ("epoch", 0.8)]
)
def test_a_stage_starts_at_the_first_step_that_its_clock_has_reached(clock, at):
    assert samples(plans_of(EQUAL, switching(clock, at), 4), "a") == [4, 4, 0, 0]


@pytest.mark.parametrize(("clock", "ramp"), [("step", 4), ("samples", 16), ("tokens", 128), ("epoch", 1.6)])
def test_a_ramp_is_as_long_as_its_clock_counts(clock, ramp):
    plans = plans_of(EQUAL, switching(clock, 0, ramp=ramp), 6)
    assert samples(plans, "a") == [4, 3, 2, 1, 0, 0]


@pytest.mark.parametrize(("at", "expected"), [(4, [4, 0, 0]), (5, [4, 1, 0]), (6, [4, 2, 0]), (7, [4, 3, 0])])
def test_the_microbatch_clock_changes_weights_within_a_step(at, expected):
    chosen = switching("microbatch", at, num_microbatches=4)
    assert samples(plans_of(EQUAL, chosen, 3), "a") == expected


def test_a_source_that_only_a_later_part_of_the_step_draws_is_not_idle():
    planner = Planner(switching("microbatch", 2, num_microbatches=4))
    assert planner.idle_sources == frozenset()
    assert Planner(switching("step", 1)).idle_sources == {"b"}


def test_what_is_carried_into_a_step_counts_for_its_first_parts():
    stage = StageConfig(at=1, weights={"b": 1.0})
    mixture = MixtureConfig(weights={"a": 1.0}, clock="microbatch", schedule=[stage])
    schedule = MixtureSchedule.of(["a", "b"], mixture, num_microbatches=2)
    mixer, pack = Mixer(schedule, mixture, [0, 0]), Pack("best_fit", 2, 10, 1, 4)
    for carried, expected in ((9, (1.0, 0.0)), (10, (0.0, 1.0))):
        mixer.begin({"step": 0}, [True, True], pack, [Piece(0, 0, 0, 0, carried, 1, 0, 0, 0)])
        assert mixer.shares == expected


def test_a_strategy_that_mixes_other_sources_is_refused_with_both_lists():
    def only_a(graph, context):
        return mix_and_pack(graph, replace(context, schedule=MixtureSchedule.of(["a"], MixtureConfig())))

    with pytest.raises(ConfigError, match=r"mix: its schedule is over a, the run's sources are a, b; start from"):
        Planner(settings_of(EQUAL, strategy=lambda graph, context: only_a(graph, context).distribute("dp")))


def test_the_order_then_depends_on_the_number_of_microbatches():
    state = Planner(switching("microbatch", 4, num_microbatches=4)).state_dict()
    with pytest.raises(StateError, match="num_microbatches 4, this run has 2"):
        Planner(switching("microbatch", 4, num_microbatches=2)).load_state_dict(state)


def labelled(num_tokens, num_image_tokens):
    return Row((Part(num_tokens, num_image_tokens),))


def test_loss_tokens_count_positions_with_a_label():
    """Answers MX-2, MX-5."""
    made = {"half": [labelled(20, 10)] * 3, "text": [row(10)] * 3}
    plans = plans_of(made, settings_of(made, weights={"half": 1, "text": 1}, unit="loss_tokens"), 20)
    labels = dict.fromkeys(made, 0)
    for plan in plans:
        for source, num_valid in zip(plan.source_D.tolist(), plan.num_valid_D.tolist(), strict=True):
            labels[plan.source_names[source]] += num_valid
    assert labels["half"] > 500
    assert abs(labels["half"] - labels["text"]) <= 9 * 9


def test_a_source_without_any_label_does_not_take_the_whole_step():
    made = {"silent": [labelled(8, 8)] * 3, "text": [row(9)] * 3}
    chosen = settings_of(made, weights={"silent": 1, "text": 8}, unit="loss_tokens", packing="none")
    assert sum(samples(plans_of(made, chosen, 6), "silent")) == pytest.approx(24, abs=1)


MODES = [
    ("explicit", None),
    ("proportional", None),
    ("temperature", None),
    ("explicit", {"a": 1.0, "rest": GroupConfig(weight=2.0, weights={"b": 1.0, "c": 1.0}, mode="proportional")}),
]


def ending(mode, weights, end):
    """`a` has 10 rows and one pass; the others have no end."""
    mixture = MixtureConfig(mode=mode, weights=weights, unit="samples", temperature=3 if mode == "temperature" else 1)
    epochs = {} if end == "repeat" else {"max_epochs": {"a": 1}, "end": {"a": end}}
    return settings_of(SIZES, packing="none", mixture=mixture, batch={"last": "pad"}, **epochs)


@pytest.mark.parametrize(("mode", "weights"), MODES)
@pytest.mark.parametrize("end", ["repeat", "stop", "drop", "error"])
def test_what_the_end_of_a_source_means_is_the_same_in_every_mode(mode, weights, end):
    chosen = ending(mode, weights, end)
    if end == "error":
        with pytest.raises(EngineError, match="source 'a' is exhausted at step"):
            plans_of(SIZES, chosen, 60)
        return
    plans = plans_of(SIZES, chosen, 60)
    drawn = sum(samples(plans, "a"))
    assert len(plans) == 60 or end == "stop"
    assert drawn == 10 if end in ("drop", "stop") else drawn > 20
    assert (end == "stop") == (len(plans) < 60)


def test_proportional_sources_end_their_epochs_together():
    """Answers MX-1."""
    mixture = MixtureConfig(mode="proportional", unit="samples")
    plans = plans_of(SIZES, settings_of(SIZES, packing="none", global_batch_size=13, mixture=mixture), 10)
    assert [sum(samples(plans, name)) for name in SIZES] == [10, 30, 90]


def test_what_a_dropped_source_leaves_stays_in_its_group():
    weights = {"a": 1.0, "rest": GroupConfig(weight=1.0, weights={"b": 1.0, "c": 1.0})}
    mixture = MixtureConfig(weights=weights, unit="samples")
    chosen = settings_of(SIZES, packing="none", mixture=mixture, max_epochs={"b": 1}, end={"b": "drop"})
    last = plans_of(SIZES, chosen, 30)[20:]
    assert sum(samples(last, "b")) == 0
    assert sum(samples(last, "a")) == sum(samples(last, "c")) == 40


def test_a_run_that_ends_for_want_of_shares_says_so():
    stage = StageConfig(step=9, weights={"b": 1.0})
    mixture = MixtureConfig(weights={"a": 1.0}, schedule=[stage])
    ends = {"max_epochs": {"a": 1}, "end": {"a": "drop"}, "batch": {"last": "pad"}}
    chosen = settings_of(EQUAL, packing="none", global_batch_size=4, mixture=mixture, **ends)
    (_, last) = plans_of(EQUAL, chosen)
    assert "every source with a share in step 1 has ended, and with them the run; b has none there" in last.notes


def test_an_empty_source_of_a_group_leaves_its_share_to_the_group():
    made = {"a": [row(8)] * 5, "b": [row(8)] * 5, "none": []}
    weights = {"a": 1.0, "rest": GroupConfig(weight=1.0, weights={"b": 1.0, "none": 3.0})}
    plans = plans_of(made, settings_of(made, packing="none", mixture=MixtureConfig(weights=weights)), 4)
    assert samples(plans, "b") == [4] * 4


def test_a_proportional_mixture_of_empty_sources_is_an_input_error():
    made = {"none": [], "off": [row(8)]}
    mixture = MixtureConfig(weights={"none": 1.0}, mode="proportional")
    with pytest.raises(InputError, match=r"every source with a weight is empty \(empty are none\)"):
        plans_of(made, settings_of(made, mixture=mixture), 1)

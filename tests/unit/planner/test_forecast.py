"""What a forecast says beside what planning gives."""

import numpy as np
import pytest

from msd.planner.config import MixtureConfig, StageConfig
from msd.planner.forecast import SourcePace, forecast, paces_of
from msd.planner.mixture.schedule import MixtureSchedule
from msd.planner.planner import Planner
from msd.testing.tables import feed_of, row, settings_of, steps_of


def pace(name, rows, *, epochs=None, end="stop", tokens=10.0):
    total = None if epochs is None else epochs * rows
    return SourcePace(
        name=name, rows_per_epoch=rows, total_rows=total, end="repeat" if epochs is None else end,
        tokens_per_row=tokens, samples_per_row=1.0, units_per_row=tokens,
    )  # fmt: skip


def foreseen(paces, mixture, *, steps, tokens_per_step=100.0):
    schedule = MixtureSchedule.of(
        [p.name for p in paces], mixture, rows={p.name: p.rows_per_epoch for p in paces}, num_microbatches=4
    )
    found = forecast(schedule, paces, steps=steps, tokens_per_step=tokens_per_step)
    return found, {source.name: source for source in found.sources}


def test_epochs_and_the_first_repeat_follow_from_share_and_length():
    _, by_name = foreseen(
        [pace("a", 40), pace("b", 1000, tokens=5.0)], MixtureConfig(weights={"a": 1.0, "b": 3.0}), steps=80
    )
    assert by_name["a"].epochs == pytest.approx(2.5 * 80 / 40)
    assert by_name["b"].epochs == pytest.approx(15 * 80 / 1000)
    assert by_name["a"].repeats_at_step == 16
    assert by_name["b"].repeats_at_step == 66
    assert by_name["a"].share == pytest.approx(0.25)


def test_a_million_steps_cost_as_much_as_their_events():
    found, by_name = foreseen([pace("a", 10**7), pace("b", 10**6)], MixtureConfig(), steps=10**6)
    assert found.num_steps == 10**6
    assert by_name["b"].epochs == pytest.approx(5.0)


def test_a_source_that_is_dropped_leaves_its_share_to_the_others():
    found, by_name = foreseen([pace("a", 50, epochs=1, end="drop"), pace("b", 10**6)], MixtureConfig(), steps=30)
    assert by_name["a"].ends_at_step == 9
    assert by_name["a"].rows == 50
    assert by_name["b"].rows == pytest.approx(10 * 5 + 20 * 10)
    assert (found.num_steps, found.ended_by) == (30, None)


def test_no_source_is_foreseen_to_give_more_rows_than_it_has():
    _, by_name = foreseen([pace("a", 53, epochs=1, end="drop"), pace("b", 10**6)], MixtureConfig(), steps=30)
    assert by_name["a"].rows == 53


@pytest.mark.parametrize("end", ["stop", "error"])
def test_a_source_that_ends_the_run_ends_the_forecast(end):
    found, by_name = foreseen([pace("a", 50, epochs=2, end=end), pace("b", 10**6)], MixtureConfig(), steps=300)
    assert (found.num_steps, found.ended_by) == (20, "a")
    assert by_name["a"].ends_at_step == 19
    assert by_name["a"].repeats_at_step == 10


def test_a_source_without_rows_or_without_a_share_is_never_drawn():
    _, by_name = foreseen(
        [pace("a", 10), pace("b", 0), pace("c", 10)], MixtureConfig(weights={"a": 1, "b": 9}), steps=9
    )
    assert (by_name["b"].rows, by_name["c"].rows) == (0, 0)
    assert by_name["a"].rows == pytest.approx(90)


@pytest.mark.parametrize(
    ("clock", "start", "ramp"),
    [("step", 20, 40), ("tokens", 2000, 4000), ("samples", 200, 400), ("epoch", 0.2, 0.4), ("microbatch", 80, 160)],
)
def test_every_clock_is_foreseen(clock, start, ramp):
    place = {"step": start} if clock == "step" else {"at": start}
    stage = StageConfig(**place, weights={"b": 1.0}, ramp=ramp)
    mixture = MixtureConfig(weights={"a": 1.0}, clock=clock, schedule=[stage])
    _, by_name = foreseen([pace("a", 500), pace("b", 500)], mixture, steps=100)
    assert by_name["a"].rows == pytest.approx(20 * 10 + 40 * 5, rel=0.02)
    assert by_name["b"].rows == pytest.approx(40 * 5 + 40 * 10, rel=0.02)


def test_steps_that_grow_are_foreseen():
    def tokens(step):
        return 100.0 if step < 40 else min(400.0, 100.0 + 5 * (step - 40))

    _, by_name = foreseen([pace("a", 1000), pace("b", 1000)], MixtureConfig(), steps=200, tokens_per_step=tokens)
    assert by_name["a"].rows == pytest.approx(sum(map(tokens, range(200))) / 20, rel=0.02)
    assert by_name["a"].repeats_at_step == pytest.approx(102, abs=1)


def rows_of(seed, count, mean):
    draw = np.random.Generator(np.random.Philox(key=seed))
    return [row() if n % 5 == 4 else row(int(draw.integers(mean // 2, mean * 3 // 2))) for n in range(count)]


@pytest.mark.parametrize("unit", ["tokens", "loss_tokens", "samples"])
def test_a_forecast_from_ten_steps_is_near_what_a_hundred_give(unit):
    made = {"a": rows_of(1, 300, 10), "b": rows_of(2, 900, 30), "c": rows_of(3, 90, 20)}
    mixture = MixtureConfig(
        weights={"a": 0.5, "b": 0.3, "c": 0.2}, unit=unit,
        schedule=[StageConfig(step=20, ramp=50, weights={"a": 0.2, "b": 0.6, "c": 0.2})],
    )  # fmt: skip
    chosen = settings_of(made, mixture=mixture, max_epochs={"c": 2}, end={"c": "drop"})
    planner = Planner(chosen)
    plans = [plan for _, plan in zip(range(100), steps_of(planner, feed_of(made, chosen)), strict=False)]
    labels = dict.fromkeys(made, 0)
    for plan in plans[:10]:
        for source, num_valid in zip(plan.source_D, plan.num_valid_D, strict=True):
            labels[plan.source_names[source]] += int(num_valid)
    paces = paces_of(chosen.sources, plans[9].progress, unit=unit, loss_tokens=labels)
    tokens = sum(plan.length_D.sum() for plan in plans[:10]) / 10
    found = forecast(planner.strategy.mix.schedule, paces, steps=100, tokens_per_step=tokens)
    for source in found.sources:
        drawn = plans[-1].progress["sources"][source.name]
        assert source.rows == pytest.approx(drawn["ordinal"], rel=0.1), source.name
    ended = next(plan.step for plan in plans if plan.progress["sources"]["c"]["ended"])
    assert {s.name: s for s in found.sources}["c"].ends_at_step == pytest.approx(ended, abs=4)


def test_loss_tokens_cannot_be_foreseen_from_a_position_alone():
    made = {"a": rows_of(1, 30, 10)}
    chosen = settings_of(made)
    with pytest.raises(ValueError, match="pass loss_tokens="):
        paces_of(chosen.sources, Planner(chosen).state_dict(), unit="loss_tokens")


def test_a_source_of_which_nothing_was_seen_is_taken_for_like_the_others():
    made = {"a": rows_of(1, 300, 10), "late": rows_of(2, 300, 10)}
    chosen = settings_of(made, weights={"a": 1, "late": 0})
    plans = [plan for _, plan in zip(range(5), steps_of(Planner(chosen), feed_of(made, chosen)), strict=False)]
    seen, unseen = paces_of(chosen.sources, plans[-1].progress, unit="samples")
    assert unseen.tokens_per_row == seen.tokens_per_row > 0
    assert unseen.units_per_row == seen.samples_per_row > 0

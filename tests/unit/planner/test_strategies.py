"""The strategies that come with msd."""

from functools import partial

import numpy as np
import pytest

from msd.config import import_dotted
from msd.core.mesh import Mesh
from msd.errors import ConfigError, StateError
from msd.planner.config import MixtureConfig, StageConfig
from msd.planner.mixture.schedule import MixtureSchedule
from msd.planner.planner import Planner
from msd.planner.strategies import BUILT_IN
from msd.planner.strategies.curriculum import curriculum, joining
from msd.planner.strategies.long_short import long_short
from msd.planner.strategies.packed_lm import packed_lm
from msd.planner.strategy import mix_and_pack
from msd.testing.tables import feed_of, row, settings_of, steps_of

ROWS = {name: [row(n) for n in (30, 20, 10, 25, 15, 5)] for name in ("a", "b", "c")}


def plans(count, **changes):
    chosen = settings_of(ROWS, mesh=Mesh.of(dp=2), **changes)
    steps = steps_of(Planner(chosen), feed_of(ROWS, chosen))
    return [next(steps) for _ in range(count)]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_name_is_a_function_that_says_what_it_does(name):
    function = import_dotted(BUILT_IN[name], name="strategy")
    assert function.__name__ in (name, "default_strategy")
    assert len(function.__doc__) > 50


def test_the_default_is_packed_lm():
    assert BUILT_IN["default"] == BUILT_IN["packed_lm"]
    assert [plan.digest for plan in plans(3, strategy=packed_lm)] == [plan.digest for plan in plans(3)]


def slots_with_long(strategy):
    """By step: slots with a long document, and those in which not every rank has one; and the fill."""
    draw = np.random.Generator(np.random.Philox(key=4))
    is_long_N = draw.random(4000) < 0.03
    length_N = np.where(is_long_N, draw.integers(64, 170, 4000), np.clip(draw.lognormal(2, 0.8, 4000), 2, 63))
    made = {"a": [row(int(length)) for length in length_N]}
    chosen = settings_of(
        made, mesh=Mesh.of(dp=4), num_microbatches=8, sequence_length=512, global_batch_size=64, strategy=strategy
    )
    steps = steps_of(Planner(chosen), feed_of(made, chosen, chunk=64))
    found = []
    for plan in (next(steps) for _ in range(4)):
        has_BM = np.zeros((4, 8), dtype=np.bool_)
        long_D = plan.length_D >= 64
        has_BM[plan.bucket_D[long_D], plan.slot_D[long_D]] = True
        num_ranks_M = has_BM.sum(axis=0)
        found.append((int((num_ranks_M > 0).sum()), int(((num_ranks_M > 0) & (num_ranks_M < 4)).sum()), plan.report))
    return found


def test_long_documents_meet_in_few_slots_at_the_same_fill():
    apart, usual = slots_with_long(long_short), slots_with_long(None)
    assert sum(slots for slots, _, _ in apart) < 0.6 * sum(slots for slots, _, _ in usual)
    assert all(mixed <= 1 for _, mixed, _ in apart)
    assert min(report.fill for *_, report in apart) > min(report.fill for *_, report in usual) - 0.002
    assert max(report.lockstep for *_, report in apart) < 0.01


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"packing": "concat"}, "apart is of method best_fit, got method concat"),
        ({"strategy": partial(long_short, long_tokens=1)}, r"long_tokens must lie in \[2, sequence_length=64\], got 1"),
        ({"strategy": partial(long_short, long_tokens=65)}, "got 65"),
    ],
)
def test_long_short_that_means_nothing_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        plans(1, **{"strategy": long_short} | changes)


def resumed(saved_with, loaded_with, **changes):
    first, second = (
        settings_of(ROWS, mesh=Mesh.of(dp=2), strategy=strategy, **changes) for strategy in (saved_with, loaded_with)
    )
    planner = Planner(first)
    steps = steps_of(planner, feed_of(ROWS, first))
    for _ in range(3):
        next(steps)
    after = Planner(second)
    after.load_state_dict(planner.state_dict())
    return next(steps).membership_digest, next(steps_of(after, feed_of(ROWS, second))).membership_digest


def until(count):
    return partial(curriculum, until=count)


def test_a_run_is_resumed_with_the_strategy_that_decides_what_steps_hold():
    for strategy in (until(30), partial(long_short, long_tokens=20)):
        went_on, resumed_there = resumed(strategy, strategy)
        assert went_on == resumed_there
    # A strategy that only lays out is free to change.
    went_on, resumed_there = resumed(None, lambda graph, context: mix_and_pack(graph, context).distribute("world"))
    assert went_on == resumed_there


@pytest.mark.parametrize(
    ("saved_with", "loaded_with", "setting"),
    [
        (long_short, None, r"pack\(apart=\.\.\.\) of the strategy"),
    ],
)
def test_another_strategy_that_packs_otherwise_is_refused(saved_with, loaded_with, setting):
    with pytest.raises(StateError, match=f"cannot resume: the state was saved with {setting}"):
        resumed(saved_with, loaded_with)


def schedule_of(weights, **settings):
    return MixtureSchedule.of(list(weights), MixtureConfig(weights=weights, **settings))


def test_sources_come_in_one_after_another_and_end_at_their_weights():
    schedule = joining(schedule_of({"a": 0.5, "b": 0.3, "c": 0.2}), 30, ["c", "a", "b"])
    assert schedule.shares(0) == schedule.shares(10) == (0.0, 0.0, 1.0)
    assert schedule.shares(15) == pytest.approx((0.5 * 5 / 7, 0.0, 1 - 0.5 * 5 / 7))
    assert schedule.shares(20) == pytest.approx((5 / 7, 0.0, 2 / 7))
    assert schedule.shares(30) == schedule.shares(10**6) == pytest.approx((0.5, 0.3, 0.2))


def test_a_source_without_a_weight_never_comes_in():
    schedule = joining(schedule_of({"a": 0.5, "b": 0.0, "c": 0.5}), 10)
    assert {schedule.shares(step)[1] for step in range(12)} == {0.0}
    assert schedule.shares(10) == (0.5, 0.0, 0.5)


def test_one_source_is_a_curriculum_of_its_own():
    assert joining(schedule_of({"a": 2.0}), 10).shares(0) == (1.0,)


def test_steps_follow_the_curriculum():
    found = plans(40, strategy=lambda graph, context: curriculum(graph, context, until=30, order=["b", "c", "a"]))
    drawn = [plan.report.tokens_by_source for plan in found]
    assert set(drawn[0]) == {"b"}
    assert set().union(*drawn[:9]) == {"b"}
    assert set().union(*drawn[11:18]) == {"b", "c"}
    late = {name: sum(step.get(name, 0) for step in drawn[31:]) for name in ROWS}
    assert max(late.values()) < 1.1 * min(late.values())


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda even: joining(even, 10, ["a", "b"]), r"each source with a weight once \(a, b, c\), got a, b"),
        (lambda even: joining(even, 10, ["a", "b", "b", "c"]), "each source with a weight once"),
        (lambda even: joining(even, 0), "until must be a number above 0, got 0"),
        (lambda even: joining(even, "soon"), "until must be a number above 0, got 'soon'"),
        (lambda even: joining(even, True), "until must be a number above 0, got True"),
    ],
)
def test_a_curriculum_that_means_nothing_is_refused(ask, message):
    with pytest.raises(ConfigError, match=message):
        ask(schedule_of(dict.fromkeys("abc", 1.0)))


def test_a_curriculum_and_a_schedule_are_one_too_many():
    staged = schedule_of({"a": 1.0, "b": 1.0}, schedule=[StageConfig(step=5, weights={"a": 1.0})])
    with pytest.raises(ConfigError, match=r"leave mixture\.schedule empty"):
        joining(staged, 10)

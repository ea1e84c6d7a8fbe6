"""The strategies that come with msd."""

import pytest

from msd.config import import_dotted
from msd.core.mesh import Mesh
from msd.errors import ConfigError
from msd.planner.config import MixtureConfig, StageConfig
from msd.planner.mixture.schedule import MixtureSchedule
from msd.planner.planner import Planner
from msd.planner.strategies import BUILT_IN
from msd.planner.strategies.curriculum import curriculum, joining
from msd.planner.strategies.packed_lm import packed_lm
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

"""Cost functions and strategies are the user's: what they do wrong is said in one line that names them."""

from functools import partial

import numpy as np
import pytest

from msd.errors import ConfigError, PlanError
from msd.planner.planner import Planner
from msd.planner.strategies.curriculum import curriculum
from msd.planner.strategies.packed_lm import packed_lm
from msd.planner.strategy import mix_and_pack
from msd.testing.tables import feed_of, row, settings_of, steps_of

ROWS = {"a": [row(n) for n in (30, 20, 10, 25, 15, 5, 64, 40)]}


def planned(**changes):
    chosen = settings_of(ROWS, **changes)
    return next(steps_of(Planner(chosen), feed_of(ROWS, chosen)))


def divides(length, patches):
    return 1 / 0


def says_two_lines(length, patches):
    raise ValueError("first\n  second")


def takes_one(length):
    return length


def writes(length, patches):
    length *= 0
    return length


def writes_patches(length, patches):
    patches[:] = 7
    return length


JUNK = {
    "short": lambda length, patches: [1],
    "none": lambda length, patches: None,
    "text": lambda length, patches: "x",
    "objects": lambda length, patches: [object()] * len(length),
    "ragged": lambda length, patches: [[1], [1, 2]],
    "two dimensions": lambda length, patches: [[1]] * len(length),
    "NaN": lambda length, patches: length * np.nan,
    "infinite": lambda length, patches: length * np.inf,
    "negative": lambda length, patches: -length,
    "too large to add": lambda length, patches: length * 1e300,
    "too small to divide": lambda length, patches: length * 5e-324,
}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (divides, "divides.* raised ZeroDivisionError: division by zero; it is called with two arrays"),
        (says_two_lines, "says_two_lines.* raised ValueError: first second; it is called with"),
        (takes_one, "takes_one.* raised TypeError: .*takes 1 positional argument"),
        (writes, "writes.* raised ValueError: output array is read-only"),
        (writes_patches, "writes_patches.* raised ValueError: assignment destination is read-only"),
    ],
)
def test_a_cost_function_that_raises_is_named_with_its_error(function, said):
    with pytest.raises(PlanError, match=said) as caught:
        planned(cost={"backbone": function})
    assert caught.value.__cause__ is not None
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", JUNK)
def test_a_cost_function_that_returns_anything_but_costs_is_refused(name):
    with pytest.raises(PlanError, match="of 'backbone' must return one ") as caught:
        planned(cost={"backbone": JUNK[name]})
    assert "\n" not in str(caught.value)


def test_a_plain_function_is_a_cost_without_flops():
    plan = planned(cost={"backbone": lambda length, patches: length})
    assert plan.cost_D.tolist() == plan.length_D.tolist()
    assert plan.report.step_flops is None


def test_a_cost_that_is_no_function_is_refused():
    with pytest.raises(ConfigError, match="cost takes a function"):
        planned(cost={"backbone": 5})


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (lambda graph, context: 1 / 0, "strategy .*lambda.* raised ZeroDivisionError: division by zero"),
        (lambda: None, r"strategy .*lambda.* raised TypeError: .*called with \(graph, context\)"),
        (partial(curriculum, untl=3), "strategy .*curriculum.* has no option 'untl'; did you mean 'until'?"),
        (partial(packed_lm, steps=3), "strategy .*default_strategy.* has no option 'steps'; it takes none"),
        (
            curriculum,
            r"strategy curriculum needs the option 'until'; write strategy: \{function: ..., options: \{until",
        ),
        (lambda graph, context, depth: graph, "needs the option 'depth'"),
        (
            lambda graph, context, **options: options["depth"],
            r"raised KeyError: 'depth'; it is called with \(graph, cont",
        ),
        (lambda graph, context: mix_and_pack(graph, context), "plan needs distribute before it; call .distribute"),
        (
            lambda graph, context: mix_and_pack(graph, context).distribute("tp"),
            "distribute: there is no axis 'tp'; the axes are dp, cp, world",
        ),
        (
            lambda graph, context: mix_and_pack(graph, context).distribute("dp").broadcast_at("sp"),
            "broadcast_at: there is no axis 'sp'; the axes are",
        ),
        (
            lambda graph, context: None,
            "strategy .*lambda.* must return the graph it was given, made longer; .* NoneType",
        ),
        (lambda graph, context: 5, "returned int"),
        (lambda graph, context: graph, "plan needs mix before it"),
        (lambda graph, context: graph.mix(5), "mix takes a schedule, got int"),
        (lambda graph, context: graph.nosuch(), "raised AttributeError"),
    ],
)
def test_a_strategy_that_goes_wrong_is_named_with_its_error(strategy, said):
    with pytest.raises(ConfigError, match=said) as caught:
        planned(strategy=strategy)
    assert "\n" not in str(caught.value)

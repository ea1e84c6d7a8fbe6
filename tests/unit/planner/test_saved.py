"""A state that was changed is refused, or plans on; it never ends in anything but an error of ours."""

import copy
import json

import pytest

from msd.core.journal import Resume, SetWeights, SkipRows, SkipSteps, Suspend
from msd.errors import MsdError, StateError
from msd.planner.config import BatchStageConfig
from msd.planner.planner import Planner
from msd.testing.tables import failed_row, feed_of, row, settings_of, steps_of

MADE = {"a": [row(30), row(20, 10), row(), row(25), failed_row(), row(64), row(40)], "b": [row(7)] * 9}
JUNK = [None, -1, 10**6, 2**70, "x", [], {}, 1.5, float("nan"), True]


def chosen(packing="best_fit", **changes):
    return settings_of(
        MADE, packing=packing, terms={"a": {"max_rate": 1.0}}, max_epochs={"a": 9}, end={"a": "drop"}, **changes
    )


def state_after(steps, settings, edits=()):
    planner = Planner(settings)
    for edit in edits:
        planner.apply(edit)
    plans = steps_of(planner, feed_of(MADE, settings))
    return json.loads(json.dumps([plan.progress for _, plan in zip(range(steps), plans, strict=False)][-1]))


def leaves(value, path=()):
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from leaves(inner, (*path, key))


def changed(state, path, junk):
    state = copy.deepcopy(state)
    place = state
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = junk
    return state


@pytest.mark.parametrize(
    ("packing", "batch"),
    [
        ("best_fit", {}),
        ("concat", {}),
        ("first_fit_decreasing", {}),
        ("best_fit", {"schedule": [BatchStageConfig(step=1, sequence_length=19)], "oversize": "drop"}),
    ],
)
def test_any_value_that_is_changed_is_refused_or_goes_on(packing, batch):
    settings = chosen(packing, batch=batch)
    state = state_after(3, settings)
    assert state["carry"]
    said = []
    for path in list(leaves(state))[1:]:
        for junk in JUNK:
            planner = Planner(settings)
            try:
                planner.load_state_dict(changed(state, path, junk))
                next(steps_of(planner, feed_of(MADE, settings)), None)
            except MsdError as error:
                said.append((type(error), "\n" in str(error)))
    assert not any(is_long for _, is_long in said)
    assert sum(kind is StateError for kind, _ in said) > 500


EDITS = [
    Suspend(at_step=1, source="b", reason="slow"),
    SkipRows(at_step=1, source="a", first=60, last=62, reason="killed", how="SIGSEGV"),
    SetWeights(at_step=2, weights={"a": 1}, ramp=5),
    Resume(at_step=4, source="b"),
    SkipSteps(at_step=9, count=2),
]


def test_an_edit_that_is_changed_is_refused_or_goes_on():
    settings = chosen()
    state = state_after(3, settings, EDITS)
    said = []
    for key in ("edits", "pending", "ramp_from"):
        for path in leaves(state[key], (key,)):
            for junk in JUNK:
                planner = Planner(settings)
                try:
                    planner.load_state_dict(changed(state, path, junk))
                    next(steps_of(planner, feed_of(MADE, settings)), None)
                except MsdError as error:
                    said.append((type(error), "\n" in str(error)))
    assert not any(is_long for _, is_long in said)
    assert sum(kind is StateError for kind, _ in said) > 150


@pytest.mark.parametrize(
    ("path", "junk", "said"),
    [
        (("edits", 0, "source"), "c", r"suspend: there is no source 'c'"),
        (("edits", 0, "at_step"), 3, r"state\.edits cannot be Suspend\(at_step=3"),
        (("edits", 0, "edit"), "resume", r"journal is damaged .*unknown field `reason`"),
        (("edits", 1, "last"), 59, r"skip_rows: first and last are ordinals"),
        (("pending", 0, "at_step"), 2, r"state\.pending cannot be Resume\(at_step=2"),
        (("pending", 1, "count"), 0, r"skip_steps: count must lie in"),
        (("ramp_from", "c"), 0.5, r"state\.ramp_from cannot be"),
        (("ramp_from",), -1, r"Expected `object \| null`, got `int`"),
    ],
)
def test_what_is_wrong_with_an_edit_of_a_state_is_named(path, junk, said):
    settings = chosen()
    with pytest.raises(StateError, match=said):
        Planner(settings).load_state_dict(changed(state_after(3, settings, EDITS), path, junk))


@pytest.mark.parametrize(
    ("path", "junk", "said"),
    [
        (("step",), "3", r"Expected `int`, got `str` - at `\$.step`"),
        (("step",), True, r"Expected `int`, got `bool`"),
        (("sources", "a", "ended"), 1, r"Expected `bool`, got `int`"),
        (("sources", "a", "ended"), True, r"sources.a.ended cannot be true at ordinal"),
        (("sources", "a", "ordinal"), 64, r"source 'a' stands at ordinal 64, and ends at 63 now"),
        (("sources", "a", "bad"), [[3, 1], [0, 1]], r"sources.a.bad cannot be"),
        (("sources", "a", "barren"), [0, 1], r"length >= "),
        (("sources", "b", "survivor_epoch"), 99, r"sources.b.survivor_epoch cannot be 99"),
        (("sources", "b", "credit"), 1.5, r"Expected `int`, got `float`"),
        (("carry", 0, "source"), "c", r"carry.source cannot be c"),
        (("carry", 0, "length"), 65, r"carry.length cannot be 65"),
        (("carry", 0, "ordinal"), 10**6, r"carry.ordinal cannot be 1000000"),
        (("carry", 0, "more"), 1, r"unknown field `more`"),
    ],
)
def test_what_is_wrong_with_a_state_is_named(path, junk, said):
    settings = chosen()
    state = state_after(3, settings)
    with pytest.raises(StateError, match=said):
        Planner(settings).load_state_dict(changed(state, path, junk))


def test_more_samples_than_can_wait_are_refused():
    settings = chosen()
    state = state_after(3, settings)
    with pytest.raises(StateError, match="carry has 5000 samples, at most 1025 can wait"):
        Planner(settings).load_state_dict({**state, "carry": state["carry"][:1] * 5000})


@pytest.mark.parametrize("packing", ["best_fit", "concat", "none"])
def test_what_is_restored_saves_itself_unchanged(packing):
    settings = chosen(packing)
    for steps in (1, 2, 5):
        state = state_after(steps, settings)
        planner = Planner(settings)
        planner.load_state_dict(state)
        assert json.loads(json.dumps(planner.state_dict())) == state


def test_a_sample_that_waits_was_drawn_before_the_step():
    settings = chosen("first_fit_decreasing")
    state = state_after(3, settings)
    with pytest.raises(StateError, match=r"carry\.drawn cannot be 4"):
        Planner(settings).load_state_dict(changed(state, ("carry", 0, "drawn"), 4))

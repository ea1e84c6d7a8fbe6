"""Mixtures of every kind: bounds on what is drawn, the past does not hear of the future, replays draw the same."""

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msd.core.mesh import Mesh
from msd.planner.config import MixtureConfig, StageConfig
from msd.planner.config.mixture import GroupConfig
from msd.planner.mixture.mixer import Mixer
from msd.planner.mixture.schedule import WEIGHT_UNIT, MixtureSchedule, quantise
from msd.planner.piece import Piece
from msd.planner.planner import Planner
from msd.planner.primitives.mix import UNITS
from msd.planner.primitives.pack import Pack
from msd.testing.tables import Part, Row, feed_of, row, settings_of, steps_of

PROFILE = settings(derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
RUNS = settings(PROFILE, max_examples=25)
"""Of tests that plan whole steps."""
CLOCKS = ["step", "epoch", "tokens", "samples", "microbatch"]
LENGTH = 32
NAMES = ["a", "b", "c", "d"]
ROWS = {"a": 9, "b": 20, "c": 33, "d": 5}
SPAN = {"step": 8, "epoch": 3, "tokens": 2000, "samples": 120, "microbatch": 32}
"""Where a stage may start and how long a ramp may be, by clock."""

weight = st.floats(0.01, 100.0)
temperatures = st.floats(0.5, 20.0)


@st.composite
def modes(draw):
    mode = draw(st.sampled_from(["explicit", "proportional", "temperature"]))
    return {"mode": mode} | ({"temperature": draw(temperatures)} if mode == "temperature" else {})


@st.composite
def trees(draw):
    """Weights of all sources: flat, in a group, or in a group of a group."""
    flat = {name: draw(weight) for name in NAMES}
    depth = draw(st.integers(0, 2))
    if depth == 0:
        return flat
    inner = {name: flat[name] for name in ("c", "d")}
    if depth == 2:
        inner = {"d": flat["d"], "inmost": GroupConfig(weights={"c": flat["c"]}, **draw(modes()))}
    group = GroupConfig(weight=draw(weight), weights={"b": flat["b"], **inner}, **draw(modes()))
    return {"a": flat["a"], "group": group}


@st.composite
def stages(draw, clock, first=0):
    number = st.integers if clock != "epoch" else (lambda low, high: st.floats(low, high, allow_nan=False))
    start = draw(number(first, SPAN[clock] + first))
    place = {"step": start} if clock == "step" else {"at": start}
    return StageConfig(**place, ramp=draw(number(0, SPAN[clock])), weights=draw(trees()), **draw(modes()))


@st.composite
def mixtures(draw, clock=None, unit=None):
    clock = clock or draw(st.sampled_from(CLOCKS))
    made = sorted(draw(st.lists(stages(clock), max_size=3)), key=lambda stage: stage.start)
    made = [stage for number, stage in enumerate(made) if number == 0 or stage.start > made[number - 1].start]
    return MixtureConfig(
        weights=draw(trees()), clock=clock, schedule=made, unit=unit or draw(st.sampled_from(list(UNITS))),
        **draw(modes()),
    )  # fmt: skip


@st.composite
def made_up(draw):
    """Rows of each source: one sample, several, or none."""
    lengths = st.integers(1, LENGTH)
    rows = st.one_of(lengths.map(row), st.lists(lengths, min_size=2, max_size=3).map(lambda some: row(*some)))
    image = lengths.map(lambda length: Row((Part(length, length // 2),)))
    return {
        name: [row(draw(lengths)), *(draw(st.one_of(rows, image, st.just(row()))) for _ in range(count - 1))]
        for name, count in ROWS.items()
    }


def chosen_for(made, mixture, **changes):
    return settings_of(
        made, mixture=mixture, sequence_length=LENGTH, **{"global_batch_size": 8, "num_microbatches": 4} | changes
    )


def run(made, chosen, count, chunk=7):
    steps = steps_of(Planner(chosen), feed_of(made, chosen, chunk))
    return [plan for _, plan in zip(range(count), steps, strict=False)]


class Ledger:
    """Adds up what each source is owed by the shares in force and what it was given, draw by draw."""

    def __init__(self, mixer, longest):
        self.mixer, self.longest = mixer, longest
        self.owed, self.given = np.zeros(len(NAMES), dtype=object), np.zeros(len(NAMES), dtype=object)
        self.over = self.under = 0

    def draw(self, piece, units):
        source = self.mixer.credits.largest()
        weight_S = np.array(quantise(self.mixer.shares).tolist(), dtype=object)
        self.mixer.take(source, piece)
        self.owed = self.owed + weight_S * units
        self.given[source] += WEIGHT_UNIT * units
        gap = self.owed - self.given
        assert sum(gap) == 0
        self.over, self.under = max(self.over, -min(gap)), max(self.under, max(gap))
        return source


def progress_of(step, drawn):
    """A position as the planner writes it, as far as clocks read it."""
    sources = {
        name: {"ordinal": n, "samples": n, "tokens": t} for name, (n, t) in zip(NAMES, drawn.values(), strict=True)
    }
    return {"step": step, "sources": sources}


def drifted(mixture, lengths, draws_per_step):
    """Draw once for each length, a step at a time; return the worst excess and lack, in longest samples."""
    schedule = MixtureSchedule.of(NAMES, mixture, rows=ROWS, num_microbatches=4)
    pack = Pack("best_fit", draws_per_step, LENGTH // 2, 1, 1)
    mixer, drawn = Mixer(schedule, mixture, [0] * len(NAMES)), dict.fromkeys(range(len(NAMES)), (0, 0))
    ledger = Ledger(mixer, max(lengths))
    count_of = UNITS[mixture.unit]
    pieces = [Piece(0, 0, 0, 0, length, length // 2, 0, 0, 0) for length in lengths]
    for step, first in enumerate(range(0, len(pieces), draws_per_step)):
        mixer.begin(progress_of(step, drawn), [True] * len(NAMES), pack, ())
        for piece in pieces[first : first + draws_per_step]:
            source = ledger.draw(piece, count_of(piece))
            number, tokens = drawn[source]
            drawn[source] = (number + 1, tokens + piece.length)
    longest = WEIGHT_UNIT * max(map(count_of, pieces))
    return ledger.over / longest, ledger.under / longest


lengths = st.lists(st.integers(1, LENGTH), min_size=1, max_size=200)


@pytest.mark.parametrize("clock", CLOCKS)
@PROFILE
@given(data=st.data(), lengths=lengths, draws_per_step=st.integers(1, 20))
def test_no_source_is_more_than_one_sample_over_its_share_whatever_moves(clock, data, lengths, draws_per_step):
    over, _ = drifted(data.draw(mixtures(clock)), lengths, draws_per_step)
    assert over <= 1


@PROFILE
@given(weights=trees(), modes=modes(), unit=st.sampled_from(list(UNITS)), lengths=lengths)
def test_constant_weights_of_any_kind_keep_the_bound_under_the_share(weights, modes, unit, lengths):
    _, under = drifted(MixtureConfig(weights=weights, unit=unit, **modes), lengths, 10)
    assert under <= sum(1 / k for k in range(1, len(NAMES)))


@PROFILE
@given(mixture=mixtures(), live_S=st.lists(st.booleans(), min_size=4, max_size=4), count=st.integers(0, 3000))
def test_shares_are_shares_and_a_source_that_ended_has_none(mixture, live_S, count):
    schedule = MixtureSchedule.of(NAMES, mixture, rows=ROWS, num_microbatches=4)
    assert math.fsum(schedule.shares(count)) == pytest.approx(1)
    found = schedule.shares(count, live_S)
    assert all(0 <= share <= 1 + 1e-9 for share in found)
    assert [share > 0 for share in found] == live_S
    turn = schedule.next_turn(count)
    assert turn is None or turn > count


@pytest.mark.parametrize("clock", CLOCKS)
@RUNS
@given(data=st.data(), made=made_up())
def test_changing_the_future_of_a_schedule_leaves_the_past(clock, data, made):
    mixture = data.draw(mixtures(clock))
    first = math.ceil(max((stage.start for stage in mixture.schedule), default=0)) + 1
    later = data.draw(stages(clock, first))
    changed = MixtureConfig(
        **{name: getattr(mixture, name) for name in ("weights", "mode", "temperature", "clock", "unit")},
        schedule=[*mixture.schedule, later],
    )
    plans, other = (run(made, chosen_for(made, which), 8) for which in (mixture, changed))
    schedule = MixtureSchedule.of(NAMES, changed, rows=ROWS, num_microbatches=4)
    start = schedule.stages[-1].start
    past = 0
    for plan in plans:
        if schedule.clock.count(plan.progress) > start:
            break
        past += 1
    assert past or clock != "step"
    assert [plan.digest for plan in plans[:past]] == [plan.digest for plan in other[:past]]


@RUNS
@given(data=st.data(), made=made_up(), taken=st.integers(0, 9), chunk=st.integers(1, 30))
def test_a_replay_from_any_step_draws_what_the_run_did(data, made, taken, chunk):
    mixture = data.draw(mixtures())
    caps = {"max_epochs": {"b": 1, "d": 2}, "end": {"b": "drop", "d": "drop"}}
    chosen = chosen_for(made, mixture, **caps)
    whole = run(made, chosen, 10)
    planner = Planner(chosen)
    if taken and taken <= len(whole):
        state = json.loads(json.dumps(whole[taken - 1].progress))
        planner.load_state_dict(state)
        assert planner.state_dict() == state
    rest = [p for _, p in zip(range(10), steps_of(planner, feed_of(made, chosen, chunk)), strict=False)]
    expected = whole[taken:] if taken <= len(whole) else whole
    assert [plan.digest for plan in rest[: len(expected)]] == [plan.digest for plan in expected]


@RUNS
@given(data=st.data(), made=made_up())
def test_what_is_drawn_does_not_know_the_mesh(data, made):
    mixture = data.draw(mixtures())
    meshes = [Mesh.of(dp=1), Mesh.of(dp=2), Mesh.of(pp=2, dp=2, tp=2)]
    found = [[p.membership_digest for p in run(made, chosen_for(made, mixture, mesh=mesh), 4)] for mesh in meshes]
    assert found[0] == found[1] == found[2]

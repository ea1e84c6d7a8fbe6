"""Every role is killed, frozen, paused and asked to leave, singly and in pairs: no byte changes and nothing stays.

A run is told nothing beforehand; it is served by a program that is started again whenever it ends.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from fault_data import SILENCE_S, cast_of, undisturbed, write_config
from fault_outcome import Outcome
from fault_run import FaultyRun, faulty, standing_cluster
from fault_schedule import Cast, Fault, drawn, in_turn

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.timeout(150)]

PACE_S = 0.03
APART = 15


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("faults"))


def gone_through(run: FaultyRun, faults: Sequence[Fault], *, as_programs: bool = False) -> Outcome:
    """Take steps until some after the last fault."""
    steps = max(fault.at_step for fault in faults) + 2 * APART
    run.begin(2, steps, pace_s=PACE_S, as_programs=as_programs)
    outcome = run.go_through(faults, timeout_s=120)
    assert len(outcome.struck) == len(faults)
    return outcome


@pytest.mark.parametrize("target", ["msd-control", "msd-loader-1", "serve"])
def test_each_role_of_a_compact_run_may_go_in_any_way(config, tmp_path, target):
    """Answers RY-7, TD-5, TF-1, DK-2, DK-3."""
    faults = in_turn(cast_of(), first=APART, apart=APART, targets=[target])
    with faulty(tmp_path, config) as run:
        outcome = gone_through(run, faults)
    outcome.check(undisturbed(config, run.steps))


@pytest.mark.parametrize("target", ["msd-planner", "msd-control"])
def test_planner_and_constructors_may_go_apart(config, tmp_path, target):
    """Answers DK-4."""
    faults = in_turn(cast_of(compact=False), first=APART, apart=APART, targets=[target])
    with faulty(tmp_path, config, settings=["runtime.compact=false"]) as run:
        outcome = gone_through(run, faults)
    outcome.check(undisturbed(config, run.steps))


def test_a_host_and_then_the_shadow_that_took_over_may_go_and_each_is_replaced(config, tmp_path):
    names = ("msd-loader-0", "msd-loader-2", "msd-loader-1")
    faults = [Fault(APART * number, name, "kill") for number, name in enumerate(names, 1)]
    with faulty(tmp_path, config, settings=["shadows=1"]) as run:
        outcome = gone_through(run, faults)
    outcome.check(undisturbed(config, run.steps))


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_goes_at_random_singly_and_in_pairs_changes_no_byte(config, tmp_path, seed):
    cast = cast_of(shadows=1, compact=seed % 2 == 0)
    faults = drawn(seed, cast, first=APART, last=5 * APART, apart=APART, pairs=0.5)
    with faulty(tmp_path, config, settings=["shadows=1", f"runtime.compact={str(seed % 2 == 0).lower()}"]) as run:
        outcome = gone_through(run, faults)
    outcome.check(undisturbed(config, run.steps))


def test_a_scheduler_that_others_run_may_go_with_its_workers_and_alone(config, tmp_path):
    """Answers DK-7."""
    with faulty(tmp_path, config) as run:
        scheduler = standing_cluster(run, ["msd-control", "msd-loader-0", "msd-loader-1"])
        run.serve.command += ("--scheduler", scheduler)
        cast = Cast((), ("scheduler", "msd-loader-0"), pauses_s=(2 * SILENCE_S,))
        outcome = gone_through(run, in_turn(cast, first=APART, apart=APART))
    outcome.check(undisturbed(config, run.steps))


def test_ranks_that_are_killed_go_on_together_from_a_state_also_when_the_run_goes_too(config, tmp_path):
    faults = [
        Fault(APART, "rank-0", "kill"),
        Fault(2 * APART, "rank-0", "kill"),
        Fault(2 * APART, "rank-1", "kill"),
        Fault(3 * APART, "rank-1", "kill"),
        Fault(3 * APART, "serve", "kill"),
        Fault(4 * APART, "rank-1", "pause", 1.0),
    ]
    with faulty(tmp_path, config) as run:
        outcome = gone_through(run, faults, as_programs=True)
    outcome.check(undisturbed(config, run.steps))

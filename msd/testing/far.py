"""The state of a run that is far along, written by arithmetic: nobody has to run a million steps to resume from there.

state = far_state(config, 1_000_000)
client.load_state_dict(state)
"""

from collections.abc import Mapping
from fractions import Fraction

from msd.build import build_chains, build_loaders, build_orders, build_planner, index_all, plan_steps
from msd.config import PipelineConfig
from msd.config.identity import identity
from msd.core.state import StateDict
from msd.errors import ConfigError
from msd.loader.loader import SourceLoader
from msd.planner.planner import Planner
from msd.planner.saved import NUM_BARREN
from msd.runtime.state import run_state

_PROBED = 8
"""Steps planned from the start: how fast each source moves."""
_SETTLED = 2
"""Steps planned at the far end: what waits there are samples of the rows that come there."""


def far_state(config: PipelineConfig, step: int) -> StateDict:
    """Return the state of a run before a step, as if it had gone on as it began.

    Ordinals, epochs and totals are those of so many steps at the pace of the first ones; credits, and the samples that
    wait, are those that planning the last two steps before it leaves. A run that went there step by step would stand
    at other rows of the same epochs: this is a position that can be, not the one of that run.

    Args:
        config: Of a run whose sources all repeat.
        step: At least 10.

    Raises:
        ConfigError: If a source ends before that step, or the step is too near.
    """
    if step < _PROBED + _SETTLED:
        raise ConfigError(f"step must be {_PROBED + _SETTLED} or more, got {step}; take nearer steps from a run")
    chains = build_chains(config)
    orders = build_orders(config, index_all(config))
    loaders = build_loaders(config, orders, chains)
    try:
        planner = build_planner(config, orders)
        _plan(planner, loaders, _PROBED)
        progress = moved(planner.state_dict(), step - _SETTLED)
        for name, entry in progress["sources"].items():
            total = orders[name].total_ordinals(config.max_epochs(name))
            if total is not None and entry["ordinal"] >= total:
                raise ConfigError(f"source {name!r} ends at row {total}, before step {step}; leave out its max_epochs")
        planner = build_planner(config, orders)
        planner.load_state_dict(progress)
        _plan(planner, loaders, _SETTLED)
    finally:
        for loader in loaders.values():
            loader.close()
    return run_state(planner.state_dict(), identity(config, orders, chains))


def moved(progress: StateDict, step: int) -> StateDict:
    """Return a planner's progress at another step, each source as far along as its pace so far brings it."""
    pace = Fraction(step, progress["step"])
    sources = {name: _moved(entry, pace) for name, entry in progress["sources"].items()}
    return {**progress, "step": step, "sources": sources, "carry": []}


def _moved(entry: StateDict, pace: Fraction) -> StateDict:
    # One that has a share and was not drawn yet gave its first sample about now.
    at_least = int(entry["credit"] != 0)
    ordinal = int(pace * max(at_least, entry["ordinal"]))
    epoch, place = divmod(ordinal, entry["rows"]) if entry["rows"] else (0, 0)
    return {
        **{field: value for field, value in entry.items() if field != "start"},
        "ordinal": ordinal,
        "part": 0,
        "tokens": int(pace * max(at_least, entry["tokens"])),
        "samples": int(pace * max(at_least, entry["samples"])),
        "bad": [],
        # A row of this epoch has given a sample, unless none has come.
        "survivor_epoch": epoch if place else epoch - 1,
        "barren": [epoch, *[0] * (NUM_BARREN - 1)],
    }


def _plan(planner: Planner, loaders: Mapping[str, SourceLoader], steps: int) -> None:
    planned = sum(1 for _ in plan_steps(planner, loaders, steps=steps))
    if planned < steps:
        raise ConfigError(f"the run ends at step {planner.step}; only one whose sources repeat can be far along")

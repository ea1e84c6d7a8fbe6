"""Sources come in one after another."""

# S = sources, in order of name.

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from msd.core.checks import few
from msd.errors import ConfigError
from msd.planner.dgraph import DGraph
from msd.planner.mixture.schedule import MixtureSchedule, Stage
from msd.planner.mixture.shares import Shares
from msd.planner.strategy import StrategyContext, balance_and_broadcast, mix_and_pack


def curriculum(graph: DGraph, context: StrategyContext, *, until: float, order: Sequence[str] | None = None) -> DGraph:
    """Begin with the first source alone and take in the others in order, until all have their weights.

    Of n sources the second comes in over the second n-th of the way, the third over the third, linearly; those that are
    in share by the configured weights. For any other course write `mixture.schedule`; for longer sequences later,
    `batch.schedule`.

    Args:
        graph: The empty graph.
        context: What the configuration says; its weights are where the curriculum ends.
        until: When all weights hold: a step, or a place of `mixture.clock`.
        order: Sources, from the first; None takes those with a weight in order of name.

    Raises:
        ConfigError: If the mixture has a schedule of its own, or `order` does not name each source with a weight once.
    """
    schedule = joining(context.schedule, until, order)
    return balance_and_broadcast(mix_and_pack(graph, replace(context, schedule=schedule)).distribute("dp"), context)


def joining(schedule: MixtureSchedule, until: float, order: Sequence[str] | None = None) -> MixtureSchedule:
    """Return the schedule in which the sources of a constant one come in, one after another; see `curriculum`."""
    drawn = [name for name, share in zip(schedule.names, schedule.base.share_S, strict=True) if share]
    order = drawn if order is None else list(order)
    if schedule.stages:
        raise ConfigError("curriculum ends at constant weights; leave mixture.schedule empty, or write all of it there")
    if sorted(order) != sorted(drawn):
        raise ConfigError(
            f"curriculum: order must name each source with a weight once ({few(drawn)}), got {few(order)}"
        )
    if isinstance(until, bool) or not isinstance(until, int | float) or not 0 < until < math.inf:
        raise ConfigError(f"curriculum: until must be a number above 0, got {until!r}")
    last = schedule.clock.ticks(until)
    turns = [last * place // len(order) for place in range(len(order) + 1)]
    shares = [_shares_of(schedule, order[: place + 1]) for place in range(len(order))]
    return replace(
        schedule,
        base=shares[0],
        stages=tuple(
            Stage(turns[place], turns[place + 1] - turns[place], shares[place]) for place in range(1, len(order))
        ),
    )


def _shares_of(schedule: MixtureSchedule, present: Collection[str]) -> Shares:
    """Return the configured shares, over those sources that are in."""
    share_S = schedule.base.over([name in present for name in schedule.names])
    total = math.fsum(share_S)
    return replace(schedule.base, share_S=tuple(share / total for share in share_S))

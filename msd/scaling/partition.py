"""Auto-partition: loaders per source, workers per loader, hosts, such that a rate is sustained within budgets.

Sources are divisible, since any loader may prepare any window: so cores are used up before anything is refused, and
what is refused names the budget that is short.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from msd.core.allocation import Allocation, Seat, Seating
from msd.core.arrays import Int64Array
from msd.core.demand import HostBudget, SourceDemand
from msd.errors import ConfigError
from msd.scaling.improve import Division, spread_workers
from msd.scaling.need import EPSILON, Need, memory_of, needs_of, rate_of
from msd.scaling.place import Part, Placed, place

BUSY = 0.9
"""Part of the time in which the workers of the source that limits are at work, as `perf/bench_scaling.py` measures it:
between two rows they are handed the next, and some steps take more of one source than of another."""
WORTH_SPREADING = 1.02
"""Times the rate from which on loaders of every source on every host are taken for it."""
CLOSE = 1e-4
"""Part of a rate within which the search for the highest one ends."""
_HALVINGS = 50
"""Of that search at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A budget that is short."""

    what: str
    """`cores` or `memory`."""
    needed: float
    """Cores or bytes."""
    available: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse:
    """What is used of a host."""

    budget: HostBudget
    cpus: float
    memory_bytes: int
    workers: int
    """Threads or processes that the host needs for all its loaders together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What auto-partition came to."""

    rate: float
    """Samples/s that the allocation sustains with the head-room asked."""
    asked_rate: float | None
    headroom: float
    allocation: Allocation
    needs: Mapping[str, Need]
    """At `rate`."""
    parts: tuple[Part, ...]
    hosts: tuple[HostUse, ...]
    shortfalls: tuple[Shortfall, ...]
    """At the rate that was asked for; empty if it is met."""

    @property
    def is_met(self) -> bool:
        """Whether the rate that was asked for is sustained."""
        return not self.shortfalls

    @property
    def workers(self) -> int:
        """Of all hosts."""
        return sum(use.workers for use in self.hosts)


def partition_sources(
    demands: Sequence[SourceDemand], hosts: Sequence[HostBudget], *, rate: float | None, headroom: float = 1.25
) -> Sizing:
    """Return loaders, workers and hosts for a rate, or for the highest rate that fits.

    Args:
        demands: Of the sources, at least one of which is drawn.
        hosts: With their hard bounds; at least one.
        rate: Samples/s over all sources. None asks for the highest.
        headroom: So many times what is needed is provided.

    Raises:
        ConfigError: If there is no host, a rate is not above 0, or not even idle loaders fit.
    """
    if not hosts:
        raise ConfigError("sizing needs at least one loader host; give --hosts, or set runtime.workers")
    if rate is not None and not rate > 0:
        raise ConfigError(f"a rate must be above 0 samples/s, got {rate:g}")
    drawn = [demand for demand in demands if demand.share > 0]
    if not drawn:
        raise ConfigError("no source is drawn from: every weight is 0; give one a weight above 0")
    idle = place(needs_of(demands, rate=0.0, headroom=headroom), hosts)
    if idle.unmet:
        short = _shortfalls(demands, hosts, rate=0.0, headroom=headroom, placed=idle)
        what = ", ".join(_said(one) for one in short) or "no host has cores and workers at all"
        raise ConfigError(f"not even idle loaders of {len(demands)} sources fit on {len(hosts)} hosts: {what}")
    shortfalls: tuple[Shortfall, ...] = ()
    found, placed = rate, None
    if rate is not None:
        placed = place(needs_of(demands, rate=rate, headroom=headroom), hosts)
        if placed.unmet:
            shortfalls = _shortfalls(demands, hosts, rate=rate, headroom=headroom, placed=placed)
            placed = None
    if found is None or placed is None:
        # The same for every rate that is too high at first: more is never given for less.
        found, placed = _highest(demands, hosts, headroom=headroom)
        division = _improved(demands, hosts, _workers(placed.parts, demands, hosts))
        if division.rate / headroom > found:
            found, placed = division.rate / headroom, None
        if rate is not None and found >= rate:
            found, shortfalls = rate, ()
        parts = _parts(division, demands, hosts, rate=found, headroom=headroom) if placed is None else placed.parts
    else:
        parts = placed.parts
    return Sizing(
        rate=found,
        asked_rate=rate,
        headroom=headroom,
        allocation=allocation_of(parts, demands),
        needs={need.source: need for need in needs_of(demands, rate=found, headroom=headroom)},
        parts=parts,
        hosts=tuple(_use(budget, parts) for budget in hosts),
        shortfalls=shortfalls,
    )


def allocation_of(parts: Sequence[Part], demands: Sequence[SourceDemand]) -> Allocation:
    """Return the seats of the parts, in the order of the sources."""
    seats: dict[str, list[Seat]] = {demand.source: [] for demand in demands}
    for part in parts:
        of_source = seats[part.source]
        of_source.append(Seat(len(of_source), part.host, part.workers))
    return {source: Seating(tuple(of_source)) for source, of_source in seats.items() if of_source}


def sustained(
    allocation: Allocation, demands: Sequence[SourceDemand], hosts: Sequence[HostBudget], *, busy: float = BUSY
) -> float:
    """Return the samples/s over all sources that an allocation sustains: the source or host that limits first says so.

    A source gives no more than its workers prepare; its loaders get rows in proportion to their workers; a host gives
    no more than its cores, and keeps no more workers busy than it may have.

    Args:
        allocation: Seats of all sources.
        demands: Of the same.
        hosts: On which they are.
        busy: Part of the time in which the workers that limit are at work.
    """
    by_name = {demand.source: demand for demand in demands}
    rates = [math.inf]
    cpus_per_rate = dict.fromkeys((budget.host for budget in hosts), 0.0)
    busy_per_rate = dict(cpus_per_rate)
    for source, seating in allocation.items():
        demand, workers = by_name[source], seating.workers
        if workers is not None:
            rates.append(rate_of(demand, workers))
        rows = demand.share * demand.rows_per_sample
        for turn in seating.turns:
            host, part = seating.seats[turn].host, rows / len(seating.turns)
            cpus_per_rate[host] += part * (demand.cost.cpu_s + demand.cost.transfer_s)
            busy_per_rate[host] += part * demand.cost.prepare_s
    rates += [budget.cpus / used for budget in hosts if (used := cpus_per_rate[budget.host]) > 0]
    rates += [budget.most_workers / at_work for budget in hosts if (at_work := busy_per_rate[budget.host]) > 0]
    return busy * min(rates)


def _highest(demands: Sequence[SourceDemand], hosts: Sequence[HostBudget], *, headroom: float) -> tuple[float, Placed]:
    """Return the highest rate at which every source finds room as a whole or in pieces, and how."""
    low, high = 0.0, _bound(demands, hosts, headroom)
    best = place(needs_of(demands, rate=low, headroom=headroom), hosts)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        placed = place(needs_of(demands, rate=middle, headroom=headroom), hosts)
        if placed.unmet:
            high = middle
        else:
            low, best = middle, placed
        if high - low <= CLOSE * high:
            break
    return low, best


def _bound(demands: Sequence[SourceDemand], hosts: Sequence[HostBudget], headroom: float) -> float:
    """Return a rate that does not fit."""
    needs = needs_of(demands, rate=1.0, headroom=headroom)
    cpus, workers = sum(need.cpus for need in needs), sum(need.workers for need in needs)
    bounds = [sum(budget.cpus for budget in hosts) / cpus] if cpus > 0 else []
    if workers > 0:
        bounds.append(sum(budget.most_workers for budget in hosts) / workers)
    if not bounds:
        raise ConfigError("every source costs nothing to prepare, so that any rate is sustained; name a rate")
    return 2.0 * min(bounds)


def _shortfalls(
    demands: Sequence[SourceDemand], hosts: Sequence[HostBudget], *, rate: float, headroom: float, placed: Placed
) -> tuple[Shortfall, ...]:
    needs = needs_of(demands, rate=rate, headroom=headroom)
    cpus = sum(need.cpus for need in needs)
    memory = float(sum(memory_of(need.demand, need.slots) for need in needs))
    workers = sum(need.workers for need in needs)
    budgets = (
        ("cores", cpus, sum(budget.cpus for budget in hosts)),
        ("memory", memory, float(sum(budget.memory_bytes for budget in hosts))),
        ("workers", workers, float(sum(budget.most_workers for budget in hosts))),
    )
    short = [Shortfall(what=what, needed=needed, available=there) for what, needed, there in budgets if needed > there]
    if not short and placed.unmet:
        # In all there is enough, but not where a loader of it would have to lie.
        most = max(budget.memory_bytes for budget in hosts)
        largest = max(need.demand.loader_bytes for need in needs if need.source in placed.unmet)
        short = [Shortfall(what="memory of one host", needed=float(largest), available=float(most))]
    return tuple(short)


def _said(short: Shortfall) -> str:
    if "memory" in short.what:
        return f"{short.what}: {short.needed / 2**20:,.0f} MiB needed, {short.available / 2**20:,.0f} there"
    return f"{short.what}: {short.needed:.2f} needed, {short.available:.2f} there"


def _improved(demands: Sequence[SourceDemand], hosts: Sequence[HostBudget], workers_SH: Int64Array) -> Division:
    """Return the best of what can be made of a division, and of one in which every host has a part of every source."""
    division = Division(demands, hosts, workers_SH)
    spread = Division(demands, hosts, spread_workers(demands, hosts))
    for one in (division, spread):
        if one.is_allowed:
            one.improve()
    # Many loaders hold many files: only for what shows.
    return spread if spread.is_allowed and spread.rate > WORTH_SPREADING * division.rate else division


def _workers(parts: Sequence[Part], demands: Sequence[SourceDemand], hosts: Sequence[HostBudget]) -> Int64Array:
    """Return the workers of each source on each host."""
    source_at = {demand.source: number for number, demand in enumerate(demands)}
    host_at = {budget.host: number for number, budget in enumerate(hosts)}
    workers_SH = np.zeros((len(demands), len(hosts)), dtype=np.int64)
    for part in parts:
        workers_SH[source_at[part.source], host_at[part.host]] += part.workers
    return workers_SH


def _parts(
    division: Division, demands: Sequence[SourceDemand], hosts: Sequence[HostBudget], *, rate: float, headroom: float
) -> tuple[Part, ...]:
    """Return what is where, at a rate."""
    needs = needs_of(demands, rate=rate, headroom=headroom)
    parts = []
    for number in sorted(range(len(needs)), key=lambda number: (-needs[number].cpus, needs[number].source)):
        need, workers_H = needs[number], division.workers_SH[number].tolist()
        for budget, workers in zip(hosts, workers_H, strict=True):
            if workers:
                share = workers / sum(workers_H)
                memory = memory_of(need.demand, workers)
                parts.append(Part(need.source, budget.host, workers, need.workers * share, need.cpus * share, memory))
    return tuple(parts)


def _use(budget: HostBudget, of_all: Sequence[Part]) -> HostUse:
    parts = [part for part in of_all if part.host == budget.host]
    return HostUse(
        budget=budget,
        cpus=sum(part.cpus for part in parts),
        memory_bytes=sum(part.memory_bytes for part in parts),
        workers=max(1, math.ceil(sum(part.need for part in parts) - EPSILON)) if parts else 0,
    )

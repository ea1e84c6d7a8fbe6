"""From counters that a run keeps anyway to what the scaler looks at: rates, shares and costs between two looks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from msd.core.allocation import Allocation
from msd.core.demand import RowCost, SourceDemand
from msd.scaling.reading import HostReading, Reading, SourceReading

SMOOTHING = 0.3
"""Weight of the newest interval in what a row is taken to cost."""
LEAST_ROWS = 16
"""Rows of an interval that say what a row costs."""
MOST_HUNGER = 4.0
"""Times the measured rate that ranks are taken to ask for at most: how long they waited is known roughly."""
LOADER_BYTES = 16 << 20
"""Of a loader that was not profiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCounters:
    """Totals of one source since some moment; they may begin anew when a process was replaced."""

    samples: float
    """Planned."""
    rows_examined: float
    parts: float
    """Samples that those rows gave."""
    rows_transformed: float
    transform_s: float
    """Of workers, waiting for a core left out."""
    transform_cpu_s: float
    starved_s: float
    """In which planning waited for it."""
    ready: float
    wanted: float
    """Rows that are known, and that it pays to know, beyond what is planned."""
    consumed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Of a run, at one moment."""

    now_s: float
    sources: Mapping[str, SourceCounters]
    seats: Allocation
    hosts: Mapping[str, HostReading]
    """Loader hosts that do not stand by, also those that are on their way."""
    waited_s: float = 0.0
    """For which ranks have waited for steps, on average."""
    can_add_hosts: bool = False


@dataclass(frozen=True, slots=True)
class _Cost:
    prepare_s: float
    cpu_s: float


class Gauges:
    """Makes readings out of counters. Holds what it saw last, and no clock."""

    def __init__(
        self,
        profiled: Mapping[str, SourceDemand],
        *,
        most_loaders: Mapping[str, int],
    ) -> None:
        """Have seen nothing.

        Args:
            profiled: What sources cost, as far as they were profiled: holds until enough rows were measured.
            most_loaders: By source, loaders that find work.
        """
        self._profiled = profiled
        self._most_loaders = most_loaders
        self._last: Counters | None = None
        self._costs: dict[str, _Cost] = {}

    def reading(
        self, now: Counters, ahead: Callable[[str, float], float], grows: Callable[[str], float]
    ) -> Reading | None:
        """Return what there is to look at since the counters before, None for the first or after they began anew.

        Args:
            now: The counters.
            ahead: Returns the peak share within the look-ahead of a source that has the given share now.
            grows: Returns how many times as long as now the rows to come are predicted to take.
        """
        last, self._last = self._last, now
        if last is None or now.now_s <= last.now_s or now.sources.keys() != last.sources.keys():
            return None
        elapsed_s = now.now_s - last.now_s
        samples = {name: one.samples - last.sources[name].samples for name, one in now.sources.items()}
        if min(samples.values()) < 0 or not sum(samples.values()):
            return None
        starved = {name: max(0.0, one.starved_s - last.sources[name].starved_s) for name, one in now.sources.items()}
        waited = min(1.0 - 1.0 / MOST_HUNGER, max(0.0, now.waited_s - last.waited_s) / elapsed_s)
        total = sum(samples.values())
        sources = {}
        for name, one in now.sources.items():
            cost = self._cost(name, one, last.sources[name])
            if name not in now.seats or cost is None:
                continue
            demand = self._demand(name, one, cost, samples[name] / total)
            later = replace(
                demand,
                share=max(demand.share, ahead(name, demand.share)),
                cost=replace(demand.cost, prepare_s=cost.prepare_s * grows(name), cpu_s=cost.cpu_s * grows(name)),
            )
            sources[name] = SourceReading(
                seating=now.seats[name],
                now=demand,
                ahead=later,
                occupancy=min(1.0, one.ready / one.wanted) if one.wanted else 1.0,
                starved_s=starved[name],
            )
        return Reading(
            now_s=now.now_s,
            rate=total / elapsed_s / (1.0 - waited),
            sources=sources,
            hosts=now.hosts,
            can_add_hosts=now.can_add_hosts,
        )

    def _cost(self, name: str, now: SourceCounters, last: SourceCounters) -> _Cost | None:
        rows = now.rows_transformed - last.rows_transformed
        known = self._costs.get(name)
        if known is None and name in self._profiled:
            cost = self._profiled[name].cost
            known = _Cost(cost.prepare_s, cost.cpu_s)
        if rows >= LEAST_ROWS:
            newest = _Cost(
                max(0.0, now.transform_s - last.transform_s) / rows,
                max(0.0, now.transform_cpu_s - last.transform_cpu_s) / rows,
            )
            weight = 1.0 if known is None else SMOOTHING
            before = known or newest
            known = _Cost(
                before.prepare_s + weight * (newest.prepare_s - before.prepare_s),
                before.cpu_s + weight * (newest.cpu_s - before.cpu_s),
            )
            self._costs[name] = known
        return known

    def _demand(self, name: str, one: SourceCounters, cost: _Cost, share: float) -> SourceDemand:
        profiled = self._profiled.get(name)
        return SourceDemand(
            source=name,
            share=share,
            rows_per_sample=one.rows_examined / one.parts if one.parts else 1.0,
            cost=RowCost(prepare_s=cost.prepare_s, cpu_s=cost.cpu_s, transfer_s=0.0, payload_bytes=0.0),
            loader_bytes=LOADER_BYTES if profiled is None else profiled.loader_bytes,
            runs_in="threads" if profiled is None else profiled.runs_in,
            worker_bytes=0 if profiled is None else profiled.worker_bytes,
            most_loaders=self._most_loaders.get(name, 1),
        )

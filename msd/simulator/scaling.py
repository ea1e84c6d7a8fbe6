"""A run in virtual time whose loaders are sized while it goes on: for tuning, tests and notebooks.

Rows are a flow: workers of a source fill its buffer as fast as its rows let them and as cores of their hosts allow,
ranks empty all buffers in proportion to shares, and wait where one is empty. The scaler is that of a real run.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from msd.core.allocation import Allocation
from msd.core.demand import HostBudget, RowCost, SourceDemand
from msd.scaling.autoscale import decide
from msd.scaling.config import ScalingConfig
from msd.scaling.partition import partition_sources
from msd.scaling.reading import HostReading, Reading, ScalerMemory, SourceReading

OverTime: TypeAlias = Callable[[float], float]
"""Of seconds since the start."""
OverRows: TypeAlias = Callable[[float], float]
"""Of rows since the start."""

LOOKS_AHEAD = 8
"""Points within the look-ahead at which shares and costs are looked up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSource:
    """A source, as a trace of what it is asked for and what it costs."""

    name: str
    share: OverTime
    """Of the samples."""
    row_s: OverRows
    """Seconds that a row takes a worker."""
    predicted_s: OverRows | None = None
    """What the cost model says of it; None is right."""
    cpu_share: float = 1.0
    """Part of a row's seconds in which a core is used."""
    rows_per_sample: float = 1.0
    loader_bytes: int = 16 << 20
    buffer_rows: float = 256.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The run at one look of the scaler."""

    at_s: float
    rate: float
    """Samples/s that ranks got since the look before."""
    waited: float
    """Part of that time in which ranks waited for data."""
    workers: Mapping[str, int]
    occupancy: Mapping[str, float]
    shares: Mapping[str, float]
    hosts: int
    limited_by: str
    """The source that was waited for longest; empty if none was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRun:
    """What a simulated run came to."""

    looks: tuple[Look, ...]
    decisions: tuple[tuple[float, str, str], ...]
    """(seconds, source or host, why) of everything that was changed, or was lacking."""
    allocation: Allocation
    """At the end."""

    @property
    def waited(self) -> float:
        """Part of the whole time in which ranks waited for data."""
        return sum(look.waited for look in self.looks) / len(self.looks)

    @property
    def rate(self) -> float:
        """Samples/s over the whole time."""
        return sum(look.rate for look in self.looks) / len(self.looks)

    def reversals(self, source: str) -> int:
        """Return how often the workers of a source went the other way than the time before."""
        counts = [look.workers[source] for look in self.looks]
        steps = [later - earlier for earlier, later in itertools.pairwise(counts) if later != earlier]
        return sum(one * other < 0 for one, other in itertools.pairwise(steps))

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each look and source, for data frames and plots."""
        return [
            {
                "at_s": look.at_s,
                "source": source,
                "workers": look.workers[source],
                "occupancy": look.occupancy[source],
                "share": look.shares[source],
                "rate": look.rate,
                "waited": look.waited,
                "hosts": look.hosts,
            }
            for look in self.looks
            for source in look.workers
        ]


def simulate_scaling(
    sources: Sequence[SimulatedSource],
    hosts: Sequence[HostBudget],
    *,
    rate: float,
    seconds: float,
    settings: ScalingConfig | None,
    start: Allocation | None = None,
    tick_s: float = 0.1,
    host_start_s: float = 4.0,
) -> ScalingRun:
    """Return what happens to a run.

    Args:
        sources: Traces.
        hosts: At the start; what is added is like the first of them.
        rate: Samples/s that ranks take when they do not wait.
        seconds: Of virtual time.
        settings: Of the scaler; None keeps what the run starts with.
        start: Loaders and workers; None divides by what the sources cost and are asked for at the start.
        tick_s: Of the simulation.
        host_start_s: From when a host is asked for until it can be given work.
    """
    return _Simulation(
        sources, hosts, rate=rate, settings=settings, start=start, tick_s=tick_s, host_start_s=host_start_s
    ).run(seconds)


@dataclass
class _Flow:
    source: SimulatedSource
    ready: float
    consumed: float = 0.0
    starved_s: float = 0.0

    @property
    def made(self) -> float:
        return self.consumed + self.ready


@dataclass
class _Since:
    """What happened since the last look."""

    samples: float = 0.0
    waited_s: float = 0.0
    seconds: float = field(default=1e-12)


class _Simulation:
    def __init__(
        self,
        sources: Sequence[SimulatedSource],
        hosts: Sequence[HostBudget],
        *,
        rate: float,
        settings: ScalingConfig | None,
        start: Allocation | None,
        tick_s: float,
        host_start_s: float,
    ) -> None:
        self._rate, self._settings, self._tick_s, self._host_start_s = rate, settings, tick_s, host_start_s
        self._flows = {source.name: _Flow(source, source.buffer_rows) for source in sources}
        self._hosts = {budget.host: budget for budget in hosts}
        self._like = hosts[0]
        self._coming: dict[str, float] = {}
        self._memory = ScalerMemory()
        self._at_s = 0.0
        self._since = _Since()
        self._looks: list[Look] = []
        self._decisions: list[tuple[float, str, str]] = []
        if start is None:
            demands = [self._demand(flow, 0.0, 0.0) for flow in self._flows.values()]
            start = partition_sources([one for one in demands if one.share > 0], hosts, rate=rate).allocation
            idle = [flow for flow in self._flows.values() if flow.source.name not in start]
            if idle:
                tiny = [replace(self._demand(flow, 0.0, 0.0), share=1e-9) for flow in idle]
                start = {**start, **partition_sources(tiny, hosts, rate=rate).allocation}
        self._allocation: dict[str, Any] = dict(start)

    def run(self, seconds: float) -> ScalingRun:
        interval_s = self._settings.interval_s if self._settings is not None else 1.0
        next_look = interval_s
        while self._at_s < seconds:
            self._tick()
            if self._at_s >= next_look - 1e-9:
                self._look()
                next_look += interval_s
        return ScalingRun(looks=tuple(self._looks), decisions=tuple(self._decisions), allocation=self._allocation)

    def _tick(self) -> None:
        made = self._made_in_tick()
        want = {
            name: self._rate * flow.source.share(self._at_s) * flow.source.rows_per_sample * self._tick_s
            for name, flow in self._flows.items()
        }
        for name, flow in self._flows.items():
            flow.ready = min(flow.source.buffer_rows + want[name], flow.ready + made[name])
        served = {name: min(1.0, flow.ready / want[name]) for name, flow in self._flows.items() if want[name] > 0}
        part = min(served.values(), default=1.0)
        for name, flow in self._flows.items():
            flow.ready -= want[name] * part
            flow.consumed += want[name] * part
            if name in served and served[name] <= part < 1.0:
                flow.starved_s += (1.0 - part) * self._tick_s
        self._since.samples += self._rate * self._tick_s * part
        self._since.waited_s += (1.0 - part) * self._tick_s
        self._since.seconds += self._tick_s
        self._at_s += self._tick_s

    def _made_in_tick(self) -> dict[str, float]:
        """Return the rows that the workers of each source prepare, as far as cores and buffers go."""
        busy: dict[str, dict[str, float]] = {}
        used = dict.fromkeys(self._hosts, 0.0)
        for name, flow in self._flows.items():
            room = flow.source.buffer_rows - flow.ready
            row_s = max(1e-9, flow.source.row_s(flow.made))
            seats = [seat for seat in self._allocation[name].seats if seat.host in self._hosts]
            workers = sum(seat.workers or 1 for seat in seats)
            needed = min(1.0, max(0.0, room) * row_s / (workers * self._tick_s)) if workers else 0.0
            for seat in seats:
                busy.setdefault(name, {})[seat.host] = (seat.workers or 1) * needed
                used[seat.host] += (seat.workers or 1) * needed * flow.source.cpu_share
        # Where cores are short everybody on the host goes slower alike.
        speed = {host: min(1.0, self._hosts[host].cpus / cpus) if cpus > 0 else 1.0 for host, cpus in used.items()}
        return {
            name: sum(workers * speed[host] for host, workers in busy.get(name, {}).items())
            * self._tick_s
            / max(1e-9, flow.source.row_s(flow.made))
            for name, flow in self._flows.items()
        }

    def _look(self) -> None:
        since, self._since = self._since, _Since()
        starved = {name: flow.starved_s for name, flow in self._flows.items()}
        worst = max(starved, key=lambda name: (starved[name], name))
        self._looks.append(
            Look(
                at_s=self._at_s,
                rate=since.samples / since.seconds,
                waited=since.waited_s / since.seconds,
                workers={name: self._allocation[name].workers or 0 for name in self._flows},
                occupancy={name: min(1.0, flow.ready / flow.source.buffer_rows) for name, flow in self._flows.items()},
                shares={name: flow.source.share(self._at_s) for name, flow in self._flows.items()},
                hosts=len(self._hosts),
                limited_by=worst if starved[worst] > 0 else "",
            )
        )
        for name, due in list(self._coming.items()):
            if due <= self._at_s:
                self._hosts[name] = replace(self._like, host=name)
                del self._coming[name]
        if self._settings is not None:
            self._decide(self._settings)
        for flow in self._flows.values():
            flow.starved_s = 0.0

    def _decide(self, settings: ScalingConfig) -> None:
        self._memory, decision = decide(self._memory, self._reading(settings), settings)
        self._allocation.update(decision.seatings)
        for name in decision.drain:
            del self._hosts[name]
        for _ in range(decision.add_hosts):
            number = len(self._hosts) + len(self._coming)
            self._coming[f"added-{number}-{self._at_s:.0f}"] = self._at_s + self._host_start_s
        for reason in decision.reasons:
            told = (reason.about, reason.text)
            # What stays lacking is told once.
            if not self._decisions or self._decisions[-1][1:] != told:
                self._decisions.append((self._at_s, *told))

    def _reading(self, settings: ScalingConfig) -> Reading:
        hosts = {name: HostReading(budget=budget, memory_bytes=0) for name, budget in self._hosts.items()}
        hosts |= {
            name: HostReading(budget=replace(self._like, host=name), memory_bytes=0, state="coming")
            for name in self._coming
        }
        return Reading(
            now_s=self._at_s,
            rate=self._rate,
            sources={
                name: SourceReading(
                    seating=self._allocation[name],
                    now=self._demand(flow, self._at_s, flow.made),
                    ahead=self._ahead(flow, settings.lookahead_s),
                    occupancy=min(1.0, flow.ready / flow.source.buffer_rows),
                    starved_s=flow.starved_s,
                )
                for name, flow in self._flows.items()
            },
            hosts=hosts,
        )

    def _demand(self, flow: _Flow, at_s: float, at_row: float) -> SourceDemand:
        source = flow.source
        row_s = (source.predicted_s or source.row_s)(at_row)
        cost = RowCost(prepare_s=row_s, cpu_s=row_s * source.cpu_share, transfer_s=0.0, payload_bytes=0.0)
        return SourceDemand(
            source=source.name,
            share=source.share(at_s),
            rows_per_sample=source.rows_per_sample,
            cost=cost,
            loader_bytes=source.loader_bytes,
        )

    def _ahead(self, flow: _Flow, lookahead_s: float) -> SourceDemand:
        """Return the largest need within the look-ahead."""
        rows_per_s = self._rate * flow.source.share(self._at_s) * flow.source.rows_per_sample
        points = [lookahead_s * number / LOOKS_AHEAD for number in range(LOOKS_AHEAD + 1)]
        demands = [self._demand(flow, self._at_s + ahead, flow.made + ahead * rows_per_s) for ahead in points]
        return max(demands, key=lambda one: one.share * one.cost.prepare_s)

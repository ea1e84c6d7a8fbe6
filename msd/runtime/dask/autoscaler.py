"""A timer that has sizes follow the mixture: counters in, a decision, seats out. On the supervisor's loop."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

from msd.config import PipelineConfig
from msd.core.allocation import Allocation, Seat, Seating
from msd.core.demand import HostBudget, SourceDemand
from msd.core.order import SourceOrder
from msd.cost.linear import LinearModel
from msd.cost.outlook import Outlook, Spending
from msd.errors import MsdError
from msd.loader.workers import MOST_THREADS
from msd.profiling.demands import by_samples
from msd.runtime.dask.wire import Wire
from msd.scaling.autoscale import decide
from msd.scaling.config import ScalingConfig
from msd.scaling.gauges import Counters, Gauges, SourceCounters
from msd.scaling.reading import Decision, HostReading, ScalerMemory

_LOG = logging.getLogger("msd")
KEPT = 100
"""Decisions that `engine.stats()` shows."""


class HasSizes(Protocol):
    """A run whose loaders and hosts can be looked at and changed."""

    @property
    def num_wanted(self) -> int:
        """Loader hosts that are wanted, besides those that stand by."""
        ...

    @property
    def can_add_hosts(self) -> bool:
        """Whether a loader host can be had by asking for it."""
        ...

    async def ask_planner(self, method: str, *args: Any) -> Any:
        """Return what the planner answers."""
        ...

    async def ask_hosts(self) -> list[dict[str, Any]]:
        """Return what each loader host says of itself."""
        ...

    def machines(self) -> tuple[dict[str, str], set[str]]:
        """Return the machine of each loader host, and the machines that serve ranks."""
        ...

    def note_seats(self, seats: Allocation) -> None:
        """Take which loaders there are: a planner that is made anew begins with them."""
        ...

    def want_hosts(self, count: int) -> None:
        """Have so many loader hosts, besides those that stand by."""
        ...


class Autoscaler:
    """Of one run."""

    def __init__(
        self,
        config: PipelineConfig,
        orders: Mapping[str, SourceOrder],
        demands: tuple[SourceDemand, ...],
        models: Mapping[str, LinearModel],
        run: HasSizes,
    ) -> None:
        """Get ready; `run` looks.

        Args:
            config: Of the run, with `scaling`.
            orders: The sequence of each source.
            demands: What a profile says, if there is one.
            models: Seconds from bytes, by the same profile.
            run: What is sized.
        """
        assert config.scaling is not None
        self._config = config
        self._settings: ScalingConfig = config.scaling.within(config.runtime.workers)
        self._run = run
        self._gauges = Gauges(
            {one.source: one for one in demands},
            most_loaders={name: max(1, order.windows_per_epoch) for name, order in orders.items()},
        )
        self._outlook = Outlook(orders, models)
        self._told_drifted: set[str] = set()
        self._memory = ScalerMemory()
        self._draining: dict[str, int] = {}
        """Hosts that were told to go, and the process of each: another one in its place was not."""
        self._term = 0
        """Of the planner that was asked last."""
        self._decisions: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._steps: tuple[float, int] | None = None
        self._steps_per_s = 0.0

    async def run(self) -> None:
        """Look, for ever; a look that fails is told, and the next one comes."""
        while True:
            await asyncio.sleep(self._settings.interval_s)
            try:
                await self._look()
            except MsdError as error:
                _LOG.info("sizes are left as they are for now: %s", error)
            except Exception:
                # Whatever is wrong with sizes, the run goes on without: what is delivered never depends on them.
                _LOG.warning("sizes are left as they are for now", exc_info=True)

    def stats(self) -> dict[str, Any]:
        """Return what was decided, the newest last."""
        return {
            "hosts_wanted": self._run.num_wanted,
            "decisions": list(self._decisions),
            "profile": {name: str(drift) for name, drift in self._outlook.drifts().items()},
        }

    async def _look(self) -> None:
        asked: Wire = await self._run.ask_planner("gauges", int(self._steps_per_s * self._settings.lookahead_s))
        hosts = {one["host"]: one for one in await self._run.ask_hosts()}
        self._run.note_seats(seats_from_wire(asked["seats"]) if self._memory.sources else {})
        there = {name: one["pid"] for name, one in hosts.items() if name in asked["alive"]}
        self._draining = {name: pid for name, pid in self._draining.items() if there.get(name) == pid}
        if self._draining and asked["term"] != self._term:
            # A planner that was made anew has not heard of it.
            await self._run.ask_planner("drain", list(self._draining))
        self._term = asked["term"]
        now_s = asyncio.get_running_loop().time()
        self._note_pace(now_s, int(asked["next_step"]))
        counters = self._counters(now_s, asked, hosts)
        self._note_costs(counters)
        lookahead_s = self._settings.lookahead_s
        reading = self._gauges.reading(
            counters, self._ahead(asked), lambda name: self._outlook.grows(name, lookahead_s)
        )
        if reading is None or not reading.sources:
            return
        self._memory, decision = decide(self._memory, reading, self._settings)
        if decision.seatings:
            await self._run.ask_planner("seat", seats_to_wire(decision.seatings))
        if decision.drain:
            self._draining |= {name: there[name] for name in decision.drain if name in there}
            await self._run.ask_planner("drain", list(decision.drain))
        if decision.add_hosts:
            self._run.want_hosts(self._run.num_wanted + decision.add_hosts)
        self._tell(decision)

    def _counters(self, now_s: float, asked: Wire, hosts: Mapping[str, dict[str, Any]]) -> Counters:
        totals: dict[str, dict[str, float]] = {}
        for host in hosts.values():
            for name, of_source in host["sources"].items():
                known = totals.setdefault(name, {})
                for key in _COUNTED:
                    known[key] = known.get(key, 0) + of_source.get(key, 0)
        return Counters(
            now_s=now_s,
            sources={
                name: SourceCounters(**dict.fromkeys(_COUNTED, 0) | totals.get(name, {}), **of_source)
                for name, of_source in asked["sources"].items()
            },
            seats=seats_from_wire(asked["seats"]),
            hosts=self._hosts({name: hosts[name] for name in asked["alive"] if name in hosts}),
            waited_s=float(asked["waited_s"]),
            can_add_hosts=self._run.can_add_hosts,
        )

    def _hosts(self, there: Mapping[str, dict[str, Any]]) -> dict[str, HostReading]:
        """Return the hosts that do not stand by, and those that were asked for and have not come."""
        machines, training = self._run.machines()
        sharing = Counter(machines.get(name, "") for name in there)
        most = self._settings.max_hosts or 1
        found = {}
        for name, one in there.items():
            machine = machines.get(name, "")
            found[name] = HostReading(
                budget=self._budget(name, one, max(most, sharing[machine]), is_training=machine in training),
                memory_bytes=int(one.get("pss_bytes") or 0),
                state="draining" if name in self._draining else "up",
            )
        for like in [*found.values()][:1]:
            for number in range(self._run.num_wanted - len(there)):
                name = f"host to come {number + 1}"
                budget = replace(like.budget, host=name)
                found[name] = HostReading(budget=budget, memory_bytes=0, state="coming")
        return found

    def _note_pace(self, now_s: float, step: int) -> None:
        """Take how far planning has come: it says how many steps lie within the look-ahead."""
        before, self._steps = self._steps, (now_s, step)
        if before is not None:
            self._steps_per_s = max(0, step - before[1]) / max(1e-6, now_s - before[0])

    def _ahead(self, asked: Wire) -> Callable[[str, float], float]:
        """Return the peak share of each source within the look-ahead, where shares are known to turn."""
        turns = asked["shares_ahead"]
        if all(shares == turns[0] for shares in turns):
            return lambda name, share: share
        samples = {name: one["samples"] for name, one in asked["sources"].items()}
        tokens = {name: count / samples[name] for name, count in asked["tokens"].items() if samples[name]}
        peaks: dict[str, float] = {}
        for shares in turns:
            for name, share in by_samples(shares, tokens, unit=self._config.mixture.unit).items():
                peaks[name] = max(peaks.get(name, 0.0), share)
        return lambda name, share: peaks.get(name, share)

    def _note_costs(self, counters: Counters) -> None:
        """Have the ledgers know what rows took; say once of a source that its profile holds no more."""
        self._outlook.note(
            counters.now_s,
            {
                name: Spending(int(one.consumed), one.rows_transformed, one.transform_s, one.transform_cpu_s)
                for name, one in counters.sources.items()
            },
        )
        for name, drift in self._outlook.drifts().items():
            if drift.is_drifted and name not in self._told_drifted:
                self._told_drifted.add(name)
                _LOG.warning("%s: %s", name, drift)

    def _budget(self, name: str, host: Mapping[str, Any], num_sharing: int, *, is_training: bool) -> HostBudget:
        """Return the bounds of a host: what is configured, else its share of its machine; half of the memory stays."""
        cores, memory = self._settings.cpus, self._settings.memory
        assert not isinstance(memory, str), "a size is a number once it was checked"
        return HostBudget(
            host=name,
            cpus=host["cores"] / num_sharing if cores is None else cores,
            memory_bytes=host["memory_bytes"] // 2 // num_sharing if memory is None else memory,
            is_training=is_training,
            most_workers=MOST_THREADS,
        )

    def _tell(self, decision: Decision) -> None:
        for reason in decision.reasons:
            if self._decisions and self._decisions[-1]["why"] == reason.text:
                continue
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._decisions.append({"at": at, "about": reason.about, "why": reason.text})
            _LOG.info("%s: %s", reason.about, reason.text)


_COUNTED = ("rows_examined", "parts", "rows_transformed", "transform_s", "transform_cpu_s")


def seats_to_wire(allocation: Allocation) -> Wire:
    """Return seats as plain values."""
    return {
        source: {
            "striped": seating.is_striped,
            "seats": [[seat.partition, seat.host, seat.workers] for seat in seating.seats],
        }
        for source, seating in allocation.items()
    }


def seats_from_wire(wire: Wire) -> dict[str, Seating]:
    """Return what `seats_to_wire` was given."""
    return {
        source: Seating(tuple(Seat(*seat) for seat in one["seats"]), one["striped"]) for source, one in wire.items()
    }

"""A timer that has sizes follow the mixture: counters in, a decision, seats out. On the supervisor's loop."""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from msd.config import PipelineConfig
from msd.core.allocation import Allocation, Seat, Seating
from msd.core.demand import HostBudget, SourceDemand
from msd.core.order import SourceOrder
from msd.cost.ahead import bytes_of_row
from msd.errors import MsdError
from msd.loader.workers import MOST_THREADS
from msd.planner.mixture.schedule import MixtureSchedule
from msd.profiling.demands import by_samples
from msd.runtime.dask.wire import Wire
from msd.scaling.autoscale import decide
from msd.scaling.config import ScalingConfig
from msd.scaling.gauges import Counters, Gauges, SourceCounters
from msd.scaling.reading import Decision, ScalerMemory

_LOG = logging.getLogger("msd")
KEPT = 100
"""Decisions that `engine.stats()` shows."""


class Autoscaler:
    """Of one run."""

    def __init__(
        self,
        config: PipelineConfig,
        orders: Mapping[str, SourceOrder],
        demands: tuple[SourceDemand, ...],
        *,
        ask: Callable[..., Awaitable[Any]],
        ask_hosts: Callable[[], Awaitable[list[dict[str, Any]]]],
    ) -> None:
        """Get ready; `run` looks.

        Args:
            config: Of the run, with `scaling`.
            orders: The sequence of each source.
            demands: What a profile says, if there is one.
            ask: Asks the planner: a method, and what it takes.
            ask_hosts: Returns what each loader host says of itself.
        """
        assert config.scaling is not None
        self._config, self._orders = config, orders
        self._settings: ScalingConfig = config.scaling
        self._ask, self._ask_hosts = ask, ask_hosts
        self._gauges = Gauges(
            {one.source: one for one in demands},
            self._budget,
            most_loaders={name: max(1, order.windows_per_epoch) for name, order in orders.items()},
        )
        rows = {name: order.rows_per_epoch for name, order in orders.items()}
        self._schedule = MixtureSchedule.of(
            list(config.sources), config.mixture, rows=rows, num_microbatches=config.num_microbatches
        )
        self._memory = ScalerMemory()
        self._num_hosts = config.runtime.workers
        self._decisions: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._steps: tuple[float, int] | None = None

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
        return {"decisions": list(self._decisions)}

    async def _look(self) -> None:
        asked: Wire = await self._ask("gauges")
        hosts = {one["host"]: one for one in await self._ask_hosts()}
        now_s = asyncio.get_running_loop().time()
        ahead = self._ahead(now_s, asked)
        reading = self._gauges.reading(self._counters(now_s, asked, hosts), ahead, self._grows(asked))
        if reading is None or not reading.sources:
            return
        self._memory, decision = decide(self._memory, reading, self._settings)
        if decision.seatings:
            await self._ask("seat", seats_to_wire(decision.seatings))
        self._tell(decision)

    def _counters(self, now_s: float, asked: Wire, hosts: Mapping[str, dict[str, Any]]) -> Counters:
        totals: dict[str, dict[str, float]] = {}
        for host in hosts.values():
            for name, of_source in host["sources"].items():
                known = totals.setdefault(name, {})
                for key in _COUNTED:
                    known[key] = known.get(key, 0) + of_source.get(key, 0)
        self._num_hosts = max(1, len(asked["alive"]))
        return Counters(
            now_s=now_s,
            sources={
                name: SourceCounters(**dict.fromkeys(_COUNTED, 0) | totals.get(name, {}), **of_source)
                for name, of_source in asked["sources"].items()
            },
            seats=seats_from_wire(asked["seats"]),
            hosts={name: int(hosts[name].get("pss_bytes") or 0) for name in asked["alive"] if name in hosts},
        )

    def _ahead(self, now_s: float, asked: Wire) -> Callable[[str, float], float]:
        """Return the peak share of each source within the look-ahead, where the schedule goes by steps."""
        step = int(asked["next_step"])
        before, self._steps = self._steps, (now_s, step)
        if self._config.mixture.clock != "step" or before is None or step <= before[1]:
            return lambda name, share: share
        steps_per_s = (step - before[1]) / max(1e-6, now_s - before[0])
        last = step + int(steps_per_s * self._settings.lookahead_s)
        turns, turn = [step, last], self._schedule.next_turn(step)
        while turn is not None and turn < last:
            turns.append(turn)
            turn = self._schedule.next_turn(turn)
        samples = {name: one["samples"] for name, one in asked["sources"].items()}
        tokens = {name: count / samples[name] for name, count in asked["tokens"].items() if samples[name]}
        peaks: dict[str, float] = {}
        for count in turns:
            shares = dict(zip(self._schedule.names, self._schedule.shares(count), strict=True))
            for name, share in by_samples(shares, tokens, unit=self._config.mixture.unit).items():
                peaks[name] = max(peaks.get(name, 0.0), share)
        return lambda name, share: peaks.get(name, share)

    def _grows(self, asked: Wire) -> Callable[[str], float]:
        """Return how much larger the rows of the window after the present one are, by the index."""

        def grows(name: str) -> float:
            order, at = self._orders[name], int(asked["sources"][name]["consumed"])
            if not order.rows_per_epoch:
                return 1.0
            window = order.window_at(at)
            now, later = bytes_of_row(order, at), bytes_of_row(order, window.first_ordinal + window.num_rows)
            return max(1.0, later / now) if now > 0 else 1.0

        return grows

    def _budget(self, host: str) -> HostBudget:
        cores, memory = self._settings.cpus, self._settings.memory
        assert not isinstance(memory, str), "a size is a number once it was checked"
        of_machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
        return HostBudget(
            host=host,
            cpus=len(os.sched_getaffinity(0)) / self._num_hosts if cores is None else cores,
            memory_bytes=of_machine // self._num_hosts if memory is None else memory,
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

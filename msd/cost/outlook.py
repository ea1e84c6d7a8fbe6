"""What rows to come are predicted to take while a run goes on, and whether its profile still holds. No clock."""

from collections.abc import Mapping
from dataclasses import dataclass

from msd.core.order import SourceOrder
from msd.cost.ahead import bytes_of_row, seconds_ahead
from msd.cost.features import BYTES
from msd.cost.ledger import Batch, Drift, Ledger
from msd.cost.linear import LinearModel

MOST_WINDOWS = 64
"""Looked at ahead, at most."""
TELLING = 1.2
"""Times the smallest rows of a ledger that its largest must be for it to say how seconds grow with bytes."""
_BYTES_ALONE = LinearModel((BYTES,), (1.0,), 0.0, (0.0,), (float("inf"),))
"""As long as nothing else is known: rows take as long as they are large."""


@dataclass(frozen=True, slots=True)
class Spending:
    """Totals of one source, at a moment."""

    consumed: int
    """Rows that planning has come past."""
    rows: float
    """That went through the transforms."""
    worker_s: float
    cpu_s: float


class Outlook:
    """Of all sources of a run: ledgers that are refitted as rows turn out to take."""

    def __init__(self, orders: Mapping[str, SourceOrder], profiled: Mapping[str, LinearModel]) -> None:
        """Have seen nothing.

        Args:
            orders: The sequence of each source.
            profiled: Seconds from bytes, of those that were profiled: `SourceProfile.block_model`.
        """
        self._orders = orders
        self._profiled = profiled
        self._ledgers = {name: Ledger() for name in orders}
        self._last: tuple[float, Mapping[str, Spending]] | None = None
        self._rows_per_s: dict[str, float] = {}

    def note(self, now_s: float, spent: Mapping[str, Spending]) -> None:
        """Take what sources took up to now; totals that began anew say nothing until the next time."""
        last, self._last = self._last, (now_s, spent)
        if last is None or now_s <= last[0]:
            return
        for name, now in spent.items():
            before = last[1].get(name)
            if before is None or name not in self._ledgers or now.rows < before.rows or now.consumed < before.consumed:
                continue
            self._rows_per_s[name] = (now.consumed - before.consumed) / (now_s - last[0])
            rows = int(now.rows - before.rows)
            worker_s, cpu_s = now.worker_s - before.worker_s, now.cpu_s - before.cpu_s
            # Of a source without an end no index says how many bytes its rows have.
            has_index = self._orders[name].rows_per_epoch and not self._orders[name].is_unbounded
            if rows and worker_s > 0 and has_index:
                num_bytes = rows * bytes_of_row(self._orders[name], now.consumed)
                self._ledgers[name].add(Batch(rows, num_bytes, worker_s, max(0.0, cpu_s)))

    def grows(self, source: str, seconds: float) -> float:
        """Return how many times as long as now the rows of the next seconds take, 1 at least.

        By the index, which knows the bytes of rows that nobody has read, and by how seconds grew with bytes so far. The
        longest window within that time counts: a mean over all of it would be late.
        """
        order, last = self._orders[source], self._last
        if not order.rows_per_epoch or order.is_unbounded or last is None or source not in last[1]:
            return 1.0
        at, model = last[1][source].consumed, self._model(source)
        now_s = seconds_ahead(order, model, at, at + 1)
        until = at + int(self._rows_per_s.get(source, 0.0) * seconds)
        window = order.window_at(at)
        longest = 0.0
        for _ in range(MOST_WINDOWS):
            start = window.first_ordinal + window.num_rows
            window = order.window_at(start)
            longest = max(longest, seconds_ahead(order, model, start, start + 1))
            if start > until:
                break
        return max(1.0, longest / now_s) if now_s > 0 else 1.0

    def drifts(self) -> dict[str, Drift]:
        """Return by source how far its profile is from what rows take now, as far as both are known."""
        found = {}
        for name, model in self._profiled.items():
            drift = self._ledgers[name].drift(model) if name in self._ledgers else None
            if drift is not None:
                found[name] = drift
        return found

    def _model(self, source: str) -> LinearModel:
        refitted = self._ledgers[source].refit()
        if refitted is not None and refitted.high[0] >= TELLING * refitted.low[0] > 0:
            return refitted
        return self._profiled.get(source, _BYTES_ALONE)

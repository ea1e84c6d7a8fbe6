"""Make a division of workers sustain more, move by move, where what limits it is."""

# S = sources. H = hosts.

from collections.abc import Iterator, Sequence

import numpy as np

from msd.core.arrays import Float64Array, Int64Array
from msd.core.demand import HostBudget, SourceDemand

MOST_TRIES = 20_000
"""Divisions that are looked at: a second for hundreds of sources and hosts."""
NEAR_HOSTS = 6
"""Other hosts, those with most room, that are tried for what one host has too much of."""
_GAIN = 1e-6
"""Relative gain below which a move is not worth it."""
_NUM_BOUNDS = 3
"""Of two divisions that sustain the same, the one whose next tightest bounds are wider is better."""


class Division:
    """Workers of each source on each host, and what bounds the rate that they sustain together."""

    def __init__(self, demands: Sequence[SourceDemand], hosts: Sequence[HostBudget], workers_SH: Int64Array) -> None:
        """Take a division in which every source has a worker somewhere."""
        rows = [demand.share * demand.rows_per_sample for demand in demands]
        self._prepare_S = np.array([row * demand.cost.prepare_s for row, demand in zip(rows, demands, strict=True)])
        self._cpu_S = np.array(
            [row * (one.cost.cpu_s + one.cost.transfer_s) for row, one in zip(rows, demands, strict=True)]
        )
        self._loader_S = np.array([demand.loader_bytes for demand in demands])
        self._worker_S = np.array([demand.worker_bytes for demand in demands])
        self._most_S = np.array([demand.most_loaders for demand in demands])
        self._cpus_H = np.array([host.cpus for host in hosts])
        self._most_H = np.array([float(host.most_workers) for host in hosts])
        self._memory_H = np.array([host.memory_bytes for host in hosts])
        self.workers_SH = workers_SH.copy()
        self._num_tries = 0
        self._settle()

    @property
    def is_allowed(self) -> bool:
        """Whether it lies within the bounds of memory and of loaders."""
        num_loaders_S = np.count_nonzero(self.workers_SH, axis=1)
        return bool((self._held_H <= self._memory_H).all() and (num_loaders_S <= self._most_S).all())

    @property
    def rate(self) -> float:
        """Samples/s that it sustains."""
        return float(self._bounds[0])

    def improve(self) -> None:
        """Make moves until none helps any more, or enough were tried."""
        while self._num_tries < MOST_TRIES:
            best, chosen = self._bounds, None
            for move in self._moves():
                self._num_tries += 1
                bounds = self._tried(move)
                if bounds is not None and _is_better(bounds, best):
                    best, chosen = bounds, move
            if chosen is None:
                return
            for source, host, change in chosen:
                self.workers_SH[source, host] += change
            self._settle()

    def _settle(self) -> None:
        total_S = self.workers_SH.sum(axis=1)
        part_SH = self.workers_SH / total_S[:, None]
        self._used_H = self._cpu_S @ part_SH
        self._busy_H = self._prepare_S @ part_SH
        self._bound_S = _over(total_S, self._prepare_S)
        held_SH = self.workers_SH > 0
        self._held_H = self._loader_S @ held_SH + self._worker_S @ np.where(held_SH, self.workers_SH - 1, 0)
        self._bound_H = self._of_hosts(self._used_H, self._busy_H)
        self._bounds = _tightest(self._bound_S, self._bound_H)

    def _of_hosts(self, used_H: Float64Array, busy_H: Float64Array) -> Float64Array:
        return np.minimum(_over(self._cpus_H, used_H), _over(self._most_H, busy_H))

    def _moves(self) -> Iterator[tuple[tuple[int, int, int], ...]]:
        """Yield moves that might widen the tightest bound: (source, host, change of workers) each."""
        source, host = int(np.argmin(self._bound_S)), int(np.argmin(self._bound_H))
        if self._bound_S[source] <= self._bound_H[host]:
            for other in self._roomiest():
                yield ((source, other, 1),)
        if self._bound_H[host] > self.rate * (1 + 1e-9):
            return
        here = np.flatnonzero(self.workers_SH[:, host]).tolist()
        others = [other for other in self._roomiest() if other != host]
        for source in here:
            if self.workers_SH[source].sum() > 1:
                yield ((source, host, -1),)
            for other in others:
                yield ((source, other, 1),)
                yield (source, host, -1), (source, other, 1)
                whole = int(self.workers_SH[source, host])
                if whole > 1:
                    yield (source, host, -whole), (source, other, whole)
                for back in np.flatnonzero(self.workers_SH[:, other]).tolist():
                    if back != source:
                        yield (source, host, -1), (source, other, 1), (back, other, -1), (back, host, 1)

    def _roomiest(self) -> list[int]:
        order_H: list[int] = np.argsort(-self._bound_H, kind="stable").tolist()
        return order_H[: NEAR_HOSTS + 1]

    def _tried(self, move: tuple[tuple[int, int, int], ...]) -> Float64Array | None:
        """Return the bounds after a move, None if it is not allowed."""
        used_H, busy_H, bound_S = self._used_H, self._busy_H, self._bound_S.copy()
        held_H = self._held_H.copy()
        changes: dict[int, Int64Array] = {}
        for source, host, change in move:
            changes.setdefault(source, self.workers_SH[source].copy())[host] += change
        for source, after_H in changes.items():
            before_H, total = self.workers_SH[source], int(after_H.sum())
            if total < 1 or after_H.min() < 0 or np.count_nonzero(after_H) > self._most_S[source]:
                return None
            moved_H = after_H / total - before_H / before_H.sum()
            used_H, busy_H = used_H + self._cpu_S[source] * moved_H, busy_H + self._prepare_S[source] * moved_H
            bound_S[source] = total / self._prepare_S[source] if self._prepare_S[source] > 0 else np.inf
            held_H += self._bytes(source, after_H) - self._bytes(source, before_H)
        if (held_H > self._memory_H).any():
            return None
        return _tightest(bound_S, self._of_hosts(used_H, busy_H))

    def _bytes(self, source: int, workers_H: Int64Array) -> Int64Array:
        held_H = workers_H > 0
        return np.where(held_H, self._loader_S[source] + (workers_H - 1) * self._worker_S[source], 0)


def spread_workers(demands: Sequence[SourceDemand], hosts: Sequence[HostBudget]) -> Int64Array:
    """Return workers of every source on every host that has cores, as many as all cores together keep busy."""
    rows_S = np.array([demand.share * demand.rows_per_sample for demand in demands])
    cpu_S = rows_S * [demand.cost.cpu_s + demand.cost.transfer_s for demand in demands]
    prepare_S = rows_S * [demand.cost.prepare_s for demand in demands]
    part_H = np.array([max(0.0, host.cpus) for host in hosts])
    rate = part_H.sum() / cpu_S.sum() if cpu_S.sum() > 0 else 0.0
    needed_SH = np.outer(prepare_S * rate, part_H / max(1e-12, part_H.sum()))
    workers_SH = np.ceil(needed_SH - 1e-9).astype(np.int64)
    least_H: Int64Array = (part_H > 0).astype(np.int64)
    found: Int64Array = np.maximum(workers_SH, least_H[None, :])
    return found


def _over(there: Float64Array | Int64Array, used: Float64Array) -> Float64Array:
    """Return one over the other, without bound where nothing is used."""
    found: Float64Array = np.divide(there, used, out=np.full(len(used), np.inf), where=used > 1e-15)
    return found


def _tightest(bound_S: Float64Array, bound_H: Float64Array) -> Float64Array:
    found: Float64Array = np.sort(np.concatenate([bound_S, bound_H]))[:_NUM_BOUNDS]
    return found


def _is_better(bounds: Float64Array, than: Float64Array) -> bool:
    """Return whether bounds, the tightest first, are wider."""
    for one, other in zip(bounds.tolist(), than.tolist(), strict=True):
        if one > other * (1 + _GAIN):
            return True
        if one < other * (1 - _GAIN):
            return False
    return False

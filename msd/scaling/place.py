"""Put what sources need onto hosts, within hard bounds: training hosts first, each as full as others of its kind."""

# H = hosts.

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from msd.core.arrays import Float64Array, Int64Array
from msd.core.demand import HostBudget
from msd.scaling.need import EPSILON, Need, memory_of


@dataclass(frozen=True, slots=True)
class Part:
    """Workers of a source on one host: they become a loader."""

    source: str
    host: str
    workers: int
    need: float
    """Of those, busy at once."""
    cpus: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Placed:
    """Where needs were put, and what found no room."""

    parts: tuple[Part, ...]
    unmet: dict[str, int]
    """By source, the workers without a place: all of them where it has no loader."""


def place(needs: Iterable[Need], hosts: Sequence[HostBudget]) -> Placed:
    """Put needs onto hosts; deterministic.

    The largest needs go first. Each goes whole to the emptiest host of the first kind that has room, training hosts
    before others; one that fits nowhere as a whole is divided worker by worker, the largest piece first.
    """
    rooms = _Rooms(hosts)
    unmet: dict[str, int] = {}
    for need in sorted(needs, key=lambda need: (-need.cpus, -need.workers, need.source)):
        left = rooms.put(need)
        if left:
            unmet[need.source] = left
    return Placed(tuple(rooms.parts), unmet)


class _Rooms:
    """What is left of each host."""

    def __init__(self, hosts: Sequence[HostBudget]) -> None:
        self.parts: list[Part] = []
        self._hosts = hosts
        self._cpus_H = np.array([host.cpus for host in hosts], dtype=np.float64)
        self._all_H = np.maximum(self._cpus_H, 1e-300)
        self._memory_H = np.array([host.memory_bytes for host in hosts], dtype=np.float64)
        self._most_H = np.array([host.most_workers for host in hosts], dtype=np.float64)
        self._need_H = np.zeros(len(hosts))
        """Workers busy at once, of all that was put there."""
        self._name_H = np.argsort(np.argsort([host.host for host in hosts]))
        is_training_H = np.array([host.is_training for host in hosts], dtype=bool)
        self._kinds = [is_training_H, ~is_training_H]
        self._has_cpus_H = (self._cpus_H > 0) & (self._most_H >= 1)

    def put(self, need: Need) -> int:
        """Put a need and return how many of its workers found no room."""
        left, num_loaders = need.slots, 0
        for kind_H in self._kinds:
            if not kind_H.any():
                continue
            most_H = np.where(kind_H, self._workers(need), 0)
            whole = np.flatnonzero(most_H >= left)
            if len(whole) and num_loaders < need.demand.most_loaders:
                self._take(need, self._emptiest(whole), left)
                return 0
            some = np.flatnonzero(most_H > 0)
            order = np.lexsort((self._name_H[some], self._fullness(some), -most_H[some]))
            for host in some[order].tolist():
                if left == 0 or num_loaders == need.demand.most_loaders:
                    return left
                taken = min(left, int(most_H[host]))
                self._take(need, host, taken)
                left -= taken
                num_loaders += 1
        return left

    def _workers(self, need: Need) -> Int64Array:
        """Return how many workers of a need fit on each host at most, of those that it has."""
        demand, slots = need.demand, need.slots
        bound_H = np.full(len(self._hosts), float(slots))
        if need.cpus > 0:
            np.minimum(bound_H, (self._cpus_H + EPSILON) * (slots / need.cpus), out=bound_H)
        if need.workers > 0:
            np.minimum(bound_H, (self._most_H - self._need_H + EPSILON) * (slots / need.workers), out=bound_H)
        free_H = self._memory_H - demand.loader_bytes
        if demand.worker_bytes > 0:
            np.minimum(bound_H, 1.0 + np.floor(free_H / demand.worker_bytes), out=bound_H)
        fits_H = (free_H >= 0) & self._has_cpus_H & (bound_H >= 1.0)
        return np.where(fits_H, np.floor(bound_H), 0.0).astype(np.int64)

    def _emptiest(self, hosts: Int64Array) -> int:
        for key_of in (self._fullness, self._need_H.__getitem__, self._name_H.__getitem__):
            key = key_of(hosts)
            hosts = hosts[key == key.min()]
        return int(hosts[0])

    def _fullness(self, hosts: Int64Array) -> Float64Array:
        found: Float64Array = 1.0 - self._cpus_H[hosts] / self._all_H[hosts]
        return found

    def _take(self, need: Need, host: int, workers: int) -> None:
        share = workers / need.slots
        memory = memory_of(need.demand, workers)
        self._cpus_H[host] -= need.cpus * share
        self._memory_H[host] -= memory
        self._need_H[host] += need.workers * share
        name = self._hosts[host].host
        self.parts.append(Part(need.source, name, workers, need.workers * share, need.cpus * share, memory))

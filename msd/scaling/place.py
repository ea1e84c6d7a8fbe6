"""Put what sources need onto hosts, within hard bounds: training hosts first, each as full as others of its kind."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Room:
    """What is left of a host."""

    budget: HostBudget
    cpus: float = field(init=False)
    memory_bytes: int = field(init=False)
    need: float = 0.0
    """Workers busy at once, of all that was put here."""

    def __post_init__(self) -> None:
        self.cpus = self.budget.cpus
        self.memory_bytes = self.budget.memory_bytes

    @property
    def fullness(self) -> float:
        """Share of the cores in use."""
        return 1.0 - self.cpus / self.budget.cpus if self.budget.cpus > 0 else 1.0

    def most_of(self, need: Need) -> int:
        """Return how many workers of a need fit at most, of those that it has."""
        demand, slots = need.demand, need.slots
        if demand.loader_bytes > self.memory_bytes or self.budget.cpus <= 0 or self.budget.most_workers < 1:
            return 0
        bounds = [float(slots)]
        if need.cpus > 0:
            bounds.append((self.cpus + EPSILON) * slots / need.cpus)
        if need.workers > 0:
            bounds.append((self.budget.most_workers - self.need + EPSILON) * slots / need.workers)
        if demand.worker_bytes > 0:
            bounds.append(1 + (self.memory_bytes - demand.loader_bytes) // demand.worker_bytes)
        return max(0, math.floor(min(bounds)))

    def put(self, need: Need, workers: int) -> Part:
        """Take so many workers of a need here."""
        share = workers / need.slots
        memory = memory_of(need.demand, workers)
        self.cpus -= need.cpus * share
        self.memory_bytes -= memory
        self.need += need.workers * share
        return Part(need.source, self.budget.host, workers, need.workers * share, need.cpus * share, memory)


@dataclass(frozen=True, slots=True)
class Placed:
    """Where needs were put, and what found no room."""

    parts: tuple[Part, ...]
    unmet: dict[str, int]
    """By source, the workers without a place: all of them where it has no loader."""
    rooms: tuple[Room, ...]
    """What is left, in the order of the hosts."""


def place(needs: Iterable[Need], hosts: Sequence[HostBudget]) -> Placed:
    """Put needs onto hosts; deterministic.

    The largest needs go first. Each goes whole to the emptiest host of the first kind that has room, training hosts
    before others; one that fits nowhere as a whole is divided worker by worker, the largest piece first.
    """
    rooms = [Room(budget) for budget in hosts]
    parts: list[Part] = []
    unmet: dict[str, int] = {}
    for need in sorted(needs, key=lambda need: (-need.cpus, -need.workers, need.source)):
        left = _put(need, rooms, parts)
        if left:
            unmet[need.source] = left
    return Placed(tuple(parts), unmet, tuple(rooms))


def _put(need: Need, rooms: Sequence[Room], parts: list[Part]) -> int:
    """Put a need and return how many of its workers found no room."""
    left, num_loaders = need.slots, 0
    for is_training in (True, False):
        most = {room.budget.host: room.most_of(need) for room in rooms if room.budget.is_training is is_training}
        of_kind = [room for room in rooms if most.get(room.budget.host, 0) > 0]
        whole = [room for room in of_kind if most[room.budget.host] >= left]
        if whole and num_loaders < need.demand.most_loaders:
            parts.append(min(whole, key=lambda room: (room.fullness, room.need, room.budget.host)).put(need, left))
            return 0
        for room in sorted(of_kind, key=lambda room: (-most[room.budget.host], room.fullness, room.budget.host)):
            if left == 0 or num_loaders == need.demand.most_loaders:
                return left
            taken = min(left, most[room.budget.host])
            parts.append(room.put(need, taken))
            left -= taken
            num_loaders += 1
    return left

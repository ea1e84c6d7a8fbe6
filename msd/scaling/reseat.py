"""Give sources other numbers of workers by moving as little as can be, within the hard bounds of hosts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from msd.core.allocation import Allocation, Seat, Seating
from msd.core.demand import HostBudget
from msd.scaling.need import EPSILON


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the loaders of a source take of a host."""

    worker_cpus: float
    """Cores of each worker, on average."""
    loader_bytes: int
    worker_bytes: int
    """Of each worker beyond a loader's first."""
    most_loaders: int


@dataclass(frozen=True, slots=True)
class Reseated:
    """New seatings of the sources that changed."""

    seatings: Allocation
    unmet: Mapping[str, int]
    """By source, the workers that found no room on any host."""


@dataclass(slots=True)
class _Room:
    budget: HostBudget
    cpus: float
    memory_bytes: int
    workers: int


class Reseating:
    """Works out new seatings. Made for one decision, then thrown away."""

    def __init__(
        self,
        seatings: Allocation,
        loads: Mapping[str, Load],
        hosts: Mapping[str, HostBudget],
        next_partitions: Mapping[str, int],
    ) -> None:
        """Begin with the seats there are.

        Args:
            seatings: Of all sources. Seats on hosts that are not named below have to move.
            loads: Of all sources.
            hosts: That may be used.
            next_partitions: By source, the first number that no loader ever had.
        """
        self._before = dict(seatings)
        self._loads = loads
        self._next = dict(next_partitions)
        self._unmet: dict[str, int] = {}
        self._rooms = {name: _Room(one, one.cpus, one.memory_bytes, one.most_workers) for name, one in hosts.items()}
        self._seats = {
            # Where a loader had whatever was idle it has a number from now on.
            source: [replace(seat, workers=seat.workers or 1) for seat in seating.seats]
            for source, seating in seatings.items()
        }
        for source, seats in self._seats.items():
            for seat in seats:
                self._take(source, seat.host, _workers(seat), is_new=True)

    def move_off(self, source: str) -> None:
        """Move the workers of a source that lie on hosts which may not be used any more, as far as there is room."""
        going = [seat for seat in self._seats[source] if seat.host not in self._rooms]
        lacking = 0
        for seat in going:
            self._seats[source].remove(seat)
            left = self._add(source, _workers(seat))
            lacking += left
            if left and not self._seats[source]:
                # Better where it is than nowhere.
                self._seats[source].append(seat)
        if lacking:
            self._unmet[source] = self._unmet.get(source, 0) + lacking

    def set_workers(self, source: str, workers: int) -> None:
        """Have a source have so many workers, as far as there is room; at least one stays."""
        there = sum(map(_workers, self._seats[source]))
        if workers > there:
            left = self._add(source, workers - there)
            if left:
                self._unmet[source] = self._unmet.get(source, 0) + left
        elif workers < there:
            self._remove(source, there - max(1, workers))

    def result(self) -> Reseated:
        """Return what changed."""
        changed = {
            source: Seating(tuple(seats), self._before[source].is_striped)
            for source, seats in self._seats.items()
            if tuple(seats) != self._before[source].seats
        }
        return Reseated(changed, self._unmet)

    def _add(self, source: str, workers: int) -> int:
        """Give a source more workers and return how many found no room."""
        seats, left = self._seats[source], workers
        # Where it has a loader already nothing has to be opened.
        for number, seat in enumerate(seats):
            if taken := min(left, self._free(source, seat.host, is_new=False)):
                self._take(source, seat.host, taken, is_new=False)
                seats[number] = replace(seat, workers=_workers(seat) + taken)
                left -= taken
        while left and len(seats) < self._loads[source].most_loaders:
            host = self._best(source, left)
            if host is None:
                break
            taken = min(left, self._free(source, host, is_new=True))
            self._take(source, host, taken, is_new=True)
            seats.append(Seat(self._next[source], host, taken))
            self._next[source] += 1
            left -= taken
        return left

    def _remove(self, source: str, workers: int) -> None:
        seats, left = self._seats[source], workers
        # Far and small ones first: what stays is near, and few.
        for seat in sorted(seats, key=lambda one: (self._is_training(one.host), _workers(one), -one.partition)):
            there, number = _workers(seat), seats.index(seat)
            taken = min(left, there if len(seats) > 1 else there - 1)
            left -= taken
            self._take(source, seat.host, -taken, is_new=False)
            if taken == there:
                del seats[number]
            else:
                seats[number] = replace(seat, workers=there - taken)

    def _best(self, source: str, wanted: int) -> str | None:
        """Return the host for another loader: near before far, one that has room for all, then the emptiest."""
        held = {seat.host for seat in self._seats[source]}
        free = {name: self._free(source, name, is_new=True) for name in self._rooms if name not in held}

        def rank(name: str) -> tuple[bool, int, float, str]:
            room = self._rooms[name]
            return not self._is_training(name), -min(wanted, free[name]), -room.cpus / room.budget.cpus, name

        return min((name for name, most in free.items() if most), key=rank, default=None)

    def _free(self, source: str, host: str, *, is_new: bool) -> int:
        """Return how many more workers of a source a host has room for."""
        room, load = self._rooms.get(host), self._loads[source]
        if room is None:
            return 0
        memory = room.memory_bytes - (load.loader_bytes if is_new else 0)
        if memory < 0 or room.budget.cpus <= 0:
            return 0
        bounds = [float(room.workers)]
        if load.worker_cpus > 0:
            bounds.append((room.cpus + EPSILON) / load.worker_cpus)
        if load.worker_bytes > 0:
            bounds.append(memory // load.worker_bytes + (1 if is_new else 0))
        return max(0, math.floor(min(bounds)))

    def _take(self, source: str, host: str, workers: int, *, is_new: bool) -> None:
        room, load = self._rooms.get(host), self._loads[source]
        if room is None:
            return
        room.cpus -= workers * load.worker_cpus
        room.workers -= workers
        paid = load.loader_bytes + (workers - 1) * load.worker_bytes if is_new else workers * load.worker_bytes
        room.memory_bytes -= paid

    def _is_training(self, host: str) -> bool:
        return host in self._rooms and self._rooms[host].budget.is_training


def _workers(seat: Seat) -> int:
    return seat.workers or 1

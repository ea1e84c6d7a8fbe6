"""Who owns which window of which source: versioned, changeable at any moment, never an input of what is delivered.

A change that somebody wants, rather than suffers, holds from an ordinal on that nobody was asked for yet: what came
before stays with who prepares it, until it is delivered. So nothing is transformed twice because work was moved.
"""

# D = documents of a step. N = ordinals.

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from msd.core.allocation import STRIPE_ROWS, Allocation, Seat, Seating
from msd.core.arrays import Int64Array
from msd.core.order import SourceOrder
from msd.core.plan import StepPlan

Owners: TypeAlias = Mapping[str, Mapping[int, tuple[str, int]]]
"""By source and ordinal: the host and partition that prepare the row."""


@dataclass(frozen=True, slots=True)
class Era:
    """Who owns the rows of a source from an ordinal on, until the next era begins."""

    start: int
    seating: Seating


@dataclass(frozen=True, slots=True)
class Placement:
    """The loaders of each source, by era. Windows, counted through all epochs, go to the loaders of an era in turn."""

    version: int
    eras: Mapping[str, tuple[Era, ...]]
    """By source, at least one, in order of their starts; the first starts at 0."""
    alive: tuple[str, ...]
    """The hosts there are, also those that hold no loader yet."""

    @classmethod
    def of(cls, version: int, hosts: Mapping[str, Sequence[str]], alive: Sequence[str]) -> "Placement":
        """Return a placement of one era, from the host of each loader of each source."""
        seatings = {
            source: Seating(tuple(Seat(number, host) for number, host in enumerate(of_source)))
            for source, of_source in hosts.items()
        }
        return cls.seated(version, seatings, alive)

    @classmethod
    def seated(cls, version: int, allocation: Allocation, alive: Sequence[str]) -> "Placement":
        """Return a placement of one era, with the loaders of an allocation."""
        return cls(version, {source: (Era(0, seating),) for source, seating in allocation.items()}, tuple(alive))

    @property
    def hosts(self) -> Mapping[str, tuple[str, ...]]:
        """By source: the host of each loader that owns rows to come; a host may hold several."""
        return {source: tuple(seat.host for seat in eras[-1].seating.seats) for source, eras in self.eras.items()}

    @property
    def allocation(self) -> Allocation:
        """The loaders that own rows to come."""
        return {source: eras[-1].seating for source, eras in self.eras.items()}

    def seats_of(self, host: str) -> dict[str, tuple[Seat, ...]]:
        """Return by source the loaders on a host, of all eras, each once."""
        found: dict[str, dict[int, Seat]] = {}
        for source, eras in self.eras.items():
            for era in eras:
                for seat in era.seating.seats:
                    if seat.host == host:
                        found.setdefault(source, {})[seat.partition] = seat
        return {source: tuple(seats.values()) for source, seats in found.items()}

    def seat_of(self, order: SourceOrder, ordinal: int) -> Seat:
        """Return the loader that prepares `ordinal`."""
        era = next(era for era in reversed(self.eras[order.source]) if era.start <= ordinal)
        number = _numbers(order, np.array([ordinal], dtype=np.int64), is_striped=era.seating.is_striped)
        turns = era.seating.turns
        return era.seating.seats[turns[int(number[0]) % len(turns)]]

    def partition_of(self, order: SourceOrder, ordinal: int) -> int:
        """Return the partition of `order`'s source that owns the row of `ordinal`."""
        return self.seat_of(order, ordinal).partition

    def host_of(self, order: SourceOrder, ordinal: int) -> str:
        """Return the host that prepares `ordinal`."""
        return self.seat_of(order, ordinal).host

    def owners(self, plan: StepPlan, orders: Mapping[str, SourceOrder]) -> list[Owners]:
        """Return for each bucket of a plan who prepares its rows."""
        owners: list[dict[str, dict[int, tuple[str, int]]]] = [{} for _ in range(plan.num_buckets)]
        for index, source in enumerate(plan.source_names):
            mine_D = np.flatnonzero(plan.source_D == index)
            if not len(mine_D):
                continue
            ordinal_D = plan.ordinal_D[mine_D]
            places = self._places(orders[source], ordinal_D)
            for bucket, ordinal, place in zip(plan.bucket_D[mine_D].tolist(), ordinal_D.tolist(), places, strict=True):
                owners[bucket].setdefault(source, {})[ordinal] = place
        return list(owners)

    def changed(self, source: str, seating: Seating, *, start: int) -> "Placement":
        """Return the next version, in which other loaders own the rows of a source from an ordinal on.

        Args:
            source: Of which.
            seating: Its loaders from there on; at least one. A partition number stands for one loader on one host:
                a loader that moves must be given a number that is not used.
            start: The ordinal; rows before it stay where they are. An era that would begin later is replaced.
        """
        if not seating.seats:
            raise ValueError(f"source {source!r} needs at least one loader")
        earlier = tuple(era for era in self.eras[source] if era.start < start)
        changed = (*earlier, Era(start if earlier else 0, seating))
        return Placement(self.version + 1, {**self.eras, source: changed}, self.alive)

    def pruned(self, released: Mapping[str, int]) -> "Placement":
        """Return the same, without eras of which every row has been let go. Nobody has to be told.

        Args:
            released: By source, the ordinal before which no row is needed any more.
        """
        kept = {source: _pruned(eras, released.get(source, 0)) for source, eras in self.eras.items()}
        return self if kept == self.eras else Placement(self.version, kept, self.alive)

    def without(self, host: str, spared: Collection[str] = ()) -> "Placement":
        """Return the next version, with the loaders of a lost host dealt to those that are left.

        Where none is left they stay with the lost one until another comes.

        Args:
            host: That is lost.
            spared: Hosts that are given none as long as there are others.
        """
        alive = tuple(name for name in self.alive if name != host)
        if not alive:
            return Placement(self.version + 1, self.eras, ())
        load = self._load([name for name in alive if name not in spared] or alive)
        heirs: dict[tuple[str, int], str] = {}

        def heir(source: str, seat: Seat) -> str:
            if seat.host != host:
                return seat.host
            if (source, seat.partition) not in heirs:
                chosen = min(load, key=lambda candidate: (load[candidate], candidate))
                load[chosen] += 1
                heirs[source, seat.partition] = chosen
            return heirs[source, seat.partition]

        return Placement(self.version + 1, self._moved(heir), alive)

    def handed_over(self, host: str, heir: str) -> "Placement":
        """Return the next version, with all loaders of a lost host at one that held none."""
        alive = (*(name for name in self.alive if name not in (host, heir)), heir)
        moved = self._moved(lambda _, seat: heir if seat.host == host else seat.host)
        return Placement(self.version + 1, moved, alive)

    def with_host(self, host: str) -> "Placement":
        """Return the next version, with one host more: it gets its share from those that hold most.

        Where no host was left it gets all.
        """
        alive = (*(name for name in self.alive if name != host), host)
        if not self.alive:
            return Placement(self.version + 1, self._moved(lambda _, seat: host), alive)
        load = self._load(alive)
        places = [(source, seat) for source, seating in self.allocation.items() for seat in seating.seats]
        moves: set[tuple[str, int]] = set()
        for _ in range(len(places) // len(alive)):
            donor = max(alive, key=lambda candidate: (load[candidate], candidate))
            if load[donor] <= load[host] + 1:
                break
            source, seat = next(
                (source, seat)
                for source, seat in reversed(places)
                if seat.host == donor and (source, seat.partition) not in moves
            )
            moves.add((source, seat.partition))
            load[donor] -= 1
            load[host] += 1
        moved = self._moved(lambda source, seat: host if (source, seat.partition) in moves else seat.host)
        return Placement(self.version + 1, moved, alive)

    def joined(self, host: str) -> "Placement":
        """Return the next version, with one host more that holds nothing yet: who wants it to changes it."""
        return replace(self, version=self.version + 1, alive=(*(name for name in self.alive if name != host), host))

    def left(self, host: str) -> "Placement":
        """Return the same without a host that holds nothing. Nobody has to be told."""
        return replace(self, alive=tuple(name for name in self.alive if name != host))

    def again(self) -> "Placement":
        """Return the next version of the same: who was told of this one is to ask once more."""
        return replace(self, version=self.version + 1)

    def _places(self, order: SourceOrder, ordinal_N: Int64Array) -> list[tuple[str, int]]:
        eras = self.eras[order.source]
        if len(eras) == 1:
            return _places(eras[0].seating, order, ordinal_N)
        era_N = np.searchsorted([era.start for era in eras], ordinal_N, side="right") - 1
        found: list[tuple[str, int]] = [("", 0)] * len(ordinal_N)
        for number in np.unique(era_N).tolist():
            mine_N = np.flatnonzero(era_N == number)
            for index, place in zip(
                mine_N.tolist(), _places(eras[number].seating, order, ordinal_N[mine_N]), strict=True
            ):
                found[index] = place
        return found

    def _moved(self, host_of: Callable[[str, Seat], str]) -> dict[str, tuple[Era, ...]]:
        return {
            source: tuple(
                replace(
                    era,
                    seating=replace(
                        era.seating,
                        seats=tuple(replace(seat, host=host_of(source, seat)) for seat in era.seating.seats),
                    ),
                )
                for era in eras
            )
            for source, eras in self.eras.items()
        }

    def _load(self, alive: Sequence[str]) -> dict[str, int]:
        """Return how many loaders each of some hosts holds."""
        held = Counter(name for names in self.hosts.values() for name in names)
        return {name: held[name] for name in alive}


def deal(partitions: Mapping[str, int], hosts: Sequence[str]) -> Placement:
    """Return the first placement: partitions dealt to hosts in turn, so that each holds about the same number."""
    dealt: dict[str, tuple[str, ...]] = {}
    position = 0
    for source, count in partitions.items():
        dealt[source] = tuple(hosts[(position + index) % len(hosts)] for index in range(count))
        position += count
    return Placement.of(1, dealt, hosts)


def _pruned(eras: tuple[Era, ...], released: int) -> tuple[Era, ...]:
    first = max(number for number, era in enumerate(eras) if number == 0 or era.start <= released)
    return eras if first == 0 else (replace(eras[first], start=0), *eras[first + 1 :])


def _places(seating: Seating, order: SourceOrder, ordinal_N: Int64Array) -> list[tuple[str, int]]:
    places = [(seating.seats[turn].host, seating.seats[turn].partition) for turn in seating.turns]
    number_N = _numbers(order, ordinal_N, is_striped=seating.is_striped) % len(places)
    return [places[number] for number in number_N.tolist()]


def _numbers(order: SourceOrder, ordinal_N: Int64Array, *, is_striped: bool) -> Int64Array:
    """Return for each ordinal the number of its window, or of its stripe, as they are dealt in turn."""
    window_N = order.window_numbers(ordinal_N)
    return window_N + order.window_offsets(ordinal_N) // STRIPE_ROWS if is_striped else window_N

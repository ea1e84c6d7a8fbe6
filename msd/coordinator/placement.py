"""Who owns which window of which source: versioned, changeable at any moment, never an input of what is delivered."""

# D = documents of a step.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from msd.core.order import SourceOrder
from msd.core.plan import StepPlan

Owners: TypeAlias = Mapping[str, Mapping[int, tuple[str, int]]]
"""By source and ordinal: the host and partition that prepare the row."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Partitions of each source and the host of each partition.

    Windows of a source, counted through all epochs, are dealt to its partitions in turn.
    """

    version: int
    hosts: Mapping[str, tuple[str, ...]]
    """By source: host of each partition; a host may hold several."""
    alive: tuple[str, ...]
    """The hosts there are, also those that hold no partition yet."""

    def partition_of(self, order: SourceOrder, ordinal: int) -> int:
        """Return the partition of `order`'s source that owns the window of `ordinal`."""
        window = order.window_at(ordinal)
        return (window.epoch * order.windows_per_epoch + window.number) % len(self.hosts[order.source])

    def host_of(self, order: SourceOrder, ordinal: int) -> str:
        """Return the host that prepares `ordinal`."""
        return self.hosts[order.source][self.partition_of(order, ordinal)]

    def owners(self, plan: StepPlan, orders: Mapping[str, SourceOrder]) -> list[Owners]:
        """Return for each bucket of a plan who prepares its rows."""
        owners: list[dict[str, dict[int, tuple[str, int]]]] = [{} for _ in range(plan.num_buckets)]
        for index, source in enumerate(plan.source_names):
            mine_D = np.flatnonzero(plan.source_D == index)
            if not len(mine_D):
                continue
            ordinal_D, hosts = plan.ordinal_D[mine_D], self.hosts[source]
            partition_D = orders[source].window_numbers(ordinal_D) % len(hosts)
            places = [(host, partition) for partition, host in enumerate(hosts)]
            columns = (plan.bucket_D[mine_D].tolist(), ordinal_D.tolist(), partition_D.tolist())
            for bucket, ordinal, partition in zip(*columns, strict=True):
                owners[bucket].setdefault(source, {})[ordinal] = places[partition]
        return list(owners)

    def without(self, host: str) -> "Placement":
        """Return the next version, with the partitions of a lost host dealt to those that are left.

        Where none is left they stay with the lost one until another comes.
        """
        alive = tuple(name for name in self.alive if name != host)
        if not alive:
            return Placement(self.version + 1, self.hosts, ())
        load = self._load(alive)

        def least() -> str:
            chosen = min(alive, key=lambda candidate: (load[candidate], candidate))
            load[chosen] += 1
            return chosen

        moved = {
            source: tuple(least() if name == host else name for name in names) for source, names in self.hosts.items()
        }
        return Placement(self.version + 1, moved, alive)

    def handed_over(self, host: str, heir: str) -> "Placement":
        """Return the next version, with all partitions of a lost host at one that held none."""
        alive = (*(name for name in self.alive if name not in (host, heir)), heir)
        moved = {
            source: tuple(heir if name == host else name for name in names) for source, names in self.hosts.items()
        }
        return Placement(self.version + 1, moved, alive)

    def with_host(self, host: str) -> "Placement":
        """Return the next version, with one host more: it gets its share from those that hold most.

        Where no host was left it gets all.
        """
        alive = (*(name for name in self.alive if name != host), host)
        if not self.alive:
            return Placement(self.version + 1, {name: (host,) * len(of) for name, of in self.hosts.items()}, alive)
        load = self._load(alive)
        moved = {source: list(names) for source, names in self.hosts.items()}
        places = [(source, index) for source, names in self.hosts.items() for index in range(len(names))]
        for _ in range(len(places) // len(alive)):
            donor = max(alive, key=lambda candidate: (load[candidate], candidate))
            if load[donor] <= load[host] + 1:
                break
            source, index = next(place for place in reversed(places) if moved[place[0]][place[1]] == donor)
            moved[source][index] = host
            load[donor] -= 1
            load[host] += 1
        return Placement(self.version + 1, {source: tuple(names) for source, names in moved.items()}, alive)

    def again(self) -> "Placement":
        """Return the next version of the same: who was told of this one is to ask once more."""
        return Placement(self.version + 1, self.hosts, self.alive)

    def _load(self, alive: Sequence[str]) -> dict[str, int]:
        """Return how many partitions each of some hosts holds."""
        load = dict.fromkeys(alive, 0)
        for names in self.hosts.values():
            for name in names:
                if name in load:
                    load[name] += 1
        return load


def deal(partitions: Mapping[str, int], hosts: Sequence[str]) -> Placement:
    """Return the first placement: partitions dealt to hosts in turn, so that each holds about the same number."""
    dealt: dict[str, tuple[str, ...]] = {}
    position = 0
    for source, count in partitions.items():
        dealt[source] = tuple(hosts[(position + index) % len(hosts)] for index in range(count))
        position += count
    return Placement(1, dealt, tuple(hosts))

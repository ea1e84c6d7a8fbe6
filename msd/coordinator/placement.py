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

        Raises:
            ValueError: If none is left.
        """
        alive = tuple(name for name in self.alive if name != host)
        if not alive:
            raise ValueError(f"host {host} is the last one")
        load = dict.fromkeys(alive, 0)
        for names in self.hosts.values():
            for name in names:
                if name != host:
                    load[name] += 1
        moved: dict[str, tuple[str, ...]] = {}
        for source, names in self.hosts.items():
            replaced = list(names)
            for index, name in enumerate(names):
                if name == host:
                    least = min(alive, key=lambda candidate: (load[candidate], candidate))
                    load[least] += 1
                    replaced[index] = least
            moved[source] = tuple(replaced)
        return Placement(self.version + 1, moved, alive)


def deal(partitions: Mapping[str, int], hosts: Sequence[str]) -> Placement:
    """Return the first placement: partitions dealt to hosts in turn, so that each holds about the same number."""
    dealt: dict[str, tuple[str, ...]] = {}
    position = 0
    for source, count in partitions.items():
        dealt[source] = tuple(hosts[(position + index) % len(hosts)] for index in range(count))
        position += count
    return Placement(1, dealt, tuple(hosts))

"""Who owns which window of which source: versioned, changeable at any moment, never an input of what is delivered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msd.core.order import SourceOrder


@dataclass(frozen=True, slots=True)
class Placement:
    """Partitions of each source and the host of each partition.

    Windows of a source, counted through all epochs, are dealt to its partitions in turn.
    """

    version: int
    hosts: Mapping[str, tuple[str, ...]]
    """By source: host of each partition; a host may hold several."""

    def partition_of(self, order: SourceOrder, ordinal: int) -> int:
        """Return the partition of `order`'s source that owns the window of `ordinal`."""
        window = order.window_at(ordinal)
        return (window.epoch * order.windows_per_epoch + window.number) % len(self.hosts[order.source])

    def host_of(self, order: SourceOrder, ordinal: int) -> str:
        """Return the host that prepares `ordinal`."""
        return self.hosts[order.source][self.partition_of(order, ordinal)]

    def without(self, host: str, remaining: Sequence[str]) -> "Placement":
        """Return the next version, with the partitions of a lost host dealt to the remaining ones."""
        load = dict.fromkeys(remaining, 0)
        for names in self.hosts.values():
            for name in names:
                if name in load:
                    load[name] += 1
        moved: dict[str, tuple[str, ...]] = {}
        for source, names in self.hosts.items():
            replaced = list(names)
            for index, name in enumerate(names):
                if name == host:
                    least = min(remaining, key=lambda candidate: (load[candidate], candidate))
                    load[least] += 1
                    replaced[index] = least
            moved[source] = tuple(replaced)
        return Placement(self.version + 1, moved)


def deal(partitions: Mapping[str, int], hosts: Sequence[str]) -> Placement:
    """Return the first placement: partitions dealt to hosts in turn, so that each holds about the same number."""
    dealt: dict[str, tuple[str, ...]] = {}
    position = 0
    for source, count in partitions.items():
        dealt[source] = tuple(hosts[(position + index) % len(hosts)] for index in range(count))
        position += count
    return Placement(1, dealt)

"""What people do without a cost model: a loader for each source, or the same number of workers for all."""

from collections.abc import Sequence

from msd.core.allocation import Allocation, Seat, Seating
from msd.core.demand import HostBudget, SourceDemand


def one_each(demands: Sequence[SourceDemand], hosts: Sequence[HostBudget]) -> Allocation:
    """Return one loader with one worker for each source, dealt to hosts in turn."""
    return {
        demand.source: Seating((Seat(0, hosts[number % len(hosts)].host, 1),)) for number, demand in enumerate(demands)
    }


def uniform(demands: Sequence[SourceDemand], hosts: Sequence[HostBudget], workers: int) -> Allocation:
    """Return the same number of workers for every source, together about `workers`: one each at least.

    Workers that are left over go to the first sources; those of a source lie on hosts in turn.
    """
    each, over = divmod(max(workers, len(demands)), len(demands))
    allocation: dict[str, Seating] = {}
    turn = 0
    for number, demand in enumerate(demands):
        on_host: dict[str, int] = {}
        for _ in range(each + (number < over)):
            host = hosts[turn % len(hosts)].host
            on_host[host] = on_host.get(host, 0) + 1
            turn += 1
        seats = tuple(Seat(index, host, count) for index, (host, count) in enumerate(on_host.items()))
        allocation[demand.source] = Seating(seats)
    return allocation

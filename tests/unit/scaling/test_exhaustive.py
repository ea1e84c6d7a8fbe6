"""Auto-partition against the best of all divisions, on cases small enough to try them all."""

import itertools
import random

import pytest

from msd.core.allocation import Seat, Seating
from msd.core.demand import HostBudget, RowCost, SourceDemand
from msd.scaling.need import memory_of
from msd.scaling.partition import partition_sources, sustained

MIB = 1 << 20
MOST = 4
"""Workers of a source on one host: no case below gains from more."""


def case(seed: int) -> tuple[list[SourceDemand], list[HostBudget]]:
    """Sources that compute and wait by different parts, and hosts that differ."""
    draw = random.Random(seed)
    num_sources, num_hosts = draw.choice([(1, 2), (2, 1), (2, 2), (3, 1)])
    shares = [draw.uniform(0.1, 1.0) for _ in range(num_sources)]
    demands = []
    for number, share in enumerate(shares):
        prepare_s = 10 ** draw.uniform(-3, -1)
        cost = RowCost(
            prepare_s=prepare_s, cpu_s=prepare_s * draw.uniform(0.4, 1.0), transfer_s=0.0, payload_bytes=1000.0
        )
        demands.append(
            SourceDemand(
                source=f"s{number}",
                share=share / sum(shares),
                rows_per_sample=draw.choice([0.5, 1.0, 2.0]),
                cost=cost,
                loader_bytes=draw.choice([10, 40]) * MIB,
                worker_bytes=draw.choice([0, 20]) * MIB,
            )
        )
    hosts = [
        HostBudget(host=f"h{number}", cpus=draw.choice([1.0, 1.5, 2.0]), memory_bytes=draw.choice([150, 400]) * MIB)
        for number in range(num_hosts)
    ]
    return demands, hosts


def best(demands: list[SourceDemand], hosts: list[HostBudget]) -> float:
    """Return the highest rate that any division within the bounds of memory sustains."""
    choices = [
        [counts for counts in itertools.product(range(MOST + 1), repeat=len(hosts)) if any(counts)] for _ in demands
    ]
    found = 0.0
    for chosen in itertools.product(*choices):
        held = [0] * len(hosts)
        for demand, counts in zip(demands, chosen, strict=True):
            for number, count in enumerate(counts):
                held[number] += memory_of(demand, count) if count else 0
        if any(bytes_ > host.memory_bytes for bytes_, host in zip(held, hosts, strict=True)):
            continue
        allocation = {
            demand.source: Seating(
                tuple(Seat(number, hosts[number].host, count) for number, count in enumerate(counts) if count)
            )
            for demand, counts in zip(demands, chosen, strict=True)
        }
        found = max(found, sustained(allocation, demands, hosts, busy=1.0))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_what_is_found_sustains_nearly_as_much_as_the_best_of_all_divisions(seed):
    demands, hosts = case(seed)
    sizing = partition_sources(demands, hosts, rate=None, headroom=1.0)
    most = best(demands, hosts)
    assert sizing.rate >= 0.95 * most
    assert sustained(sizing.allocation, demands, hosts, busy=1.0) >= 0.95 * most

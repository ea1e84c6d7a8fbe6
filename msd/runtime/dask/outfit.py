"""What the holders of a run's posts are made with: pure values of its configuration."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dask.system import CPU_COUNT
from distributed.system import MEMORY_LIMIT

import msd
from msd.coordinator.placement import Placement, deal
from msd.coordinator.staff import Worker
from msd.core.allocation import Allocation
from msd.core.demand import HostBudget
from msd.core.mesh import Mesh
from msd.errors import ConfigError
from msd.loader.workers import MOST_THREADS
from msd.runtime.dask.making import Run
from msd.scaling.partition import partition_sources

_LOG = logging.getLogger("msd")

HOST_BYTES = 256 << 20
"""Payload that the loaders of one host hold together."""


def served_by(mesh: Mesh, count: int) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each constructor: whole buckets, dealt in runs.

    Args:
        mesh: Of the trainer.
        count: Of constructors; no more than there are buckets.
    """
    buckets: dict[int, list[int]] = {}
    for rank in range(mesh.world_size):
        buckets.setdefault(mesh.coordinate(rank)["dp"], []).append(rank)
    count = min(len(buckets), count)
    served: dict[str, tuple[int, ...]] = {}
    for number in range(count):
        mine = range(number * len(buckets) // count, (number + 1) * len(buckets) // count)
        served[f"constructor-{number}"] = tuple(sorted(rank for bucket in mine for rank in buckets[bucket]))
    return served


def placement_of(run: Run, hosts: Sequence[str], known: Allocation) -> Placement:
    """Return a first placement for a planner: partitions dealt to the hosts that do not stand by.

    Args:
        run: Whose sources are dealt.
        hosts: Names of those that do not stand by.
        known: Loaders that a planner before this one was told to have; empty if there was none.
    """
    loading = sorted(hosts)
    if known.keys() == run.config.sources.keys():
        return _restored(known, loading)
    dealt = deal({name: _num_loaders(run, name, len(loading)) for name in run.config.sources}, loading)
    if run.config.loaders != "auto" or not run.demands or not loading:
        return dealt
    return Placement.seated(1, {**dealt.allocation, **_sized(run, loading)}, loading)


def _restored(known: Allocation, hosts: Sequence[str]) -> Placement:
    """Return a placement as it was, with the loaders of hosts that are gone at others."""
    before = {seat.host for seating in known.values() for seat in seating.seats}
    placement = Placement.seated(1, known, [*hosts, *sorted(before - set(hosts))])
    for host in sorted(before - set(hosts)):
        placement = placement.without(host)
    return replace(placement, version=1)


def _sized(run: Run, hosts: Sequence[str]) -> Allocation:
    """Return loaders and workers by what the sources cost, as a profile says, nothing if that fits nowhere.

    Cores and memory of this machine are shared by the hosts: what runs elsewhere has them for itself.
    """
    # What containers are allowed counts, not what the machine has.
    cores, memory = CPU_COUNT / len(hosts), MEMORY_LIMIT // 2 // len(hosts)
    budgets = [HostBudget(host=host, cpus=cores, memory_bytes=memory, most_workers=MOST_THREADS) for host in hosts]
    try:
        sizing = partition_sources(run.demands, budgets, rate=None)
    except ConfigError as error:
        _LOG.warning("loaders are not sized by their profile: %s", error)
        return {}
    told = ", ".join(f"{source} {seating.workers}" for source, seating in sizing.allocation.items())
    _LOG.info("loaders are sized by their profile for %.1f samples/s: workers of %s", sizing.rate, told)
    return sizing.allocation


def link_of(run: Run, worker: Worker, socket: str | None, listen: str | None) -> dict[str, Any]:
    """Return where a constructor listens for ranks, and what they must show.

    Args:
        run: Whose ranks.
        worker: That holds it.
        socket: Path of a Unix socket to listen at, besides.
        listen: Host to listen at; None is that of the worker.
    """
    return {
        "token": run.token,
        "version": msd.__version__,
        "unix": socket,
        "host": worker.host if listen is None else listen,
        "port": 0,
    }


def _num_loaders(run: Run, source: str, num_hosts: int) -> int:
    chosen = run.config.loaders
    if isinstance(chosen, dict):
        return chosen.get(source, 1)
    if chosen == "auto":
        # A source with windows enough may be prepared by every host at once; a small one needs no more than one.
        return max(1, min(num_hosts, run.orders[source].windows_per_epoch))
    return chosen

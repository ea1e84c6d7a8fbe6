"""What the holders of a run's posts are made with: pure values of its configuration."""

from collections.abc import Sequence
from typing import Any

import msd
from msd.coordinator.placement import Placement, deal
from msd.coordinator.roster import Worker
from msd.core.mesh import Mesh
from msd.runtime.dask.making import Run

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


def placement_of(run: Run, hosts: Sequence[str]) -> Placement:
    """Return a first placement for a planner: partitions dealt to the hosts that do not stand by.

    Args:
        run: Whose sources are dealt.
        hosts: Names; those beyond `runtime.workers` stand by.
    """
    loading = sorted(hosts[: run.config.runtime.workers])
    return deal({name: _num_loaders(run, name, len(loading)) for name in run.config.sources}, loading)


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

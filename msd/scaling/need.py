"""What each source needs to sustain a rate: workers that are busy at once, cores, memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from msd.core.demand import SourceDemand

EPSILON = 1e-9
"""Below it a need is taken for met: sums of floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Of one source, at one rate."""

    demand: SourceDemand
    samples_per_s: float
    """That it has to give."""
    workers: float
    """Busy at once, head-room included: rows a second times the seconds of a worker that each takes."""
    cpus: float
    """Cores in use, head-room included."""

    @property
    def slots(self) -> int:
        """Whole workers for it."""
        return max(1, math.ceil(self.workers - EPSILON))

    @property
    def source(self) -> str:
        """Name of the source."""
        return self.demand.source


def needs_of(demands: Sequence[SourceDemand], *, rate: float, headroom: float) -> list[Need]:
    """Return the need of each source, in the order given.

    Args:
        demands: Shares need not add up to 1: peaks of a schedule do not come at once.
        rate: Samples/s over all sources.
        headroom: So many times what is needed.
    """
    return [_need(demand, rate=rate, headroom=headroom) for demand in demands]


def memory_of(demand: SourceDemand, workers: int) -> int:
    """Return the bytes that a loader with so many workers holds."""
    return demand.loader_bytes + max(0, workers - 1) * demand.worker_bytes


def rate_of(demand: SourceDemand, workers: float) -> float:
    """Return the samples/s of a run at which a source keeps so many workers busy: infinite if it costs nothing."""
    per_sample_s = demand.share * demand.rows_per_sample * demand.cost.prepare_s
    return workers / per_sample_s if per_sample_s > 0 else float("inf")


def _need(demand: SourceDemand, *, rate: float, headroom: float) -> Need:
    samples_per_s = rate * demand.share
    rows_per_s = samples_per_s * demand.rows_per_sample * headroom
    return Need(
        demand=demand,
        samples_per_s=samples_per_s,
        workers=rows_per_s * demand.cost.prepare_s,
        cpus=rows_per_s * (demand.cost.cpu_s + demand.cost.transfer_s),
    )

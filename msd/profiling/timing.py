"""Time what a row takes, as well as that can be: warm, repeated, on one core, CPU and waiting told apart."""

# R = rows.

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from msd.core.arrays import Float64Array
from msd.loader.processes.decide import Timing, Where, where_to_transform
from msd.loader.processes.measure import Rows, beside, timed
from msd.loader.transforms.chain import AppliesTransforms, RowResult

REPEATS = 9
"""Of each row, as far as time goes."""
LEFT_SHARE = 0.25
"""Of the time, that repeats after the first leave."""
PATIENCE_S = 10.0
"""Beyond its time, for a source of which a single row takes long."""
BATCH_ROWS = 64
"""Rows that a loader transforms together: sharing the cost of a call makes each cheaper than alone."""


@dataclass
class Timings:
    """Of the rows of one source."""

    worker_s: list[list[float]] = field(default_factory=list)
    """By row, of each repeat: CPU and waiting, without waiting for a core."""
    cpu_s: list[list[float]] = field(default_factory=list)
    results: list[RowResult] = field(default_factory=list)
    batch_factor: float = 1.0
    """What rows take together over what they take one by one."""
    is_cut_short: bool = False
    """Whether time ran out before every row was done once."""

    @property
    def num_rows(self) -> int:
        """Rows that were timed."""
        return len(self.worker_s)

    def seconds_R(self) -> Float64Array:
        """Return the seconds of a worker that each row takes, as in a batch; see `steady`."""
        return self.batch_factor * steady(self.worker_s)

    def cpu_R(self) -> Float64Array:
        """Return the CPU that each row takes alone; see `steady`."""
        return steady(self.cpu_s)

    def cpu_share(self) -> float:
        """Return the part of a worker's seconds in which it uses a core."""
        worker_s = sum(statistics.median(each) for each in self.worker_s)
        cpu_s = sum(statistics.median(each) for each in self.cpu_s)
        return min(1.0, cpu_s / worker_s) if worker_s > 0 else 1.0

    def spread(self) -> float:
        """Return the median over rows of (largest - smallest) / median of two repeats: how far timings differ."""
        pairs = [one[:2] for one in self.worker_s if len(one) > 1 and min(one) > 0]
        each = [(max(pair) - min(pair)) / statistics.median(pair) for pair in pairs]
        return statistics.median(each) if each else 0.0


def steady(seconds: Sequence[Sequence[float]]) -> Float64Array:
    """Return what each row takes, from repeats that other work on the machine makes longer, now more and now less.

    Noise only ever adds, so the least of its repeats tells rows apart best; their medians say at which level, all rows
    together, such a machine works.

    Args:
        seconds: By row, of each repeat; at least one.
    """
    if not seconds:
        return np.empty(0)
    # As many repeats of each: the least of more is less.
    count = min(map(len, seconds))
    least_R = np.array([min(each[:count]) for each in seconds])
    level = sum(statistics.median(each[:count]) for each in seconds)
    total = float(least_R.sum())
    return least_R * (level / total) if total > 0 else least_R


def time_rows(chain: AppliesTransforms, rows: Rows, *, least: int, until: float) -> Timings:
    """Return what rows take.

    Args:
        chain: The transforms, in the thread that calls. Has been used: what is loaded on first use is loaded.
        rows: (ordinal, row) each.
        least: So many are done once in any case, but for those that take longer together than `PATIENCE_S`.
        until: On the monotonic clock: other rows that are not begun by then are left out, and repeats.
    """
    found = Timings()
    # What rows take together, and whether they wait for one another's lock, is still to be measured.
    repeats_until = until - LEFT_SHARE * max(0.0, until - time.monotonic())
    with on_one_core():
        for row in rows:
            now = time.monotonic()
            if now > until and (found.num_rows >= least or now > until + PATIENCE_S):
                found.is_cut_short = True
                break
            results, timing = timed(chain, [row])
            found.results += results
            found.worker_s.append([timing.cpu_s + timing.blocked_s])
            found.cpu_s.append([timing.cpu_s])
        for repeat in range(1, REPEATS):
            for index, row in enumerate(rows[: found.num_rows]):
                if time.monotonic() > (until if repeat == 1 else repeats_until):
                    break
                _, timing = timed(chain, [row])
                found.worker_s[index].append(timing.cpu_s + timing.blocked_s)
                found.cpu_s[index].append(timing.cpu_s)
        found.batch_factor = _batch_factor(chain, rows[: found.num_rows], found, until)
    return found


def where_best(chain: AppliesTransforms, rows: Rows) -> Where:
    """Return where transforms are to run: in processes if two threads wait for one another's lock."""
    half = len(rows) // 2
    if not half or len(os.sched_getaffinity(0)) < 2:
        return "threads"
    _, alone = timed(chain, rows)
    began = time.perf_counter()
    other = beside(lambda: timed(chain, rows[half:]))
    _, one = timed(chain, rows[:half])
    _, another = other.result()
    return where_to_transform(alone, one + another, time.perf_counter() - began) or "threads"


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """Keep this thread on one core: moving between cores costs what their caches hold."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(allowed)})
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _batch_factor(chain: AppliesTransforms, rows: Rows, found: Timings, until: float) -> float:
    together, alone = Timing(), 0.0
    for first in range(0, len(rows), BATCH_ROWS):
        batch: Sequence[object] = rows[first : first + BATCH_ROWS]
        if len(batch) < 2 or (time.monotonic() > until and first):
            break
        _, timing = timed(chain, rows[first : first + BATCH_ROWS])
        together += timing
        alone += sum(statistics.median(each) for each in found.worker_s[first : first + BATCH_ROWS])
    factor = (together.cpu_s + together.blocked_s) / alone if alone > 0 and together.num_rows else 1.0
    # More than alone is noise: nothing makes rows dearer when they come together.
    return min(1.0, factor)

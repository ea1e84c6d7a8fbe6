"""Rows that a loader transforms together, divided among the workers of its host as they become idle."""

import threading
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from msd.core.sample import RawSample
from msd.loader.counts import Spent
from msd.loader.processes.measure import timed
from msd.loader.transforms.chain import AppliesTransforms, RowResult
from msd.loader.workers import Permits, Threads
from msd.sources.base import BadRow

Rows: TypeAlias = Sequence[tuple[int, RawSample | BadRow]]

SLICE_S = 5e-3
"""What a slice is to take: long beside the 30 us that handing it over costs, short beside what a step takes."""
MOST_SLICE_ROWS = 16
WORTH_S = 0.2e-3
"""Seconds a row below which a batch is not divided: threads would mostly wait for one another's lock."""
_SMOOTHING = 0.2
"""Weight of the newest slice in what a row is taken to cost."""


class Sliced:
    """Transforms of one source, by several workers at once; equal to those of the chain, row by row.

    A row that takes long holds up its slice alone: the other rows of the batch are done by others meanwhile.
    """

    def __init__(self, chain: AppliesTransforms, helpers: Threads, permits: Permits, spent: Spent) -> None:
        """Use `chain` from any number of threads.

        Args:
            chain: The transforms.
            helpers: Of the host.
            permits: Of the source on this host.
            spent: Told what workers did.
        """
        self._chain = chain
        self._helpers = helpers
        self.permits = permits
        self._spent = spent
        self._row_s = 0.0
        """What a row takes a worker, as far as is known."""

    def apply(self, rows: Rows) -> list[RowResult]:
        """Return what each (ordinal, row) gives; see `TransformChain.apply`."""
        size, most = self._slice_rows(), self.permits.most
        if most == 1 or len(rows) <= size or self._row_s < WORTH_S:
            self.permits.take(waits=True)
            return self.work(rows)
        return _Batch(self, rows, size).done(self._helpers, len(rows) if most is None else most)

    def work(self, rows: Rows) -> list[RowResult]:
        """Return what rows give, done by the thread that calls, which has a permit and gives it back."""
        try:
            results, timing = timed(self._chain, rows)
        finally:
            self.permits.give_back()
        worker_s = timing.cpu_s + timing.blocked_s
        self._spent.add(len(rows), worker_s, timing.cpu_s)
        if rows:
            self._row_s += _SMOOTHING * (worker_s / len(rows) - self._row_s)
        return results

    def _slice_rows(self) -> int:
        return MOST_SLICE_ROWS if self._row_s <= 0 else max(1, min(MOST_SLICE_ROWS, int(SLICE_S / self._row_s)))


class Counted:
    """Transforms of one source in the thread that calls; what they take is counted as that of workers."""

    def __init__(self, chain: AppliesTransforms, spent: Spent) -> None:
        """Use `chain` from any number of threads, and tell `spent`."""
        self._chain, self._spent = chain, spent

    def apply(self, rows: Rows) -> list[RowResult]:
        """Return what each (ordinal, row) gives; see `TransformChain.apply`."""
        results, timing = timed(self._chain, rows)
        self._spent.add(len(rows), timing.cpu_s + timing.blocked_s, timing.cpu_s)
        return results


class _Batch:
    """One batch while it is divided."""

    def __init__(self, transforms: Sliced, rows: Rows, size: int) -> None:
        self._transforms = transforms
        self._slices = deque((first, rows[first : first + size]) for first in range(0, len(rows), size))
        self._num_left = len(self._slices)
        self._results: dict[int, list[RowResult]] = {}
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def done(self, helpers: Threads, most: int) -> list[RowResult]:
        """Return the results of all slices, in order."""
        for _ in range(min(most, self._num_left) - 1):
            if not helpers.try_submit(self._help):
                break
        self._work(waits=True)
        with self._changed:
            self._changed.wait_for(lambda: self._num_left == 0)
        if self._error is not None:
            raise self._error
        return [result for first in sorted(self._results) for result in self._results[first]]

    def _help(self) -> None:
        self._work(waits=False)

    def _work(self, *, waits: bool) -> None:
        """Do slices until none is left that nobody has begun, or no more workers are allowed."""
        permits = self._transforms.permits
        while permits.take(waits=waits):
            with self._changed:
                if not self._slices:
                    permits.give_back()
                    return
                first, rows = self._slices.popleft()
            try:
                results = self._transforms.work(rows)
            except BaseException as error:
                with self._changed:
                    # What nobody has begun is not begun any more.
                    self._num_left -= 1 + len(self._slices)
                    self._slices.clear()
                    self._error = self._error or error
                    self._changed.notify_all()
                return
            with self._changed:
                self._results[first] = results
                self._num_left -= 1
                self._changed.notify_all()

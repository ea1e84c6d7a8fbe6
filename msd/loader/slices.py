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

    A row that takes long holds up its slice alone: the other rows of the batch are done by others meanwhile, and those
    of the next batch after them. For any number of threads, each with a batch of its own.
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
        self._lock = threading.Lock()
        self._waiting: deque[tuple[_Batch, int, Rows]] = deque()
        """Slices that nobody has begun, of all batches, the first batch first."""

    def apply(self, rows: Rows) -> list[RowResult]:
        """Return what each (ordinal, row) gives; see `TransformChain.apply`."""
        if not rows:
            return []
        most = self.permits.most
        is_divided = most != 1 and self._row_s >= WORTH_S
        firsts = range(0, len(rows), size := self._slice_rows() if is_divided else len(rows))
        batch = _Batch(len(firsts))
        with self._lock:
            self._waiting.extend((batch, first, rows[first : first + size]) for first in firsts)
        for _ in range(min(len(firsts), len(rows) if most is None else most) - 1):
            if not self._helpers.try_submit(self._help):
                break
        # Whoever has a batch works, too: there may be no idle thread for a long time.
        while not batch.is_done and self.permits.take(unless=lambda: batch.is_done):
            if not self._do_next():
                self.permits.wait(until=lambda: batch.is_done or bool(self._waiting))
        return batch.results()

    def _help(self) -> None:
        """Do slices until none is left that nobody has begun, or no more workers are allowed."""
        while self.permits.take(waits=False):
            if not self._do_next():
                return

    def _do_next(self) -> bool:
        """Do the first slice that nobody has begun, with a permit that is given back; return whether there was one."""
        with self._lock:
            if not self._waiting:
                self.permits.give_back()
                return False
            batch, first, rows = self._waiting.popleft()
        try:
            results = self._work(rows)
        except BaseException as error:
            with self._lock:
                # What nobody has begun of it is not begun any more.
                before = len(self._waiting)
                self._waiting = deque(one for one in self._waiting if one[0] is not batch)
                batch.fail(error, 1 + before - len(self._waiting))
        else:
            with self._lock:
                batch.add(first, results)
        if batch.is_done:
            self.permits.wake()
        return True

    def _work(self, rows: Rows) -> list[RowResult]:
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


class _Batch:
    """One batch while it is divided. With the lock of its source held."""

    def __init__(self, num_slices: int) -> None:
        self._num_left = num_slices
        self._results: dict[int, list[RowResult]] = {}
        self._error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing of it is under way or waits; without the lock."""
        return self._num_left == 0

    def add(self, first: int, results: list[RowResult]) -> None:
        """Take what a slice gave."""
        self._results[first] = results
        self._num_left -= 1

    def fail(self, error: BaseException, num_slices: int) -> None:
        """Take that a slice failed, with which others are not begun."""
        self._error = self._error or error
        self._num_left -= num_slices

    def results(self) -> list[RowResult]:
        """Return the results of all slices, in order."""
        if self._error is not None:
            raise self._error
        return [result for first in sorted(self._results) for result in self._results[first]]


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

"""Measure the transforms of a source on its first rows, while they are done anyway."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

from msd.core.sample import RawSample
from msd.loader.processes.decide import Timing, Where, is_measured, shows_in, where_to_transform
from msd.loader.transforms.chain import AppliesTransforms, RowResult
from msd.sources.base import BadRow

_T = TypeVar("_T")
Rows: TypeAlias = Sequence[tuple[int, RawSample | BadRow]]
Timed: TypeAlias = tuple[list[RowResult], Timing]


class Measured:
    """Transforms of one source, on threads until it is known whether those wait for one another.

    Some rows are done alone, others by two threads at once; results are those of the chain either way. What is found
    holds for good. For any number of threads; one of them measures at a time.
    """

    def __init__(
        self,
        chain: AppliesTransforms,
        processes: AppliesTransforms,
        threads: AppliesTransforms | None = None,
        *,
        on_chosen: Callable[[Where], None],
    ) -> None:
        """Measure `chain`.

        Args:
            chain: The transforms, in the thread that calls.
            processes: The same transforms in processes.
            threads: The same transforms in threads, once that is known to be best; None is `chain`.
            on_chosen: Called once, with what was found.
        """
        self._chain = chain
        self._processes = processes
        self._threads = chain if threads is None else threads
        self._on_chosen = on_chosen
        self._chosen: AppliesTransforms | None = None
        self._measuring = threading.Lock()
        self._is_warm = False
        self._alone, self._together, self._span_s = Timing(), Timing(), 0.0

    def apply(self, rows: Rows) -> list[RowResult]:
        """Return what each (ordinal, row) gives."""
        if self._chosen is not None:
            return self._chosen.apply(rows)
        if not self._measuring.acquire(blocking=False):
            return self._chain.apply(rows)
        try:
            return self._measured(rows)
        finally:
            self._measuring.release()

    def _measured(self, rows: Rows) -> list[RowResult]:
        if not self._is_warm:
            # The first rows pay for what is loaded when it is first used.
            self._is_warm = True
            return self._chain.apply(rows)
        if not is_measured(self._alone):
            results = self._by_one(rows)
        elif shows_in(self._alone, len(rows) // 2):
            results = self._by_two(rows)
        else:
            return self._chain.apply(rows)
        found = where_to_transform(self._alone, self._together, self._span_s)
        if found is not None:
            self._chosen = self._processes if found == "processes" else self._threads
            self._on_chosen(found)
        return results

    def _by_one(self, rows: Rows) -> list[RowResult]:
        results, timing = timed(self._chain, rows)
        self._alone += timing
        return results

    def _by_two(self, rows: Rows) -> list[RowResult]:
        half = len(rows) // 2
        began = time.perf_counter()
        other = beside(lambda: timed(self._chain, rows[half:]))
        results, timing = timed(self._chain, rows[:half])
        others, other_timing = other.result()
        self._span_s += time.perf_counter() - began
        self._together += timing + other_timing
        return results + others


@runtime_checkable
class AppliesTimed(Protocol):
    """Transforms that are not done in the thread that calls, and know what they took where they are."""

    def apply_timed(self, rows: Rows) -> Timed:
        """Return what rows give, and what that took."""
        ...


def timed(chain: AppliesTransforms, rows: Rows) -> Timed:
    """Return what rows give, and what that took where it was done."""
    return (
        chain.apply_timed(rows) if isinstance(chain, AppliesTimed) else timed_work(lambda: chain.apply(rows), len(rows))
    )


def timed_work(work: Callable[[], _T], num_rows: int = 0) -> tuple[_T, Timing]:
    """Return what work gives, and what it took in the thread that calls."""
    wall_s, cpu_s, queued_s = time.perf_counter(), time.thread_time(), _queued_s()
    result = work()
    return result, Timing(
        num_rows=num_rows,
        wall_s=time.perf_counter() - wall_s,
        cpu_s=time.thread_time() - cpu_s,
        queued_s=_queued_s() - queued_s,
    )


def _queued_s() -> float:
    """Return how long this thread was ready to run without a core; always 0 where the kernel does not count that."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as counts:
            return int(counts.read().split()[1]) * 1e-9
    except (OSError, IndexError):
        return 0.0


def beside(work: Callable[[], Timed]) -> "Future[Timed]":
    """Begin work on a thread that no exit waits for."""
    done: Future[Timed] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="msd-measure", daemon=True).start()
    return done

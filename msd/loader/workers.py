"""Workers of a loader host: threads that transform rows, and how many of them each source may have."""

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

_T = TypeVar("_T")

MOST_THREADS = 96
"""Of one host, whatever they wait for: beyond, a machine only switches between them."""


class Threads(Executor):
    """Threads that are made when they are needed and keep no process from ending; their number can change.

    They end with `shutdown`, or when nobody holds this any more.
    """

    def __init__(self, count: int, name: str) -> None:
        """Start none yet."""
        self.count = count
        self._name = name
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = [0]
        """How many are at work, or about to be: what was submitted and is not done. A list, since threads hold it."""
        self._is_over = False
        weakref.finalize(self, _end, self._work, self._threads)

    def submit(self, work: Callable[..., _T], /, *args: Any, **named: Any) -> "Future[_T]":
        """Begin work as soon as a thread is idle."""
        done: Future[_T] = Future()

        def run() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(work(*args, **named))
            except BaseException as error:
                done.set_exception(error)

        with self._lock:
            if self._is_over:
                raise RuntimeError("these threads were told to end")
            self._busy[0] += 1
            if self._busy[0] > len(self._threads) and len(self._threads) < min(self.count, MOST_THREADS):
                name = f"{self._name}-{len(self._threads)}"
                held = (self._work, self._lock, self._busy)
                thread = threading.Thread(target=_run, args=held, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        self._work.put(run)
        return done

    def try_submit(self, work: Callable[[], object]) -> bool:
        """Begin work if a thread is idle, or can be made; return whether it is."""
        with self._lock:
            if self._is_over or self._busy[0] >= min(self.count, MOST_THREADS):
                return False
        self.submit(work)
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False, timeout_s: float | None = None) -> None:
        """Begin nothing new, and wait for what is under way, at most so long."""
        with self._lock:
            self._is_over, threads = True, list(self._threads)
        _end(self._work, threads)
        if wait:
            for thread in threads:
                thread.join(timeout_s)


def _run(work: "queue.SimpleQueue[Callable[[], None] | None]", lock: threading.Lock, busy: list[int]) -> None:
    """Do what is submitted, on a thread that does not hold the pool that it is of."""
    while (one := work.get()) is not None:
        one()
        del one
        with lock:
            busy[0] -= 1


def _end(work: "queue.SimpleQueue[Callable[[], None] | None]", threads: list[threading.Thread]) -> None:
    """Have threads end once what was submitted before is done."""
    for _ in threads:
        work.put(None)


class Permits:
    """How many workers the loaders of one source may have on a host, all together."""

    def __init__(self, most: int | None = None) -> None:
        """Allow so many; None allows any number."""
        self._most = most
        self._num_out = 0
        self._changed = threading.Condition()

    @property
    def most(self) -> int | None:
        """Workers at once; None is any number."""
        return self._most

    def allow(self, most: int | None) -> None:
        """Allow another number from now on; those that are out come back by themselves."""
        with self._changed:
            self._most = most
            self._changed.notify_all()

    def take(self, *, waits: bool = True, unless: Callable[[], bool] = lambda: False) -> bool:
        """Become a worker; return whether that is allowed.

        Args:
            waits: Wait until it is.
            unless: Tells whether there is nothing to wait for any more; `wake` has it asked again.
        """
        with self._changed:
            if waits:
                self._changed.wait_for(lambda: unless() or self._is_free())
            if unless() or not self._is_free():
                return False
            self._num_out += 1
            return True

    def give_back(self) -> None:
        """Be a worker no longer."""
        with self._changed:
            self._num_out -= 1
            self._changed.notify_all()

    def wait(self, *, until: Callable[[], bool]) -> None:
        """Wait for something of which `wake`, or a permit that comes back, tells."""
        with self._changed:
            self._changed.wait_for(until)

    def wake(self) -> None:
        """Have whoever waits look again."""
        with self._changed:
            self._changed.notify_all()

    def _is_free(self) -> bool:
        return self._most is None or self._num_out < self._most

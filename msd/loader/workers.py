"""Workers of a loader host: threads that transform rows, and how many of them each source may have."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

_T = TypeVar("_T")

MOST_THREADS = 96
"""Of one host, whatever they wait for: beyond, a machine only switches between them."""


class Threads(Executor):
    """Threads that are made when they are needed and keep no process from ending; their number can change."""

    def __init__(self, count: int, name: str) -> None:
        """Start none yet."""
        self.count = count
        self._name = name
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._num_busy = 0
        """At work, or about to be: what was submitted and is not done."""
        self._is_over = False

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
            self._num_busy += 1
            if self._num_busy > len(self._threads) and len(self._threads) < min(self.count, MOST_THREADS):
                thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._work.put(run)
        return done

    def try_submit(self, work: Callable[[], object]) -> bool:
        """Begin work if a thread is idle, or can be made; return whether it is."""
        with self._lock:
            if self._is_over or self._num_busy >= min(self.count, MOST_THREADS):
                return False
        self.submit(work)
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False, timeout_s: float | None = None) -> None:
        """Begin nothing new, and wait for what is under way, at most so long."""
        with self._lock:
            self._is_over, threads = True, list(self._threads)
        for _ in threads:
            self._work.put(None)
        if wait:
            for thread in threads:
                thread.join(timeout_s)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            with self._lock:
                self._num_busy -= 1


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

    def take(self, *, waits: bool) -> bool:
        """Become a worker; return whether that is allowed now. Who waits is allowed in the end."""
        with self._changed:
            if waits:
                self._changed.wait_for(self._is_free)
            elif not self._is_free():
                return False
            self._num_out += 1
            return True

    def give_back(self) -> None:
        """Be a worker no longer."""
        with self._changed:
            self._num_out -= 1
            self._changed.notify()

    def _is_free(self) -> bool:
        return self._most is None or self._num_out < self._most

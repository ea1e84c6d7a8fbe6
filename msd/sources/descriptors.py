"""Open files are counted by process, not by source: of hundreds of readers, those unused for longest wait closed."""

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from msd.errors import ConfigError, EngineError

T = TypeVar("T")

MAX_OPEN_FILES = 128
"""Files of sources that a process holds open, unless `MSD_OPEN_FILES` or `limit_open_files` says otherwise."""

_LEFT_FREE = 64
"""Descriptors that are not ours to take: sockets, logs, libraries."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE)
# Re-entrant: the collector may close a reader that was dropped while this thread holds the lock.
_LOCK = threading.RLock()
_OPEN: "OrderedDict[Lent[Any], None]" = OrderedDict()
"""What is open in this process, the one unused for longest first."""
_chosen_limit: int | None = None


class Lent(Generic[T]):
    """Something that holds a descriptor: opened when it is used, closed whenever nobody uses it and room is needed."""

    def __init__(self, open_one: Callable[[], T], close_one: Callable[[T], object]) -> None:
        """Open with `open_one`, later; it may be called again after any use."""
        self._open_one = open_one
        self._close_one = close_one
        self._handle: T | None = None
        self._num_users = 0

    @contextmanager
    def use(self) -> Iterator[T]:
        """Lend the handle, which stays open meanwhile.

        Raises:
            EngineError: If the system lets this process open no more files, though all that are idle were closed.
        """
        with _LOCK:
            self._num_users += 1
            handle = self._handle
            if handle is not None:
                _OPEN.move_to_end(self)
        try:
            yield self._opened() if handle is None else handle
        finally:
            with _LOCK:
                self._num_users -= 1

    def close(self) -> None:
        """Close the handle, if it is open; the next use opens it again."""
        with _LOCK:
            handle, self._handle = self._handle, None
            _OPEN.pop(self, None)
        if handle is not None:
            self._close_one(handle)

    def _opened(self) -> T:
        _close_idle(down_to=open_files_limit() - 1)
        handle = with_descriptors(self._open_one)
        with _LOCK:
            self._handle = handle
            _OPEN[self] = None
        return handle

    @property
    def is_idle(self) -> bool:
        """Whether nobody uses the handle now."""
        return self._num_users == 0


def with_descriptors(open_one: Callable[[], T]) -> T:
    """Return what `open_one` opens; where the process has no descriptor left, idle files are closed for it.

    Raises:
        EngineError: If that does not help: naming the limit.
    """
    try:
        return open_one()
    except OSError as error:
        if not is_exhausted(error):
            raise
    _close_idle(down_to=0)
    try:
        return open_one()
    except OSError as error:
        if not is_exhausted(error):
            raise
        raise too_many_open(error) from error


def is_exhausted(error: BaseException) -> bool:
    """Return whether an error says that no more files can be open, which is no fault of the file."""
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


def too_many_open(error: OSError) -> EngineError:
    """Return the error for a process or machine that has no descriptor left."""
    if error.errno == errno.ENFILE:
        return EngineError(
            "cannot open another file: this machine has too many open (ENFILE); raise fs.file-max, or run less on it"
        )
    return EngineError(
        f"cannot open another file: this process may have {_soft_limit()} open (ulimit -n) and has, though all idle "
        "files of sources were closed; raise the limit (ulimit -n 65536) or close what else is open"
    )


def open_files_limit() -> int:
    """Return how many files of sources this process holds open at most, those in use at this moment aside.

    What `limit_open_files` set, else `MSD_OPEN_FILES`, else `MAX_OPEN_FILES`, or half of what `ulimit -n` leaves
    after 64 for other uses, if that is less.

    Raises:
        ConfigError: If `MSD_OPEN_FILES` is no positive number.
    """
    if _chosen_limit is not None:
        return _chosen_limit
    given = os.environ.get("MSD_OPEN_FILES")
    if given:
        if not (given.isascii() and given.isdigit() and int(given)):
            raise ConfigError(f"MSD_OPEN_FILES must be a number of files, at least 1, got {given!r}")
        return int(given)
    return max(1, min(MAX_OPEN_FILES, (_soft_limit() - _LEFT_FREE) // 2))


def limit_open_files(limit: int | None) -> None:
    """Hold at most `limit` files of sources open in this process; None goes back to the default.

    Raises:
        ConfigError: If `limit` is below 1.
    """
    global _chosen_limit
    if limit is not None and limit < 1:
        raise ConfigError(f"a process needs at least 1 open file to read sources, got a limit of {limit}")
    _chosen_limit = limit
    _close_idle(down_to=open_files_limit())


def num_open_files() -> int:
    """Return how many files of sources this process holds open now."""
    return len(_OPEN)


def _close_idle(*, down_to: int) -> None:
    while True:
        with _LOCK:
            if len(_OPEN) <= down_to:
                return
            oldest = next((lent for lent in tuple(_OPEN) if lent.is_idle), None)
            if oldest is None:
                return
            handle, oldest._handle = oldest._handle, None
            del _OPEN[oldest]
        # Outside the lock: closing a remote file may take a while.
        oldest._close_one(handle)


def _soft_limit() -> int:
    try:
        import resource
    except ImportError:
        return 512
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft

"""Transforms that end, hang or exhaust the process that they run in, at one row: for tests of what survives it.

Each makes a function of a sample; the row is the one whose `field` has a value.
"""

import ctypes
import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from msd.core.arrays import UInt8Array
from msd.core.sample import RawSample

Transform = Callable[[RawSample], RawSample]


class _At:
    """Does something at the rows that have one of these values; a class, so that it travels by name."""

    def __init__(self, values: tuple[Any, ...], field: str) -> None:
        self.values = values
        self.field = field

    def __call__(self, sample: RawSample) -> RawSample:
        if sample[self.field] in self.values:
            self.harm()
        return sample

    def harm(self) -> None:
        raise NotImplementedError


class SegfaultAt(_At):
    """Reads where no memory is, as broken native code does."""

    def __init__(self, *values: Any, field: str = "n") -> None:
        super().__init__(values, field)

    def harm(self) -> None:
        """Never returns."""
        ctypes.string_at(0)


class KillAt(_At):
    """Is killed as by the kernel that has no memory left."""

    def __init__(self, *values: Any, field: str = "n") -> None:
        super().__init__(values, field)

    def harm(self) -> None:
        """Never returns."""
        os.kill(os.getpid(), signal.SIGKILL)


class LoopAt(_At):
    """Never returns, and lets other threads run."""

    def __init__(self, *values: Any, field: str = "n") -> None:
        super().__init__(values, field)

    def harm(self) -> None:
        """Never return."""
        while True:
            time.sleep(0.01)


class HoldAt(_At):
    """Never returns, and no other thread of the process runs any more: an expression with too many ways to match."""

    def __init__(self, *values: Any, field: str = "n") -> None:
        super().__init__(values, field)

    def harm(self) -> None:
        """Never return within a lifetime."""
        re.match("(a+)+$", "a" * 64 + "b")


class EatAt(_At):
    """Holds more and more memory, and uses it."""

    def __init__(self, *values: Any, field: str = "n", nbytes: int = 10 << 30, step: int = 64 << 20) -> None:
        super().__init__(values, field)
        self.nbytes = nbytes
        self.step = step

    def harm(self) -> None:
        """Hold `nbytes` for as long as the process is let live."""
        held: list[UInt8Array] = []
        while sum(len(each) for each in held) < self.nbytes:
            held.append(np.ones(self.step, dtype=np.uint8))
            # Small machines are to see it grow before they have nothing left.
            time.sleep(0.05)
        time.sleep(3600)


class RaiseMemoryErrorAt(_At):
    """Asks for more memory than there is, and is refused."""

    def __init__(self, *values: Any, field: str = "n") -> None:
        super().__init__(values, field)

    def harm(self) -> None:
        """Raise."""
        raise MemoryError("unable to allocate 9 PiB")

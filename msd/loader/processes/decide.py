"""Do the transforms of a source gain from processes? Decided from what threads took; no clock here.

Threads that hold the interpreter's lock wait for one another. That cannot be read off how long they took, since a
thread also waits where other programs use the cores. So the waiting is told apart: for a core, which the kernel counts,
or for something else, which is the lock. Rows that one thread did alone tell what it waits for besides, such as a disk.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Where: TypeAlias = Literal["threads", "processes"]

WORTH_S = 0.5e-3
"""CPU a row below which processes are not worth it: a row that crosses over costs about a tenth of this."""
ENOUGH_ROWS = 16
ENOUGH_S = 0.05
"""CPU seconds of a measurement, all rows together."""
TURNS_S = 0.01
"""CPU seconds of each of two threads at once, below which waiting does not show: two turns of the lock, which takes
5 ms to change hands."""
FREE_OVERLAP = 1.5
"""Two threads that use so many cores at once do not hold the lock for long."""
HELD_SHARE = 0.25
"""Of threads that do not, those that wait for one another for more than this share of their time do. Image decoding
waits for a tenth, loops in Python for half or more, also on a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What rows took on one thread, or on several added up."""

    num_rows: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    queued_s: float = 0.0
    """Ready to run, but without a core."""

    @property
    def blocked_s(self) -> float:
        """Seconds that it waited for anything but a core."""
        return max(0.0, self.wall_s - self.cpu_s - self.queued_s)

    def __add__(self, other: "Timing") -> "Timing":
        return Timing(
            num_rows=self.num_rows + other.num_rows,
            wall_s=self.wall_s + other.wall_s,
            cpu_s=self.cpu_s + other.cpu_s,
            queued_s=self.queued_s + other.queued_s,
        )


def where_to_transform(alone: Timing, together: Timing, span_s: float) -> Where | None:
    """Return where the transforms of a source are to run, or None while that cannot be told.

    Args:
        alone: Rows done by one thread.
        together: Rows done by two threads at once, added up.
        span_s: Seconds that those two took, from the first start to the last end.
    """
    if not is_measured(alone):
        return None
    if is_cheap(alone):
        return "threads"
    if together.cpu_s < ENOUGH_S:
        return None
    held = holds_lock(alone, together, span_s)
    return None if held is None else "processes" if held else "threads"


def is_measured(timing: Timing) -> bool:
    """Return whether a timing says enough of what a row takes."""
    return timing.num_rows >= ENOUGH_ROWS or timing.cpu_s >= ENOUGH_S


def is_cheap(timing: Timing) -> bool:
    """Return whether rows take too little to be worth sending anywhere."""
    return timing.cpu_s < WORTH_S * timing.num_rows


def shows_in(alone: Timing, num_rows: int) -> bool:
    """Return whether two threads with so many rows each would show that they wait for one another."""
    return alone.cpu_s * num_rows >= TURNS_S * alone.num_rows


def holds_lock(alone: Timing, together: Timing, span_s: float) -> bool | None:
    """Return whether two threads wait for one another, or None if neither that nor its opposite shows.

    Neither shows on a machine without a free core: what does not run does not hold a lock either.
    """
    if together.cpu_s >= FREE_OVERLAP * span_s:
        return False
    before = alone.blocked_s / alone.cpu_s
    more = together.blocked_s / together.cpu_s - before
    return True if more >= HELD_SHARE * (1.0 + before) else None

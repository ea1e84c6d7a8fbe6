"""Who prepares what: loaders of a source, where they sit, and how many workers each has. Values, no decisions."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import TypeAlias

STRIPE_ROWS = 64
"""Rows of a stripe, where a window is divided among loaders: as many as one request has at most."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A loader of one source on one host."""

    partition: int
    """Which loader of the source: it keeps its number when it moves or others come and go."""
    host: str
    workers: int | None = None
    """Threads or processes that may run its transforms at once; None: as many as are idle on its host."""


@dataclass(frozen=True, slots=True)
class Seating:
    """The loaders of one source, which divide its windows in turn."""

    seats: tuple[Seat, ...]
    is_striped: bool = False
    """False: a window goes to one loader, which reads its blocks once. True: each window is divided in stripes of
    `STRIPE_ROWS`, for windows that one host cannot prepare in time; every loader then reads all blocks."""

    @property
    def turns(self) -> tuple[int, ...]:
        """Which seat has the next window or stripe, over and over: seats have turns in proportion to their workers."""
        return _turns(self.seats)

    @property
    def workers(self) -> int | None:
        """Workers of all loaders together; None if some have whatever is idle."""
        each = [seat.workers for seat in self.seats]
        return None if any(number is None for number in each) else sum(number or 0 for number in each)


@lru_cache(maxsize=4096)
def _turns(seats: tuple[Seat, ...]) -> tuple[int, ...]:
    weights = [seat.workers or 1 for seat in seats]
    common = gcd(*weights)
    # In rounds, so that the turns of one seat do not follow one another.
    return tuple(
        seat
        for turn in range(max(weights, default=0) // common)
        for seat, weight in enumerate(weights)
        if turn < weight // common
    )


Allocation: TypeAlias = Mapping[str, Seating]
"""By source."""

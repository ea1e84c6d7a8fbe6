"""Simulated time: nothing waits, what is due next happens next."""

import heapq
from collections.abc import Callable


class Clock:
    """Acts in order of their time; of two at one time the one that was set first."""

    def __init__(self) -> None:
        """Begin at 0 seconds with nothing to do."""
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Have `act` called in so many seconds."""
        self._number += 1
        heapq.heappush(self._due, (self.now + seconds, self._number, act))

    def advance(self) -> bool:
        """Do what is due next; return False if there is nothing."""
        if not self._due:
            return False
        self.now, _, act = heapq.heappop(self._due)
        act()
        return True

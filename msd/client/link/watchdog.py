"""When a wait has lasted so long that people should hear of it. Pure: no clock."""


class Watchdog:
    """Of one wait: due after a time, and again each time the wait has lasted twice as long."""

    def __init__(self, warn_s: float | None) -> None:
        """Get ready; None is never due."""
        self._next_s = float("inf") if warn_s is None else warn_s

    def left_s(self, waited_s: float) -> float:
        """Return how long it is until the watchdog is due."""
        return max(0.0, self._next_s - waited_s)

    def is_due(self, waited_s: float) -> bool:
        """Return whether people should hear of the wait now; they have then."""
        if waited_s < self._next_s:
            return False
        while self._next_s <= waited_s:
            self._next_s *= 2
        return True

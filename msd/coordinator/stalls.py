"""How long planning has waited for one thing, and what is to be done about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from msd.planner.planner import Starved

WARN_S = 30.0
"""A wait of this length is told, and again each time it has doubled: before a trainer's own time-out would."""

Verdict: TypeAlias = Literal["go on", "warn", "suspend", "stop"]


@dataclass(frozen=True, slots=True)
class StallTerms:
    """What happens when a source does not deliver."""

    after_s: float = 60.0
    then: Literal["wait", "suspend", "stop"] = "wait"


class Watch:
    """Measures waits against a clock that others read."""

    def __init__(self, terms: Mapping[str, StallTerms], *, deadline_s: float) -> None:
        """Wait for nothing.

        Args:
            terms: Of the sources that say what happens when they do not deliver.
            deadline_s: For how long a run without a loader host waits for another.
        """
        self._terms = terms
        self._deadline_s = deadline_s
        self._what: object = None
        self._since_s = 0.0
        self._next_s = WARN_S
        self._is_settled = False
        self._orphaned_by: str | None = None
        self._orphaned_s = 0.0

    def is_orphaned_too_long(self, now_s: float, host: str | None) -> bool:
        """Note which lost host was the last at a time, if one was; return whether that has been too long."""
        if host != self._orphaned_by:
            self._orphaned_by, self._orphaned_s = host, now_s
        return host is not None and now_s - self._orphaned_s >= self._deadline_s

    def look(self, now_s: float, waits_for: str | None, starved: Starved | None) -> Verdict:
        """Note what planning waits for at a time and return what to do.

        Args:
            now_s: Of a clock that only goes forward.
            waits_for: In words, None for nothing.
            starved: The row, if it is one that nobody has planned with.
        """
        terms = None if starved is None else self._terms.get(starved.source)
        what = starved or waits_for
        if what != self._what:
            self._what, self._since_s, self._is_settled = what, now_s, False
            self._next_s = WARN_S if terms is None else min(WARN_S, terms.after_s)
        if what is None:
            return "go on"
        waited_s = self.waited_s(now_s)
        if terms is not None and terms.then != "wait" and waited_s >= terms.after_s and not self._is_settled:
            self._is_settled = True
            return terms.then
        if waited_s < self._next_s:
            return "go on"
        while self._next_s <= waited_s:
            self._next_s = _next(self._next_s, terms)
        return "warn"

    def waited_s(self, now_s: float) -> float:
        """Return for how long the present wait has lasted."""
        return now_s - self._since_s


def _next(told_s: float, terms: StallTerms | None) -> float:
    """Return when a wait is told again: each `after_s` of a source, else each time it has doubled."""
    if terms is None:
        return 2 * told_s
    return terms.after_s if told_s < terms.after_s else told_s + terms.after_s

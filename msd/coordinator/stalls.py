"""How long planning has waited for one thing, and what is to be done about it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from msd.coordinator.standing import Stall
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

    def __init__(self, terms: Mapping[str, StallTerms], *, deadline_s: float, stall: Stall | None = None) -> None:
        """Wait for nothing.

        Args:
            terms: Of the sources that say what happens when they do not deliver.
            deadline_s: For how long a run without a loader host waits for another.
            stall: What the planner before this one waited for: if this one comes to wait for the same row, the time
                until then counts.
        """
        self._terms = terms
        self._deadline_s = deadline_s
        self._orphaned_by: str | None = None
        self._orphaned_s = 0.0
        self._now_s: float | None = None
        self.begin(stall)

    def begin(self, stall: Stall | None = None) -> None:
        """Wait for nothing: a generation begins, or a planner in the place of one that waited."""
        self._what: object = None
        self._since_s = 0.0
        self._next_s = WARN_S
        self._is_settled = self._is_put_off = False
        self.inherited = stall
        """What was waited for before this planner was there, as long as it is not known to have come."""
        self._begun_s: float | None = None
        """When the inherited wait began, on this clock."""

    @property
    def stall(self) -> Stall | None:
        """The row that is waited for, with the time up to the last look."""
        if isinstance(self._what, Starved) and self._now_s is not None:
            return Stall(self._what.source, self._what.ordinal, self.waited_s(self._now_s))
        if self.inherited is None or self._begun_s is None or self._now_s is None:
            return self.inherited
        return replace(self.inherited, waited_s=self._now_s - self._begun_s)

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
        self._now_s = now_s
        if self.inherited is not None and self._begun_s is None:
            self._begun_s = now_s - self.inherited.waited_s
        terms = None if starved is None else self._terms.get(starved.source)
        what = starved or waits_for
        if what != self._what:
            self._waits_anew(what, now_s, terms)
        if what is None:
            return "go on"
        waited_s = self.waited_s(now_s)
        if terms is not None and terms.then != "wait" and waited_s >= terms.after_s and not self._is_settled:
            self._is_settled = True
            return terms.then
        if waited_s < self._next_s:
            return "go on"
        self._told_until(waited_s, terms)
        return "warn"

    def put_off(self) -> bool:
        """Have the last verdict come again at the next look; return whether this is the first time in this wait."""
        is_first, self._is_put_off, self._is_settled = not self._is_put_off, True, False
        return is_first

    def waited_s(self, now_s: float) -> float:
        """Return for how long the present wait has lasted."""
        return now_s - self._since_s

    def _waits_anew(self, what: object, now_s: float, terms: StallTerms | None) -> None:
        self._what, self._since_s, self._is_settled, self._is_put_off = what, now_s, False, False
        self._next_s = WARN_S if terms is None else min(WARN_S, terms.after_s)
        inherited, begun_s = self.inherited, self._begun_s
        if inherited is None or begun_s is None or not isinstance(what, Starved):
            return
        self.inherited = None
        if what == Starved(inherited.source, inherited.ordinal):
            self._since_s = begun_s
            # What the planner before said of it need not be said again.
            self._told_until(inherited.waited_s, terms)

    def _told_until(self, waited_s: float, terms: StallTerms | None) -> None:
        while self._next_s <= waited_s:
            self._next_s = _next(self._next_s, terms)


def _next(told_s: float, terms: StallTerms | None) -> float:
    """Return when a wait is told again: each `after_s` of a source, else each time it has doubled."""
    if terms is None:
        return 2 * told_s
    return terms.after_s if told_s < terms.after_s else told_s + terms.after_s

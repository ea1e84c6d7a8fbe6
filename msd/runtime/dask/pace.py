"""How fast a run goes of late, and what it waits for: sums that the planner's process keeps. No clock."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msd.scaling.limits import Limit, limit_of

LOOKS = 15
"""That are kept, a second apart: of late is as long."""


@dataclass(frozen=True, slots=True)
class _Look:
    at_s: float
    samples: Mapping[str, float]
    starved_s: Mapping[str, float]
    waited_s: float


class Pace:
    """Of one planner."""

    def __init__(self) -> None:
        """Have seen nothing."""
        self.starved_s: defaultdict[str, float] = defaultdict(float)
        """By source, for how long planning has waited for its rows."""
        self.decide_s = 0.0
        """CPU that the coordinator took: planning, mostly."""
        self.waited_s = 0.0
        """For how long ranks have waited for steps, on average."""
        self._waits: dict[int, float] = {}
        self._looks: deque[_Look] = deque(maxlen=LOOKS)

    def note_starved(self, source: str, seconds: float) -> None:
        """Take that planning waited for a source."""
        self.starved_s[source] += seconds

    def note_waits(self, waits: Sequence[tuple[int, float]]) -> None:
        """Take for how long loops have waited, by rank, all together; a rank that connects anew begins anew."""
        for rank, waited_s in waits:
            before = self._waits.get(rank)
            self._waits[rank] = waited_s
            # What a rank waited before this planner heard of it was not for this planner.
            if before is not None and waited_s > before:
                self.waited_s += (waited_s - before) / len(self._waits)

    def look(self, now_s: float, samples: Mapping[str, float]) -> None:
        """Remember how things stand."""
        self._looks.append(_Look(now_s, dict(samples), dict(self.starved_s), self.waited_s))

    def limit(self) -> Limit | None:
        """Return the source that limits the steps of late, if one does."""
        if len(self._looks) < 2:
            return None
        first, last = self._looks[0], self._looks[-1]
        samples = {name: count - first.samples.get(name, 0.0) for name, count in last.samples.items()}
        starved_s = {name: total - first.starved_s.get(name, 0.0) for name, total in last.starved_s.items()}
        return limit_of(samples, starved_s, waited_s=last.waited_s - first.waited_s, elapsed_s=last.at_s - first.at_s)

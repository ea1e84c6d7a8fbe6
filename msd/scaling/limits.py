"""Which source limits the steps of a run, and by how much: for people who ask why it is slow."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

LEAST_WAITED = 0.02
"""Part of the time that ranks must wait for anything to be said to limit them."""
LEAST_STARVED = 0.25
"""Part of that waiting in which planning must have waited for a source for it to be the reason."""
MOST_HUNGER = 20.0
"""Times what it gives that a source is said to be needed for at most: how long ranks waited is known roughly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A source that gives less than ranks would take."""

    source: str
    gives: float
    """Samples/s."""
    needed: float
    """Samples/s, if ranks are not to wait."""
    waited: float
    """Part of the time in which ranks waited."""

    def __str__(self) -> str:
        return f"{self.source} limits the step: {_short(self.gives)} samples/s of {_short(self.needed)} needed"

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, with the sentence that says it."""
        return {**asdict(self), "text": str(self)}


def limit_of(
    samples: Mapping[str, float], starved_s: Mapping[str, float], *, waited_s: float, elapsed_s: float
) -> Limit | None:
    """Return the source that limited the steps of an interval, None if none did.

    Args:
        samples: Drawn of each source in the interval.
        starved_s: Seconds in which planning waited for rows of each.
        waited_s: Seconds for which ranks waited, on average.
        elapsed_s: Of the interval.
    """
    if elapsed_s <= 0 or not starved_s or waited_s < LEAST_WAITED * elapsed_s:
        return None
    worst = max(starved_s, key=lambda name: (starved_s[name], name))
    if starved_s[worst] < LEAST_STARVED * waited_s:
        return None
    waited = min(1.0 - 1.0 / MOST_HUNGER, waited_s / elapsed_s)
    gives = samples.get(worst, 0.0) / elapsed_s
    return Limit(source=worst, gives=gives, needed=gives / (1.0 - waited), waited=waited)


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"

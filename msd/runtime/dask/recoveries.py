"""What was lost and how it was made good: told in the log `msd` once each, and kept for `engine.stats()`."""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from msd.coordinator.staff import Fill, Kind, Vacate

_LOG = logging.getLogger("msd")
_KEPT = 200
_SAID = {"planner": "planner", "constructor": "constructor", "host": "loader host"}


@dataclass(slots=True)
class _Recovery:
    at: str
    role: str
    name: str
    how: str
    took_s: float | None
    """From when the loss was noticed until the post was held again; None while it is not."""
    began_s: float


class Recoveries:
    """The list of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin with none.

        Args:
            clock: Seconds, of the clock that durations are measured with.
        """
        self._clock = clock
        self._all: deque[_Recovery] = deque(maxlen=_KEPT)
        self._open: dict[Kind, deque[_Recovery]] = {"planner": deque(), "constructor": deque(), "host": deque()}

    def lost(self, vacated: Vacate) -> None:
        """Note that a post is held no longer."""
        role = _SAID[vacated.kind]
        one = _Recovery(
            datetime.now(UTC).isoformat(timespec="milliseconds"), role, vacated.post, vacated.how, None, self._clock()
        )
        self._all.append(one)
        self._open[vacated.kind].append(one)
        if vacated.kind == "host":
            _LOG.warning(
                "loader host %s is lost (%s): others prepare its rows, and nothing that is delivered changes",
                vacated.post,
                vacated.how,
            )

    def filled(self, filled: Fill) -> None:
        """Note that a post is held: the oldest loss of its kind is made good."""
        ended = [one for one in self._open[filled.kind] if filled.kind == "host" or one.name == filled.post]
        for one in ended[:1] if filled.kind == "host" else ended:
            self._open[filled.kind].remove(one)
            one.took_s = self._clock() - one.began_s
            if filled.kind == "host":
                _LOG.info("loader host %s joined %.1f s after %s was lost", filled.post, one.took_s, one.name)
            else:
                _LOG.warning(
                    "%s was lost (%s); it goes on in worker %s after %.1f s",
                    "the planner" if filled.kind == "planner" else one.name,
                    one.how,
                    filled.worker.name,
                    one.took_s,
                )

    def scheduler(self, address: str, took_s: float) -> None:
        """Note that a scheduler was gone, and that all was built anew."""
        _LOG.warning("the Dask scheduler at %s was gone; everything was made anew after %.1f s", address, took_s)
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._all.append(_Recovery(at, "scheduler", address, "the connection was lost", took_s, self._clock()))

    def as_list(self) -> list[dict[str, Any]]:
        """Return them as JSON-able values, the oldest first."""
        return [
            {"at": one.at, "role": one.role, "name": one.name, "how": one.how, "took_s": one.took_s}
            for one in self._all
        ]

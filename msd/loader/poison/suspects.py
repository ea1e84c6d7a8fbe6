"""Which rows of a process's sources are not run like others, and what it has to tell of such rows."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from msd.core.sample import Outcome
from msd.errors import ConfigError
from msd.loader.poison.notes import Ended

KILLED = "killed"
_OUTCOMES = {"skip": Outcome.SKIPPED, KILLED: Outcome.KILLED}


class RowsLost(Exception):
    """A process ended, or had no memory left, while it had rows of one source: one of them may be why."""

    def __init__(self, ordinals: Sequence[int], how: str) -> None:
        super().__init__(f"{len(ordinals)} rows were lost: {how}")
        self.ordinals = tuple(ordinals)
        self.how = how


class RowsKilled(Exception):
    """Rows that nothing else was run beside ended or hung their process: they give nothing, and nothing is known yet.

    What they are answered with is decided elsewhere, for all processes; see `Suspects.avoid`.
    """

    def __init__(self, killed: Sequence["Killed"]) -> None:
        super().__init__(", ".join(f"row {one.ordinal} of {one.source!r}: {one.how}" for one in killed))
        self.killed = tuple(killed)


@dataclass(frozen=True, slots=True)
class Killed:
    """A row that ended or hung a process that had nothing else in hand."""

    source: str
    ordinal: int
    how: str


News: TypeAlias = Ended | Killed


class Suspects:
    """What one process knows of such rows; for any number of threads, each of which sees what is known when it asks."""

    def __init__(self) -> None:
        """Suspect nothing."""
        self._changed = threading.Condition()
        self._isolated: dict[str, frozenset[int]] = {}
        self._died: dict[tuple[str, int], str] = {}
        self._avoided: dict[str, tuple[tuple[int, int, Outcome], ...]] = {}
        self._news: list[tuple[int, News]] = []
        self._num_news = 0
        self.on_news: Callable[[], object] = lambda: None
        """Called by the thread that has something to tell."""

    def isolate(self, rows: Iterable[tuple[str, int]]) -> None:
        """Have rows, (source, ordinal) each, run one at a time in a process of their own from now on."""
        found: dict[str, set[int]] = {}
        for source, ordinal in rows:
            found.setdefault(source, set()).add(ordinal)
        with self._changed:
            for source, ordinals in found.items():
                self._isolated[source] = self.isolated(source) | ordinals

    def avoid(self, source: str, first: int, last: int, reason: str) -> None:
        """Have rows never be run again.

        Args:
            source: Their source.
            first: Ordinal.
            last: Ordinal, inclusive.
            reason: As in `core.journal.SkipRows`: `killed` or `skip`.
        """
        if reason not in _OUTCOMES:
            raise ConfigError(f"rows are avoided for one of {', '.join(_OUTCOMES)}, got {reason!r}")
        with self._changed:
            entry = (first, last, _OUTCOMES[reason])
            known = self._avoided.get(source, ())
            if entry not in known:
                # What killed says more than what somebody asked for.
                self._avoided[source] = tuple(sorted((*known, entry), key=lambda each: -each[2].value))
            self._changed.notify_all()

    def isolated(self, source: str) -> frozenset[int]:
        """Return the ordinals of a source that run alone."""
        return self._isolated.get(source, frozenset())

    def avoided(self, source: str, start: int, stop: int) -> dict[int, Outcome]:
        """Return what rows `start .. stop - 1` of a source are answered with that are not run at all."""
        found: dict[int, Outcome] = {}
        for first, last, outcome in self._avoided.get(source, ()):
            found.update(dict.fromkeys(range(max(first, start), min(last + 1, stop)), outcome))
        return found

    def killed(self, source: str) -> frozenset[int]:
        """Return the ordinals of a source that are never run again because they ended their process."""
        return frozenset(
            ordinal
            for first, last, outcome in self._avoided.get(source, ())
            if outcome is Outcome.KILLED
            for ordinal in range(first, last + 1)
        )

    def died(self, source: str, ordinal: int, how: str) -> None:
        """Note that a row ended the process that it was run apart in."""
        with self._changed:
            self._died[source, ordinal] = how

    def how_died(self, source: str, ordinal: int) -> str | None:
        """Return how a row ended the process that it was run apart in, if it did: once is enough."""
        return self._died.get((source, ordinal))

    def struck(self, ended: Ended) -> None:
        """Isolate rows that were in hand when a process ended, and tell of them."""
        self.isolate(ended.rows)
        if not ended.is_alone:
            self.tell(ended)
            return
        for source, ordinal in ended.rows:
            self.tell(Killed(source, ordinal, ended.how))

    def tell(self, news: News) -> None:
        """Add something to tell."""
        with self._changed:
            self._num_news += 1
            self._news.append((self._num_news, news))
        self.on_news()

    def news(self, seen: int) -> tuple[int, list[News]]:
        """Return the number of the last thing to tell, and all that are not known to have come.

        Args:
            seen: The number that came with the last answer that came.
        """
        with self._changed:
            self._news = [(number, news) for number, news in self._news if number > seen]
            self._changed.notify_all()
            return self._num_news, [news for _, news in self._news]

    def wait_told(self, timeout_s: float) -> bool:
        """Wait until all news are known to have come; return whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._news, timeout_s)

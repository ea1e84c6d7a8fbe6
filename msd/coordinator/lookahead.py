"""Which rows to have examined next, so that planning seldom waits. Never changes what is planned.

Per source: rows that were asked for, metadata that arrived (in any order, perhaps twice), and how far ahead of the
draws it pays to be. Metadata has no bound of its own; the payload behind it does: all sources together have so many
bytes, of which each has a part as large as what steps take of it; past its part a source is asked for no more than the
row that the planner waits for. So a source that nobody draws from, or one with large rows, holds up no other.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from msd.core.allocation import STRIPE_ROWS
from msd.core.order import SourceOrder
from msd.core.sample import MetaTable

FIRST_ROWS = 8
MOST_ROWS = 4096
LEAST_STEPS, MOST_STEPS = 2.0, 6.0
"""Steps' worth of rows that it pays to have ready: more of a source that steps wait for, since some take more of it
than others, and its workers are not to be idle after one that took less."""
SMOOTHING = 0.3
"""Weight of the newest step, or table, in what is taken for usual."""
EQUAL_PART = 0.1
"""Of the bytes that may wait: divided equally, so that a source of which little was drawn can begin."""


@dataclass(frozen=True, slots=True)
class RowRequest:
    """Consecutive rows of one window, to be examined. It is answered by one table of exactly these rows.

    Of a source without an end one of the first of them is an answer, too, if the others are still to come.
    """

    source: str
    start: int
    num_rows: int


class Waiting:
    """The bytes that rows of all sources may have waiting, and what the steps take of each."""

    def __init__(self, max_bytes: int, num_sources: int) -> None:
        """Let every source have the same until it is known what steps take."""
        self._max_bytes = max_bytes
        self._num_sources = max(1, num_sources)
        self._step_bytes = 0.0

    def weigh(self, change: float) -> None:
        """Take that steps have so many bytes more than before."""
        self._step_bytes = max(0.0, self._step_bytes + change)

    def part_of(self, step_bytes: float) -> float:
        """Return the bytes that a source may have waiting, of which steps take so many."""
        equal = 1.0 / self._num_sources
        by_need = step_bytes / self._step_bytes if self._step_bytes > 0 else equal
        return self._max_bytes * (EQUAL_PART * equal + (1.0 - EQUAL_PART) * min(1.0, by_need))


class Lookahead:
    """Rows of one source on their way to a planner."""

    def __init__(self, order: SourceOrder, *, total: int | None, start: int, waiting: Waiting) -> None:
        """Begin at ordinal `start` of a source that has `total` ordinals, or no end."""
        self._order = order
        self._total = 0 if order.rows_per_epoch == 0 else total
        self._waiting = waiting
        self._asked = start
        self._arrived = start
        self._consumed = start
        self._open: dict[int, RowRequest] = {}
        """Asked and not answered, by start."""
        self._repeated: dict[int, RowRequest] = {}
        """Of those, the ones to ask once more."""
        self._early: dict[int, MetaTable] = {}
        self._weight: deque[tuple[int, int]] = deque()
        self._bytes_ahead = 0
        self._row_bytes = self._step_bytes = 0.0
        """Of late: of a row, and of what a step takes."""
        self._rows_ahead = FIRST_ROWS
        self._steps_ahead = LEAST_STEPS
        self._was_starved = False
        """Whether the planner has waited since its last step."""
        self._needs: int | None = None
        self._on_its_way = start
        """The ordinal after the last row that is asked for once the last doubling has had its effect."""

    @property
    def observed(self) -> int:
        """The ordinal after the last row that arrived with all before it."""
        return self._arrived

    @property
    def asked(self) -> int:
        """The first ordinal that nobody was asked for."""
        return self._asked

    @property
    def wanted(self) -> int:
        """Rows that it pays to have ready."""
        return self._rows_ahead

    @property
    def consumed(self) -> int:
        """The ordinal at which the planner stood after its last step."""
        return self._consumed

    @property
    def repeats(self) -> bool:
        """Whether something is to be asked once more."""
        return bool(self._repeated)

    def starve(self, ordinal: int) -> None:
        """Note that the planner needs `ordinal` now: look twice as far ahead from here on.

        Not for rows that looking further ahead has brought on their way: how often the planner waits for those depends
        on how they are cut, and what it need not wait for would pile up.
        """
        if self._needs != ordinal and ordinal >= self._on_its_way:
            self._rows_ahead = min(MOST_ROWS, 2 * self._rows_ahead)
            self._on_its_way = max(ordinal + 1, self._consumed + self._rows_ahead)
        self._needs, self._was_starved = ordinal, True

    def consume(self, ordinal: int) -> None:
        """Note that the planner stands at `ordinal` after a step."""
        used = ordinal - self._consumed
        self._consumed = ordinal
        if self._was_starved:
            self._steps_ahead = min(MOST_STEPS, self._steps_ahead + 1.0)
        else:
            self._steps_ahead = max(LEAST_STEPS, self._steps_ahead - 0.1)
        self._was_starved = False
        # So many steps' worth ahead, forgetting a rush slowly.
        ahead = max(int(self._steps_ahead * used), self._rows_ahead * 7 // 8)
        self._rows_ahead = max(FIRST_ROWS, min(MOST_ROWS, ahead))
        before = self._bytes_ahead
        while self._weight and self._weight[0][0] <= ordinal:
            self._bytes_ahead -= self._weight.popleft()[1]
        change = SMOOTHING * (before - self._bytes_ahead - self._step_bytes)
        self._step_bytes += change
        self._waiting.weigh(change)

    def forget(self) -> None:
        """Have what steps take of this source count no longer: another one is in its place."""
        self._waiting.weigh(-self._step_bytes)
        self._step_bytes = 0.0

    def requests(self) -> list[RowRequest]:
        """Return what to ask for now; it is then counted as asked."""
        wanted = self._consumed + self._rows_ahead
        if self._needs is not None:
            wanted = max(wanted, self._needs + 1)
        asked, self._repeated = list(self._repeated.values()), {}
        while self._asked < wanted and (self._total is None or self._asked < self._total):
            if self._is_full() and not (self._needs is not None and self._asked <= self._needs):
                break
            window = self._order.window_at(self._asked)
            # Requests end where stripes do: each is for one loader, however windows are divided.
            stripe = STRIPE_ROWS - (self._asked - window.first_ordinal) % STRIPE_ROWS
            end = min(window.first_ordinal + window.num_rows, self._asked + stripe, wanted)
            end = end if self._total is None else min(end, self._total)
            request = RowRequest(self._order.source, self._asked, end - self._asked)
            self._open[request.start] = request
            asked.append(request)
            self._asked = end
        return asked

    def _is_begun(self, request: RowRequest, table: MetaTable) -> bool:
        """Return whether a table answers the first rows of a request, of which the others are still to come."""
        return self._order.is_unbounded and 0 < table.num_rows < request.num_rows

    def _is_full(self) -> bool:
        """Return whether as many bytes wait as may, those that are on their way included."""
        coming = (self._asked - self._arrived) * self._row_bytes
        return self._bytes_ahead + coming > self._waiting.part_of(self._step_bytes)

    def unanswered(self) -> list[RowRequest]:
        """Return what was asked and has not arrived, the first rows first."""
        return sorted(self._open.values(), key=lambda request: request.start)

    def ask_again(self, concerns: Callable[[RowRequest], bool]) -> None:
        """Ask once more for rows that have not arrived: those of the requests that `concerns` returns true for.

        The same requests are made, so that an answer to the first is as good as one to the second.
        """
        self._repeated |= {start: request for start, request in self._open.items() if concerns(request)}

    def arrive(self, table: MetaTable) -> list[MetaTable]:
        """Take a table and return those that now follow one another without a gap; one nobody waits for is left out."""
        request = self._open.get(table.start)
        if request is not None and (request.num_rows == table.num_rows or self._is_begun(request, table)):
            del self._open[table.start]
            self._repeated.pop(table.start, None)
            self._early[table.start] = table
            if table.num_rows < request.num_rows:
                rest = RowRequest(request.source, table.end, request.num_rows - table.num_rows)
                self._open[rest.start] = self._repeated[rest.start] = rest
        ready = []
        while self._arrived in self._early:
            following = self._early.pop(self._arrived)
            ready.append(following)
            num_bytes = int(following.num_bytes_S.sum())
            if following.num_rows:
                self._row_bytes += SMOOTHING * (num_bytes / following.num_rows - self._row_bytes)
            self._weight.append((following.end, num_bytes))
            self._bytes_ahead += num_bytes
            self._arrived = following.end
        return ready

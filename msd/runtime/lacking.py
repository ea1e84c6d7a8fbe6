"""Rows of sources without an end that a run in one process asked for and that are still to come."""

import time
from collections.abc import Callable

from msd.errors import DeadlineError
from msd.loader.admitted import RowsNotHere


class Lacking:
    """The first such row of each source."""

    def __init__(self) -> None:
        """Lack nothing."""
        self._rows: dict[str, RowsNotHere] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def note(self, lack: RowsNotHere) -> None:
        """Take that a row is still to come."""
        known = self._rows.get(lack.source)
        if known is None or lack.ordinal < known.ordinal:
            self._rows[lack.source] = lack

    def clear(self) -> None:
        """Lack nothing, as far as is known."""
        self._rows.clear()

    def first(self, source: str | None) -> RowsNotHere:
        """Return what a source lacks, or another one if it lacks nothing."""
        return self._rows.get(source or "") or next(iter(self._rows.values()))


class Patience:
    """A wait for such rows, as long as a run may wait."""

    def __init__(self, deadline_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to wait now."""
        self._deadline_s = deadline_s
        self._clock = clock
        self._began_s = clock()

    def pause_s(self, step: int, lack: RowsNotHere) -> float:
        """Return how long to wait before looking again.

        Raises:
            DeadlineError: If it has been too long, naming the step, the row, and where it is looked for.
        """
        waited_s = self._clock() - self._began_s
        if waited_s >= self._deadline_s:
            raise DeadlineError(
                f"step {step} waited {waited_s:.1f} s for {lack}; write more, or raise runtime.deadline_s"
            )
        return min(lack.poll_s, self._deadline_s - waited_s)

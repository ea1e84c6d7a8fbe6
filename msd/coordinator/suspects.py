"""Rows that may end or hang a process: their transforms run alone from then on, so that the next time is evidence."""

from collections.abc import Iterable

RowAt = tuple[str, int]
"""(source, ordinal)"""


class Suspects:
    """Remembers which rows were in hand when a process ended."""

    def __init__(self, isolated: Iterable[RowAt] = ()) -> None:
        """Begin with rows that were in hand already."""
        self._rows = dict.fromkeys(isolated)

    @property
    def isolated(self) -> tuple[RowAt, ...]:
        """The rows whose transforms run in a process of their own."""
        return tuple(self._rows)

    def ended(self, rows: Iterable[RowAt]) -> tuple[RowAt, ...]:
        """Note rows of which one may have ended a process; return those that are under suspicion only now.

        However often a row is among them, it is only known to be the one when it was alone.
        """
        fresh = tuple(row for row in dict.fromkeys(rows) if row not in self._rows)
        self._rows.update(dict.fromkeys(fresh))
        return fresh

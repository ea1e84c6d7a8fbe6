"""What a shadow does while it stands by: it gets ready for the rows that it may be asked for."""

from collections.abc import Mapping
from typing import TypeAlias

from msd.core.order import SourceOrder

Ahead: TypeAlias = tuple[str, int, int]
"""(source, start, num_rows)"""

FILL_ROWS = 64
"""Rows that one source is filled by at a time."""
MOST_FILLED = 512
"""Rows of one source that a shadow holds ahead of where the run stands."""


class Standby:
    """Decides what a shadow prepares next.

    The first row of each source is examined once and let go: by then what transforms import is imported, tokenizers
    are made and files are open. Only a shadow that is to fill goes on, and holds what it prepares.
    """

    def __init__(self, orders: Mapping[str, SourceOrder], *, fills: bool) -> None:
        """Stand by for nothing yet.

        Args:
            orders: The sequence of each source.
            fills: Whether payload is prepared ahead and held.
        """
        self._orders = orders
        self._fills = fills
        self._cursors: dict[str, int] = {}
        self._ready_to: dict[str, int] = {}
        """By source: the ordinal up to which rows were prepared."""

    def follow(self, cursors: Mapping[str, int]) -> None:
        """Take where the rows of the next steps begin."""
        self._cursors = dict(cursors)

    def next(self) -> Ahead | None:
        """Return rows to prepare now, those of the source that is least ready; they count as prepared."""
        behind = sorted(
            (self._ready_to.get(source, -1) - cursor, source)
            for source, cursor in self._cursors.items()
            if self._orders[source].rows_per_epoch
        )
        for _, source in behind:
            start = max(self._cursors[source], self._ready_to.get(source, 0))
            if source not in self._ready_to:
                return self._prepared(source, start, 1)
            if self._fills and start < self._cursors[source] + MOST_FILLED:
                window = self._orders[source].window_at(start)
                return self._prepared(source, start, min(FILL_ROWS, window.first_ordinal + window.num_rows - start))
        return None

    def _prepared(self, source: str, start: int, num_rows: int) -> Ahead:
        self._ready_to[source] = start + num_rows
        return source, start, num_rows

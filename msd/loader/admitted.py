"""Rows of a source without an end, by ordinal: those of each admission are read as those of a source of their own."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from msd.core.sample import AdmittedFrom
from msd.core.unbounded import Admitted, UnboundedOrder, inner_ordinal
from msd.errors import SourceError
from msd.loader.rows import Row, RowReader
from msd.sources.base import BlockReader
from msd.sources.unending import Unending

SEEN_S = 10.0
"""What another host admitted is to be seen here within this time, also where a network file system caches names."""
_KEPT_READERS = 4


class RowsNotHere(SourceError):
    """Nobody has written the row yet."""

    def __init__(self, source: str, ordinal: int, admitted: int, lack: str, *, poll_s: float) -> None:
        """Say which row, and what is waited for."""
        super().__init__(
            f"sources.{source}: row {ordinal} is not there yet: {admitted} rows were admitted so far"
            f"{f'; {lack}' if lack else ''}"
        )
        self.source = source
        self.ordinal = ordinal
        self.why = lack
        self.poll_s = poll_s


class AdmittedRows:
    """What `RowReader` is for a source with an end."""

    def __init__(self, order: UnboundedOrder, unending: Unending, *, read_bytes: int) -> None:
        """Read in the sequence of `order` what is admitted, and have more admitted when more is asked for.

        Args:
            order: The sequence of the source.
            unending: Its ledger.
            read_bytes: Raw rows held ahead; of the few admissions that are read at a time together.
        """
        self._order = order
        self._unending = unending
        self._read_bytes = read_bytes
        self._readers: OrderedDict[int, tuple[RowReader, BlockReader]] = OrderedDict()
        self._past = [0, 0]
        """Rows and blocks that readers have read which are gone."""

    @property
    def num_rows_read(self) -> int:
        """Rows that were read."""
        return self._past[0] + sum(rows.num_rows_read for rows, _ in self._readers.values())

    @property
    def num_block_reads(self) -> int:
        """Blocks that were read, each time."""
        return self._past[1] + sum(rows.num_block_reads for rows, _ in self._readers.values())

    def there_to(self, start: int, stop: int) -> int:
        """Return how far rows `start .. stop - 1` are there: `stop`, or the first that is not.

        Raises:
            RowsNotHere: If not even the first is.
            SourceError: If what was admitted is damaged.
        """
        try:
            known = self._unending.admit_to(stop)
        except SourceError:
            # What keeps more from being admitted concerns whoever asks for that.
            known = self._unending.num_rows
            if known <= start:
                raise
        if known <= start:
            raise RowsNotHere(self._order.source, start, known, self._unending.lack, poll_s=self._unending.poll_s)
        return min(stop, known)

    def take(self, start: int, stop: int, *, limit: int) -> list[Row]:
        """Return the rows of ordinals `start .. stop - 1`, and forget them; see `RowReader.take`."""
        rows: list[Row] = []
        while start < stop:
            admitted = self._admitted(start)
            end = min(stop, admitted.end)
            first, last = (inner_ordinal(admitted, ordinal) for ordinal in (start, end))
            # Hosts divide spans of rows that lie in the same blocks: what is read for one goes on to the next.
            rows += self._reader(admitted).take(first, last, limit=inner_ordinal(admitted, admitted.end))
            start = end
        return rows

    def pick(self, ordinals: Sequence[int]) -> list[Row]:
        """Return the rows at these ordinals, in this order."""
        by_admission: OrderedDict[int, tuple[Admitted, list[int]]] = OrderedDict()
        for ordinal in ordinals:
            admitted = self._admitted(ordinal)
            by_admission.setdefault(admitted.number, (admitted, []))[1].append(ordinal)
        found: dict[int, Row] = {}
        for admitted, mine in by_admission.values():
            rows = self._reader(admitted).pick([inner_ordinal(admitted, ordinal) for ordinal in mine])
            found.update(zip(mine, rows, strict=True))
        return [found[ordinal] for ordinal in ordinals]

    def where(self, ordinal: int) -> tuple[str, int]:
        """Return the file's name, as it can be sent and printed, and the row number within it."""
        admitted = self._admitted(ordinal)
        return self._reader(admitted).where(inner_ordinal(admitted, ordinal))

    def admissions(self, start: int, stop: int) -> tuple[AdmittedFrom, ...]:
        """Return where rows `start .. stop - 1`, which are there, stand in the ledger."""
        found = []
        while start < stop:
            admitted = self._admitted(start)
            chain = self._unending.ledger.entry(admitted.number).chain
            found.append(AdmittedFrom(admitted.first_ordinal, admitted.number + 1, chain))
            start = admitted.end
        return tuple(found)

    def forget(self) -> None:
        """Drop what was read ahead."""
        for rows, _ in self._readers.values():
            rows.forget()

    def close(self) -> None:
        """Close files."""
        while self._readers:
            self._drop()

    def _admitted(self, ordinal: int) -> Admitted:
        """Return the admission of a row that somebody knows to be there."""
        return seen(lambda: self._unending.find(ordinal)) or self._order.admitted(ordinal)

    def _reader(self, admitted: Admitted) -> RowReader:
        pair = self._readers.pop(admitted.number, None)
        if pair is None:
            while len(self._readers) >= _KEPT_READERS:
                self._drop()
            reader = self._unending.open_reader(admitted)
            order = self._order.order_of(admitted)
            pair = RowReader(order, reader, read_bytes=self._read_bytes // _KEPT_READERS), reader
        self._readers[admitted.number] = pair
        return pair[0]

    def _drop(self) -> None:
        _, (rows, reader) = self._readers.popitem(last=False)
        self._past[0] += rows.num_rows_read
        self._past[1] += rows.num_block_reads
        reader.close()


def seen(
    look: Callable[[], Admitted | None],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Admitted | None:
    """Return what another host admitted a moment ago, as soon as it is seen here; None if it is not in time."""
    until, pause_s = clock() + SEEN_S, 0.01
    while (found := look()) is None and clock() < until:
        sleep(pause_s)
        pause_s = min(0.5, 2 * pause_s)
    return found

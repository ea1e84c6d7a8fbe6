"""The loader of a source: rows in sequence, what is known of them, and their payload when it is asked for."""

import contextlib
import threading
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from msd.core.order import SourceOrder
from msd.core.sample import Failure, MetaTable, Outcome, RawSample, Sample, SampleId, SampleSlab
from msd.errors import EngineError
from msd.loader.admitted import AdmittedRows
from msd.loader.buffer import BufferPool, PayloadBuffer
from msd.loader.counts import Tally
from msd.loader.poison.suspects import RowsKilled, Suspects
from msd.loader.rows import RowReader
from msd.loader.transforms.chain import AppliesTransforms, RowResult
from msd.sources.base import BadRow, BlockReader

BATCH_ROWS = 64
"""Rows that go through the transforms together: enough to share the cost of a call, few enough to hold."""

KILLED_REASON = "Killed: its transforms ended or hung their process twice; it is never tried again"
"""The same however it went, so that a list of failed rows names it once."""


class SourceLoader:
    """Reads and transforms rows of one source. Which rows, and when, is for others to say.

    What `examine` and `fetch` return depends on the source, its order and its transforms alone: any number of loaders
    may examine any windows in any order. Payload is held as long as the buffer has room and made again otherwise. For
    any number of threads: they read and hold one at a time, and transform at once.
    """

    def __init__(
        self,
        *,
        order: SourceOrder,
        reader: BlockReader | AdmittedRows,
        chain: AppliesTransforms,
        total_ordinals: int | None,
        buffer_bytes: int = 64 << 20,
        read_bytes: int | None = None,
        pool: BufferPool | None = None,
        suspects: Suspects | None = None,
    ) -> None:
        """Make a loader that holds nothing yet.

        Args:
            order: The sequence of the source.
            reader: Of the same source; the loader closes it. Of one without an end it reads by ordinal.
            chain: Its transforms, wherever they run.
            total_ordinals: Ordinals in all, or None if the source repeats for ever.
            buffer_bytes: Payload held at most.
            read_bytes: Raw rows read ahead at most, besides; None is a quarter of `buffer_bytes`.
            pool: What the loaders of this process hold together; None leaves them to themselves.
            suspects: Which rows are not to be run, of all sources of this process; None is none.
        """
        self.source = order.source
        self._order = order
        self._reader = reader
        self._chain = chain
        self._total = total_ordinals if order.rows_per_epoch else 0
        self._rows: RowReader | AdmittedRows
        if isinstance(reader, AdmittedRows):
            self._rows = reader
        else:
            self._rows = RowReader(order, reader, read_bytes=buffer_bytes // 4 if read_bytes is None else read_bytes)
        self._buffer = PayloadBuffer(buffer_bytes, pool)
        self._tally = Tally()
        self._suspects = Suspects() if suspects is None else suspects
        self._lock = threading.Lock()
        """Held around everything but transforms."""
        self._release_due: int | None = None
        """Ordinal before which payload is to go as soon as nobody holds the lock."""
        self._killed: dict[int, tuple[str, int]] = {}
        """Shard and row within it of killed rows, by ordinal."""

    def examine(self, start: int, num_rows: int) -> MetaTable:
        """Transform the rows that come next and return what is known of them.

        Rows that were examined before and are still held are neither read nor transformed again.

        Args:
            start: Ordinal of the first row.
            num_rows: Rows to examine; fewer where the window or the source ends, or where no more are there yet. At
                least one is examined unless `start` is where the source ends.

        Raises:
            SourceError: If a shard cannot be read. A row that cannot be used is no error: the table says so.
            RowsKilled: If rows ended the process that they were run apart in. Nothing is known of these rows then;
                asked again once they are avoided, the table says that they were killed.
            RowsNotHere: If the first row is still to come; nobody is waited for.
        """
        if start < 0 or num_rows < 1:
            raise ValueError(f"examine needs start >= 0 and num_rows >= 1, got start={start}, num_rows={num_rows}")
        limit = self._window_end(start)
        stop = min(start + num_rows, limit)
        if isinstance(self._rows, AdmittedRows):
            stop = self._rows.there_to(start, stop)
        tables = [
            self._examine(first, min(first + BATCH_ROWS, stop), limit) for first in range(start, stop, BATCH_ROWS)
        ]
        table = _joined(tables) if tables else MetaTable.of(self.source, start, [])
        if isinstance(self._rows, AdmittedRows):
            table = replace(table, admissions=self._rows.admissions(start, table.end))
        return table

    def fetch(self, ids: Sequence[SampleId]) -> SampleSlab:
        """Return the payload of samples, in the order asked; one that is named twice comes once.

        Raises:
            EngineError: If there is no such sample, or its row no longer gives what it gave.
            SourceError: If a shard cannot be read.
        """
        wanted = list(dict.fromkeys(ids))
        held: dict[int, tuple[Sample, ...]] = {}
        missing: list[int] = []
        with self._alone():
            for ordinal in dict.fromkeys(sample_id.ordinal for sample_id in wanted):
                samples = self._buffer.get(ordinal)
                if samples is None:
                    missing.append(ordinal)
                else:
                    held[ordinal] = samples
        missing.sort()
        for first in range(0, len(missing), BATCH_ROWS):
            held.update(self._made_again(missing[first : first + BATCH_ROWS]))
        return SampleSlab.of([self._part(held, sample_id) for sample_id in wanted])

    def release(self, before: int) -> None:
        """Drop the payload of rows with ordinals below `before`; it can still be made again. Waits for nobody."""
        # A run may have been moved back since the last time: what counts is what was said last, and once.
        self._release_due = before
        if self._lock.acquire(blocking=False):
            self._leave()

    def counts(self) -> dict[str, Any]:
        """Return the totals so far, JSON-able; see `LoaderCounts`."""
        rows = self._rows
        return self._tally.counts(rows_read=rows.num_rows_read, block_reads=rows.num_block_reads).as_dict()

    def rest(self) -> None:
        """Drop what is held and read ahead; files stay open."""
        with self._alone():
            self._rows.forget()
            self._buffer.clear()

    def close(self) -> None:
        """Close files and drop what is held. The loader may be used again; it then reads again."""
        with self._alone():
            self._reader.close()
        self.rest()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock; whoever lets go of it drops what was to be released meanwhile."""
        self._lock.acquire()
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        self._drop_due()
        self._lock.release()
        # Somebody may have wanted something to go a moment before.
        while self._release_due is not None and self._lock.acquire(blocking=False):
            self._drop_due()
            self._lock.release()

    def _drop_due(self) -> None:
        due, self._release_due = self._release_due, None
        if due is not None:
            self._buffer.release(due)

    def _window_end(self, start: int) -> int:
        """Return the ordinal after the last one that may be examined together with `start`."""
        if self._total is not None and start >= self._total:
            return start
        window = self._order.window_at(start)
        end = window.first_ordinal + window.num_rows
        return end if self._total is None else min(end, self._total)

    def _examine(self, start: int, stop: int, limit: int) -> MetaTable:
        with self._alone():
            self._isolate_killed_before(start, stop)
            results: dict[int, RowResult] = {
                ordinal: _passed_over(outcome)
                for ordinal, outcome in self._suspects.avoided(self.source, start, stop).items()
            }
            kept = self._kept(start, stop, results)
            rows = self._read(start, stop, limit, {**results, **kept})
        try:
            results.update(zip((ordinal for ordinal, _ in rows), self._chain.apply(rows) if rows else (), strict=True))
        except RowsKilled as error:
            for killed in error.killed:
                self._suspects.tell(killed)
            raise
        failures = []
        with self._alone():
            self._tally.add_kept(len(kept))
            for ordinal, result in sorted(results.items()):
                self._tally.add(result)
                if result.samples:
                    self._buffer.put(ordinal, result.samples)
                if result.reason:
                    failures.append(self._failure(ordinal, result))
        results |= kept
        found = [results[ordinal] for ordinal in range(start, stop)]
        return MetaTable.of(self.source, start, [(result.outcome, result.samples) for result in found], failures)

    def _kept(self, start: int, stop: int, others: Container[int]) -> dict[int, RowResult]:
        """Return what rows gave that were examined before and are held: they wait to be asked for once more."""
        kept: dict[int, RowResult] = {}
        for ordinal in range(start, stop):
            samples = self._buffer.get(ordinal)
            if samples is not None and ordinal not in others:
                self._buffer.put(ordinal, samples)
                kept[ordinal] = RowResult(outcome=Outcome.OK, samples=samples)
        return kept

    def _read(self, start: int, stop: int, limit: int, known: Container[int]) -> list[tuple[int, RawSample | BadRow]]:
        """Return the rows of which nothing is known: all in one go unless some are."""
        lacking = [ordinal for ordinal in range(start, stop) if ordinal not in known]
        if len(lacking) == stop - start:
            return list(zip(lacking, self._rows.take(start, stop, limit=limit), strict=True))
        return list(zip(lacking, self._rows.pick(lacking), strict=True)) if lacking else []

    def _isolate_killed_before(self, start: int, stop: int) -> None:
        """Have rows run apart that killed in an earlier epoch: they need no second process to be found out again."""
        killed = self._suspects.killed(self.source)
        if len(killed) != len(self._killed):
            self._killed = {ordinal: self._rows.where(ordinal) for ordinal in killed}
        places = set(self._killed.values())
        if places:
            again = [ordinal for ordinal in range(start, stop) if self._rows.where(ordinal) in places]
            self._suspects.isolate((self.source, ordinal) for ordinal in again)

    def _failure(self, ordinal: int, result: RowResult) -> Failure:
        shard, row = self._rows.where(ordinal)
        return Failure(ordinal=ordinal, reason=result.reason, shard=shard, row=row)

    def _made_again(self, ordinals: Sequence[int]) -> dict[int, tuple[Sample, ...]]:
        for ordinal in (ordinals[0], ordinals[-1]):
            if ordinal < 0 or (self._total is not None and ordinal >= self._total):
                raise EngineError(
                    f"source {self.source!r} was asked for ordinal {ordinal}, but has {self._total}; "
                    "the plan belongs to another configuration"
                )
        avoided = self._suspects.avoided(self.source, ordinals[0], ordinals[-1] + 1)
        for ordinal in ordinals:
            if avoided.get(ordinal) is Outcome.KILLED:
                raise self._killed_now(ordinal, "it was killed")
        with self._alone():
            rows = self._rows.pick(ordinals)
        try:
            results = self._chain.apply(list(zip(ordinals, rows, strict=True)))
        except RowsKilled as error:
            raise self._killed_now(error.killed[0].ordinal, error.killed[0].how) from None
        made = {}
        with self._alone():
            self._tally.add_remade(len(results))
            for ordinal, result in zip(ordinals, results, strict=True):
                if result.outcome is Outcome.FAILED:
                    shard, row = self._rows.where(ordinal)
                    raise EngineError(
                        f"row {row} of {shard!r} (source {self.source!r}, ordinal {ordinal}) gave samples when it was "
                        f"examined and fails now: {result.reason}; transforms must give the same each time, and draw "
                        "only from the rng that they are handed"
                    )
                self._buffer.put_handed_out(ordinal, result.samples)
                made[ordinal] = result.samples
        return made

    def _killed_now(self, ordinal: int, how: str) -> EngineError:
        shard, row = self._rows.where(ordinal)
        return EngineError(
            f"row {row} of {shard!r} (source {self.source!r}, ordinal {ordinal}) gave samples when it was examined, "
            f"and its transforms ended their process when it was made again ({how}); a step holds it already: skip it "
            "in a saved state (msd state skip) and start from there, or mend the transform"
        )

    def _part(self, held: dict[int, tuple[Sample, ...]], sample_id: SampleId) -> Sample:
        if sample_id.source != self.source:
            raise EngineError(f"the loader of source {self.source!r} was asked for a sample of {sample_id.source!r}")
        samples = held[sample_id.ordinal]
        if not 0 <= sample_id.part < len(samples):
            raise EngineError(
                f"sample {tuple(sample_id)} was asked for, but its row gives {len(samples)} samples; transforms must "
                "give the same each time, and draw only from the rng that they are handed"
            )
        return samples[sample_id.part]


def _passed_over(outcome: Outcome) -> RowResult:
    return RowResult(outcome=outcome, reason=KILLED_REASON if outcome is Outcome.KILLED else "")


def _joined(tables: Sequence[MetaTable]) -> MetaTable:
    """Return one table of consecutive ones."""
    if len(tables) == 1:
        return tables[0]
    return MetaTable(
        source=tables[0].source,
        start=tables[0].start,
        num_parts_R=np.concatenate([table.num_parts_R for table in tables]),
        outcome_R=np.concatenate([table.outcome_R for table in tables]),
        num_tokens_S=np.concatenate([table.num_tokens_S for table in tables]),
        num_image_tokens_S=np.concatenate([table.num_image_tokens_S for table in tables]),
        num_images_S=np.concatenate([table.num_images_S for table in tables]),
        num_patches_S=np.concatenate([table.num_patches_S for table in tables]),
        num_bytes_S=np.concatenate([table.num_bytes_S for table in tables]),
        num_runs_S=np.concatenate([table.num_runs_S for table in tables]),
        runs_L2=np.concatenate([table.runs_L2 for table in tables]),
        num_patches_I=np.concatenate([table.num_patches_I for table in tables]),
        failures=tuple(failure for table in tables for failure in table.failures),
    )

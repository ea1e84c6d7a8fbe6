"""The transforms of a source, such that a row that ends or hangs its process is found out and run apart."""

from collections.abc import Sequence
from typing import TypeAlias

from msd.core.sample import RawSample
from msd.loader.poison.notes import CrashNotes, Ended
from msd.loader.poison.slots import MOST_ROWS
from msd.loader.poison.suspects import Killed, RowsKilled, RowsLost, Suspects
from msd.loader.processes.pool import TransformProcesses
from msd.loader.transforms.chain import AppliesTransforms, RowResult, TransformChain
from msd.sources.base import BadRow

Row: TypeAlias = tuple[int, RawSample | BadRow]


class Noted:
    """Transforms of one source in the thread that calls, which writes down what it has in hand."""

    def __init__(self, chain: TransformChain, notes: CrashNotes) -> None:
        self._chain = chain
        self._notes = notes

    def apply(self, rows: Sequence[Row]) -> list[RowResult]:
        """Return what each (ordinal, row) gives; see `TransformChain.apply`."""
        results: list[RowResult] = []
        for first in range(0, len(rows), MOST_ROWS):
            some = rows[first : first + MOST_ROWS]
            with self._notes.hold(self._chain.source, [ordinal for ordinal, _ in some]) as slot:
                results += self._chain.apply(some, slot.at)
        return results


class Apart:
    """Transforms of one source, a row at a time, in a process that has nothing else in hand."""

    def __init__(
        self,
        chain: TransformChain,
        recipe: bytes | None,
        process: TransformProcesses,
        notes: CrashNotes,
        *,
        hang_s: float,
    ) -> None:
        """Use `process`.

        Args:
            chain: The transforms, for rows that cannot be sent.
            recipe: How the process builds the same chain; None if that cannot be sent.
            process: One, of this host.
            notes: Of this host.
            hang_s: A row that takes longer ends the process.
        """
        self._chain = chain
        self._recipe = recipe
        self._process = process
        self._notes = notes
        self._hang_s = hang_s

    def apply(self, row: Row) -> RowResult:
        """Return what a row gives.

        Raises:
            RowsLost: If it ended the process.
        """
        result = None
        if self._recipe is not None:
            (result,), _ = self._process.apply(self._chain.source, self._recipe, [row], hang_s=self._hang_s)
        if result is None:
            # What cannot be sent is run here after all. If it ends this host as well, the note says that it was it.
            with self._notes.hold(self._chain.source, [row[0]], is_alone=True) as slot:
                (result,) = self._chain.apply([row], slot.at)
        if result.lacked_memory:
            raise RowsLost([row[0]], result.reason)
        return result


class Guarded:
    """Transforms of one source, of which rows that are suspected run apart; equal to those of the chain, row by row."""

    def __init__(self, source: str, chain: AppliesTransforms, apart: Apart, suspects: Suspects) -> None:
        """Guard `chain`.

        Args:
            source: Whose transforms they are.
            chain: The transforms, for rows that nothing is known of.
            apart: The same, for others.
            suspects: Of this host.
        """
        self._source = source
        self._chain = chain
        self._apart = apart
        self._suspects = suspects

    def apply(self, rows: Sequence[Row]) -> list[RowResult]:
        """Return what each (ordinal, row) gives; see `TransformChain.apply`.

        Raises:
            RowsKilled: If rows ended the process that they were run apart in.
        """
        # Each turn isolates rows that were not, so that this ends.
        while True:
            isolated = self._suspects.isolated(self._source)
            others = [row for row in rows if row[0] not in isolated] if isolated else rows
            try:
                given = self._chain.apply(others) if others else []
            except (RowsLost, MemoryError) as error:
                lost = error if isinstance(error, RowsLost) else _of_all(others, error)
                self._strike(lost)
                continue
            short = [row[0] for row, result in zip(others, given, strict=True) if result.lacked_memory]
            if not short:
                break
            self._strike(RowsLost(short, "MemoryError"))
        if len(others) == len(rows):
            return given
        return self._with_apart(rows, isolated, given)

    def _strike(self, lost: RowsLost) -> None:
        self._suspects.struck(Ended(tuple((self._source, ordinal) for ordinal in lost.ordinals), lost.how))

    def _with_apart(self, rows: Sequence[Row], isolated: frozenset[int], given: list[RowResult]) -> list[RowResult]:
        ordinary = iter(given)
        results: list[RowResult] = []
        killed: list[Killed] = []
        for row in rows:
            if row[0] not in isolated:
                results.append(next(ordinary))
                continue
            how = self._suspects.how_died(self._source, row[0])
            if how is None:
                try:
                    results.append(self._apart.apply(row))
                    continue
                except (RowsLost, MemoryError) as error:
                    how = error.how if isinstance(error, RowsLost) else "MemoryError"
                    self._suspects.died(self._source, row[0], how)
            killed.append(Killed(self._source, row[0], how))
        if killed:
            raise RowsKilled(killed)
        return results


def _of_all(rows: Sequence[Row], error: MemoryError) -> RowsLost:
    return RowsLost([ordinal for ordinal, _ in rows], type(error).__name__)

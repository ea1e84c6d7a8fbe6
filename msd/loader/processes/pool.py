"""The processes of one host that transform rows: started when they are first needed, shared by its sources."""

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import msd.errors
from msd.core.sample import RawSample
from msd.errors import ClosedError, EngineError
from msd.loader.poison.slots import to_blame
from msd.loader.poison.suspects import RowsLost
from msd.loader.processes.codec import read, results_from, rows_frame
from msd.loader.processes.decide import Timing
from msd.loader.processes.frames import FAILED, RAISED, SHORT
from msd.loader.processes.root import Gone, Process, Root
from msd.loader.transforms.chain import RowResult
from msd.sources.base import BadRow

_CLOSED = "the processes that transform rows were closed with their host"
NO_LIMIT_S = 1e9
"""A row may take for ever."""


class TransformProcesses:
    """Processes that transform rows of any sources. Their host may use them from any number of threads.

    One that ends is replaced. They end with `close`, and when the host ends in any way.
    """

    def __init__(self, count: int, *, memory: int | None = None) -> None:
        """Start nothing yet.

        Args:
            count: Processes.
            memory: Bytes that each of them may hold; None is any number.
        """
        self._count = count
        self._memory = memory
        self._changed = threading.Condition()
        self._idle: list[Process] = []
        self._root: Root | None = None
        self._is_closed = False

    def apply(
        self,
        source: str,
        recipe: bytes,
        rows: Sequence[tuple[int, RawSample | BadRow]],
        *,
        hang_s: float = NO_LIMIT_S,
        most: int | None = None,
    ) -> tuple[list[RowResult | None], Timing]:
        """Return what each (ordinal, row) gives, None for a row that no process can be given; and what they took there.

        The rows are divided among the processes that are idle; one is waited for if none is.

        Args:
            source: Their source.
            recipe: `ChainRecipe.packed` of that source.
            rows: (ordinal, row) each, at least one.
            hang_s: A row that takes longer ends its process.
            most: Processes at once; None is all that are idle.

        Raises:
            RowsLost: If a process ended; names those rows of which one may be why.
            EngineError: If a transform would have ended one, or none can be started; names the source and the rows.
            ClosedError: If the processes were closed.
            MsdError: What the chain raised.
        """
        taken = self._take(len(rows) if most is None else min(most, len(rows)))
        shares = _shares(rows, len(taken))
        sent: list[list[int]] = []
        for process, share in zip(taken, shares, strict=True):
            frame, indices = rows_frame(source, None if source in process.known else recipe, share)
            process.known.add(source)
            process.ask(frame)
            sent.append(indices)
        answers: list[Any] = []
        lost: list[RowsLost] = []
        for process, share in zip(taken, shares, strict=True):
            try:
                answers.append(read(process.answer(hang_s, self._memory)))
            except Gone:
                lost.append(self._lost(process, [ordinal for ordinal, _ in share]))
            else:
                self._give_back(process)
        if lost:
            raise RowsLost([ordinal for one in lost for ordinal in one.ordinals], lost[0].how)
        results: list[RowResult | None] = []
        timing = Timing()
        for share, indices, answer in zip(shares, sent, answers, strict=True):
            results += _results(answer, source, share, indices)
            wall_s, cpu_s, queued_s = answer[2]
            timing += Timing(num_rows=len(share), wall_s=wall_s, cpu_s=cpu_s, queued_s=queued_s)
        return results, timing

    def close(self) -> None:
        """End all processes, whatever they are at. Closing twice is fine."""
        with self._changed:
            self._is_closed = True
            root, idle = self._root, self._idle
            self._root, self._idle = None, []
            self._changed.notify_all()
        if root is not None:
            root.close()
        for process in idle:
            process.close()

    def _take(self, most: int) -> list[Process]:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._idle or self._root is None)
            if self._is_closed:
                raise ClosedError(_CLOSED)
            if self._root is None:
                self._start()
            taken, self._idle = self._idle[:most], self._idle[most:]
            return taken

    def _give_back(self, process: Process) -> None:
        with self._changed:
            if self._is_closed or process.root is not self._root:
                process.close()
                return
            self._idle.append(process)
            self._changed.notify_all()

    def _start(self) -> None:
        root = Root()
        try:
            self._idle = [root.start() for _ in range(self._count)]
        except OSError as error:
            root.close()
            raise EngineError(
                f"processes that transform rows cannot be started: {error}; set transform_in: threads"
            ) from None
        self._root = root

    def _lost(self, process: Process, ordinals: list[int]) -> RowsLost:
        """Replace a process that is gone; return which of its rows may be why."""
        in_hand = to_blame(process.in_hand())
        how = "" if self._is_closed else process.how_ended()
        process.close()
        with self._changed:
            if self._is_closed:
                raise ClosedError(_CLOSED)
            if process.root is self._root:
                try:
                    self._idle.append(self._root.start())
                except OSError:
                    # What they came from is gone, and all of them with it.
                    self._drop_root()
            self._changed.notify_all()
        return RowsLost([ordinal for entry in in_hand for ordinal in entry.ordinals] or ordinals, how)

    def _drop_root(self) -> None:
        assert self._root is not None
        root, idle = self._root, self._idle
        self._root, self._idle = None, []
        root.close()
        for process in idle:
            process.close()


def _shares(rows: Sequence[Any], count: int) -> list[Sequence[Any]]:
    """Return rows in runs of nearly equal length."""
    bounds = [number * len(rows) // count for number in range(count + 1)]
    return [rows[first:end] for first, end in itertools.pairwise(bounds)]


def _results(
    answer: Sequence[Any], source: str, share: Sequence[tuple[int, Any]], indices: Sequence[int]
) -> list[RowResult | None]:
    kind, *said = answer
    if kind == RAISED:
        raise getattr(msd.errors, said[0])(said[1])
    if kind == SHORT:
        raise RowsLost([ordinal for ordinal, _ in share], said[0])
    if kind == FAILED:
        raise EngineError(f"rows {share[0][0]} to {share[-1][0] + 1} of source {source!r}: {said[0]}")
    results: list[RowResult | None] = [None] * len(share)
    for index, result in zip(indices, results_from(said[0], source, [share[i][0] for i in indices]), strict=True):
        results[index] = result
    return results

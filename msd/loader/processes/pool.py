"""The processes of one host that transform rows: started when they are first needed, shared by its sources."""

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import msd.errors
from msd.core.sample import RawSample
from msd.errors import ClosedError, EngineError, how_ended
from msd.loader.processes.codec import read, results_from, rows_frame
from msd.loader.processes.frames import ENDED, FAILED, RAISED, Frame, receive, receive_bytes, send
from msd.loader.transforms.chain import RowResult
from msd.sources.base import BadRow

_END_S = 5.0
"""How a process ended is known within this, and all of them have ended."""
_CLOSED = "the processes that transform rows were closed with their host"


class _Gone(Exception):
    """A process ended while it had rows."""


class _Process:
    """One process, as the thread sees it that has it."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number = number
        self.known: set[str] = set()
        """Sources whose chain it has."""
        self._connection = connection

    def ask(self, frame: Frame) -> None:
        # Who is gone gives no answer: that is where it is noticed.
        with contextlib.suppress(OSError):
            send(self._connection, frame)

    def answer(self) -> Frame:
        try:
            return receive(self._connection)
        except EOFError:
            raise _Gone from None

    def close(self) -> None:
        self._connection.close()


class TransformProcesses:
    """Processes that transform rows of any sources. Their host may use them from any number of threads.

    They end with `close`, and when the host ends in any way.
    """

    def __init__(self, count: int) -> None:
        """Start nothing yet.

        Args:
            count: Processes.
        """
        self._count = count
        self._changed = threading.Condition()
        self._idle: list[_Process] = []
        self._num_alive = 0
        self._root: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ended: dict[int, int] = {}
        self._is_closed = False

    def apply(
        self, source: str, recipe: bytes, rows: Sequence[tuple[int, RawSample | BadRow]]
    ) -> list[RowResult | None]:
        """Return what each (ordinal, row) gives, None for a row that no process can be given.

        The rows are divided among the processes that are idle; one is waited for if none is.

        Args:
            source: Their source.
            recipe: `ChainRecipe.packed` of that source.
            rows: (ordinal, row) each, at least one.

        Raises:
            EngineError: If a process ended or a transform would have ended it; names the source and the rows.
            ClosedError: If the processes were closed.
            MsdError: What the chain raised.
        """
        taken = self._take(len(rows))
        shares = _shares(rows, len(taken))
        sent: list[list[int]] = []
        for process, share in zip(taken, shares, strict=True):
            frame, indices = rows_frame(source, None if source in process.known else recipe, share)
            process.known.add(source)
            process.ask(frame)
            sent.append(indices)
        answers: list[Any] = []
        for process, share in zip(taken, shares, strict=True):
            try:
                answers.append(read(process.answer()))
            except _Gone:
                self._discard(taken)
                raise self._lost(process.number, _named(source, share)) from None
        self._give_back(taken)
        results: list[RowResult | None] = []
        for share, indices, answer in zip(shares, sent, answers, strict=True):
            results += _results(answer, source, share, indices)
        return results

    def close(self) -> None:
        """End all processes, whatever they are at. Closing twice is fine."""
        with self._changed:
            self._is_closed = True
            root, control, idle = self._root, self._control, self._idle
            self._root, self._control, self._idle = None, None, []
            self._changed.notify_all()
        if root is None or control is None:
            return
        # The root ends when nobody holds the other end, and the kernel ends the others then.
        control.shutdown(socket.SHUT_RDWR)
        try:
            root.wait(_END_S)
        except subprocess.TimeoutExpired:
            root.kill()
            root.wait()
        control.close()
        for process in idle:
            process.close()

    def _take(self, most: int) -> list[_Process]:
        with self._changed:
            if self._root is None and not self._is_closed:
                self._start()
            while not self._idle and self._num_alive and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                raise ClosedError(_CLOSED)
            if not self._num_alive:
                raise EngineError("no process that transforms rows is left; an earlier error says why")
            taken, self._idle = self._idle[:most], self._idle[most:]
            return taken

    def _give_back(self, processes: Sequence[_Process]) -> None:
        with self._changed:
            if self._is_closed:
                for process in processes:
                    process.close()
                return
            self._idle += processes
            self._changed.notify_all()

    def _discard(self, processes: Sequence[_Process]) -> None:
        """Let go of processes, of which some are gone and others may have an answer that nobody waits for."""
        for process in processes:
            process.close()
        with self._changed:
            self._num_alive -= len(processes)
            self._changed.notify_all()

    def _start(self) -> None:
        pairs = [socket.socketpair() for _ in range(1 + self._count)]
        try:
            theirs = [child.fileno() for _, child in pairs]
            self._root = subprocess.Popen(
                [sys.executable, "-m", "msd.loader.processes.child", *map(str, theirs)],
                pass_fds=theirs,
                stdin=subprocess.DEVNULL,
                env=_environment(),
                # Ctrl-C is for the process that started the run.
                start_new_session=True,
            )
        except OSError as error:
            for own, _ in pairs:
                own.close()
            raise EngineError(
                f"processes that transform rows cannot be started: {error}; set transform_in: threads"
            ) from None
        finally:
            for _, child in pairs:
                child.close()
        self._control = pairs[0][0]
        self._control.settimeout(_END_S)
        self._idle = [_Process(number, own) for number, (own, _) in enumerate(pairs[1:])]
        self._num_alive = self._count

    def _lost(self, number: int, rows: str) -> EngineError:
        with self._changed:
            if self._is_closed:
                return ClosedError(_CLOSED)
            return EngineError(
                f"a process ended ({self._how_ended(number)}) while it transformed {rows}; a transform must not end "
                "the process that it runs in"
            )

    def _how_ended(self, number: int) -> str:
        assert self._control is not None
        try:
            while number not in self._ended:
                other, status = ENDED.unpack(receive_bytes(self._control, ENDED.size))
                self._ended[other] = status
        except EOFError:
            return "with all others"
        return how_ended(self._ended[number])


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
    if kind == FAILED:
        raise EngineError(f"{_named(source, share)}: {said[0]}")
    results: list[RowResult | None] = [None] * len(share)
    for index, result in zip(indices, results_from(said[0], source, [share[i][0] for i in indices]), strict=True):
        results[index] = result
    return results


def _named(source: str, share: Sequence[tuple[int, Any]]) -> str:
    return f"rows {share[0][0]} to {share[-1][0] + 1} of source {source!r}"


def _environment() -> dict[str, str]:
    """Return the environment of the processes: modules are found where this process finds them."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path or os.getcwd() for path in sys.path))
    # There is a process for each core.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.setdefault(name, "1")
    return environment

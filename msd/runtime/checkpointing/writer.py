"""What a run writes while it goes on: snapshots off the step's path, edits before they take effect."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from msd.checkpoint import Snapshot, Store
from msd.checkpoint.lease import check_owner
from msd.core.journal import Edit, edits_to_state
from msd.core.state import StateDict
from msd.errors import EngineError, LeaseError
from msd.runtime.checkpointing.resume import EDIT, journalled
from msd.runtime.state import run_state

_LOG = logging.getLogger("msd")


@dataclass(frozen=True, slots=True)
class _Job:
    progress: StateDict
    lineage: str


class CheckpointWriter:
    """Writes what a run must remember; beside the planner, one at a time.

    Methods may be called from any thread. `note` and `begin` return at once: a thread of the writer's writes.
    """

    def __init__(self, store: Store, *, run: str, every: int, identity: StateDict, lineage: str | None = None) -> None:
        """Find out what is there.

        Args:
            store: Held by this run.
            run: Which writes.
            every: Steps between snapshots.
            identity: Of the run.
            lineage: Of the snapshot that the run resumed from; None for one that began new.

        Raises:
            StateError: If the journal is damaged.
            EngineError: If the store cannot be read.
        """
        self.store, self._run, self._every, self._identity = store, run, every, identity
        self._first_lineage = self._lineage = run if lineage is None else lineage
        self._wake = threading.Condition()
        self._writing = threading.RLock()
        """Held while files are written: one after the other."""
        self._books = threading.Lock()
        """Held while what follows is changed, never for longer."""
        self._thread: threading.Thread | None = None
        self._job: _Job | None = None
        self._is_busy = self._is_closed = False
        self._start: _Job | None = None
        """What an edit refers to, while nothing of its lineage is saved."""
        self._saved: Snapshot | None = None
        """The newest one."""
        self._failures = 0
        self._failure: str | None = None
        """Why the last save failed, if nothing was saved since."""
        self._due_at = 0
        self._entries: list[tuple[int, int]] = []
        """(number, at_step) of the edits of this lineage that a snapshot may not contain."""
        self._contained = 0
        newest = store.newest()
        if newest is not None:
            self._lineage = newest.lineage
            self._saved = newest
            self._contained = newest.journal
            self._entries = [(number, edit.at_step) for number, edit in journalled(store, newest)]

    def begin(self, generation: int, progress: StateDict) -> None:
        """Note that a generation begins at a position, or that a new planner goes on with one.

        What a load opened is saved, so that a restart goes on there and not where the run was before.

        Args:
            generation: Its number: 0 is what the run started with.
            progress: The planner's, at its first step.
        """
        with self._books:
            lineage = self._first_lineage if generation == 0 else f"{self._run}.{generation}"
            if lineage != self._lineage:
                # What was decided for other steps is none of these.
                self._contained = max([self._contained, *(number for number, _ in self._entries)])
                self._lineage, self._entries = lineage, []
            self._start = _Job(progress, lineage)
            self._due_at = self._next_due(progress["step"])
            is_saved = self._saved is not None and self._saved.lineage == lineage
        if generation and not is_saved:
            self._put(self._start)

    def note(self, step: int, position: Callable[[int], StateDict | None]) -> None:
        """Note that every rank has taken the steps before `step`; a snapshot is written when it is time.

        Args:
            step: The watermark's next.
            position: Returns the run's position before a step, if it is known.
        """
        if step < self._due_at:
            return
        progress = position(step - step % self._every) or position(step)
        if progress is not None:
            self._due_at = self._next_due(step)
            self._put(_Job(progress, self._lineage))

    def journal(self, edit: Edit) -> None:
        """Make an edit durable.

        Raises:
            EngineError: If it cannot be written: then it must not take effect.
        """
        (record,) = edits_to_state([edit])
        with self._counted(), self._writing:
            lineage, start, saved = self._lineage, self._start, self._saved
            if start is not None and start.lineage == lineage and (saved is None or saved.lineage != lineage):
                self._write(start)
            check_owner(self.store.folder, self._run)
            number = self.store.append({EDIT: record}, run=self._run, lineage=lineage)
            with self._books:
                if lineage == self._lineage:
                    self._entries.append((number, edit.at_step))

    def save(self, progress: StateDict) -> str:
        """Save a position at once and return the name of its snapshot; it is durable then.

        Raises:
            EngineError: If it cannot be written.
        """
        with self._counted():
            return self._write(_Job(progress, self._lineage))

    def stats(self, step: int) -> dict[str, Any]:
        """Return what is saved and how old it is, JSON-able; `docs/reference/python.md` lists the keys.

        Args:
            step: That the slowest rank asks for.
        """
        with self._books:
            saved, lineage = self._saved, self._lineage
            is_of_this = saved is not None and saved.lineage == lineage
            return {
                "path": self.store.path,
                "snapshot": saved and saved.name,
                "step": saved and saved.step,
                "age_steps": max(0, step - saved.step) if saved is not None and is_of_this else None,
                "size_bytes": saved and saved.size,
                "generation": saved and self._generation_of(saved.lineage),
                "failures": self._failures,
                "failure": self._failure,
            }

    def flush(self) -> None:
        """Wait until all that was noted is written, or could not be."""
        with self._wake:
            self._wake.wait_for(lambda: self._job is None and not self._is_busy)

    def close(self, progress: StateDict | None = None) -> None:
        """Write a last position, if it is given, and end. Closing twice is fine; a failure is told in the log."""
        self.flush()
        with self._wake:
            if self._is_closed:
                return
            self._is_closed = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join()
        if progress is not None:
            self._try(_Job(progress, self._lineage))

    def _next_due(self, step: int) -> int:
        return (step // self._every + 1) * self._every

    def _put(self, job: _Job) -> None:
        with self._wake:
            if self._is_closed:
                return
            # A position that was not written yet is worth less than a newer one of the same run.
            self._job = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_jobs, name="msd-checkpoint", daemon=True)
                self._thread.start()
            self._wake.notify_all()

    def _run_jobs(self) -> None:
        while True:
            with self._wake:
                self._is_busy = False
                self._wake.notify_all()
                self._wake.wait_for(lambda: self._job is not None or self._is_closed)
                job, self._job = self._job, None
                if job is None:
                    return
                self._is_busy = True
            self._try(job)

    def _try(self, job: _Job) -> None:
        try:
            with self._counted():
                self._write(job)
        except LeaseError:
            return  # The run hears of it from whoever holds the lease.
        except EngineError as error:
            _LOG.warning("step %d is not saved, and the run goes on: %s", job.progress["step"], error)

    def _write(self, job: _Job) -> str:
        with self._writing:
            step = int(job.progress["step"])
            if self._saved is not None and (self._saved.lineage, self._saved.step) == (job.lineage, step):
                return self._saved.name
            check_owner(self.store.folder, self._run)
            with self._books:
                contained = self._contained_at(step) if job.lineage == self._lineage else self._contained
            state = run_state(job.progress, self._identity)
            saved = self.store.save(state, step=step, run=self._run, lineage=job.lineage, journal=contained)
            with self._books:
                self._saved, self._failure = saved, None
            return saved.name

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count what could not be written; a run that lost its store has not failed at that."""
        try:
            yield
        except LeaseError:
            raise
        except EngineError as error:
            with self._books:
                self._failures += 1
                self._failure = str(error)
            raise

    def _generation_of(self, lineage: str) -> int | None:
        """Return the generation of this run that is a lineage, None for one of elsewhere."""
        if lineage == self._first_lineage:
            return 0
        run, _, generation = lineage.rpartition(".")
        return int(generation) if run == self._run else None

    def _contained_at(self, step: int) -> int:
        """Return the number of the last journal entry that a position before `step` contains with all before it."""
        while self._entries and self._entries[0][1] < step:
            self._contained = self._entries.pop(0)[0]
        return self._contained

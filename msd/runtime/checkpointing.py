"""Where a run keeps its position, for every engine: whose the store is, where to resume, what is written when.

The engine's process holds the store (`StoreHold`) and asks where to go on (`resume_point`). Whoever hosts the planner
writes (`CheckpointWriter`): a snapshot when the watermark has moved far enough, off the step's path, and each edit
before it takes effect.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msd.checkpoint import Lease, Snapshot, Store, open_store
from msd.checkpoint.lease import check_owner
from msd.config.pipeline import CheckpointConfig
from msd.coordinator.standing import Standing
from msd.core.journal import PENDING, Edit, edits_from_state, edits_to_state, with_pending
from msd.core.state import StateDict, fingerprint
from msd.errors import ConfigError, EngineError, LeaseError, StateError
from msd.runtime.state import progress_of, read_state, run_state

_LOG = logging.getLogger("msd")
_EDIT = "edit"
"""Key of a journal record that is an edit."""


class StoreHold:
    """The store of a run, held against other runs until it is closed."""

    def __init__(self, config: CheckpointConfig, *, run: str, on_lost: Callable[[LeaseError], None]) -> None:
        """Take the store.

        Args:
            config: Of the checkpoint.
            run: Which takes it.
            on_lost: Called from another thread, once, if another run takes it over: this one must end.

        Raises:
            ConfigError: If the path means nothing.
            LeaseError: If another run holds it.
            EngineError: If it cannot be written.
        """
        self.store = open_store(config.path, keep=config.keep, storage_options=config.storage_options)
        self._lease = Lease(self.store.folder, run=run, lease_s=config.lease_s)
        left = self._lease.acquire(take_over=config.take_over)
        if left is not None:
            _LOG.info("checkpoint %s: taken over from run %s, which did not give it back", self.store.path, left.run)
        self.store.sweep()
        self._on_lost = on_lost
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"msd-lease-{run}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give the store back. Closing twice is fine."""
        self._is_closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._lease.release()

    def _renew(self) -> None:
        has_warned = False
        while not self._is_closed.wait(self._lease.lease_s / 4):
            try:
                self._lease.renew()
                has_warned = False
            except LeaseError as error:
                self._on_lost(error)
                return
            except EngineError as error:
                if not has_warned:
                    has_warned = True
                    _LOG.warning("the lease could not be renewed and is tried again: %s", error)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a run goes on."""

    snapshot: Snapshot
    progress: StateDict
    """The planner's."""
    edits: tuple[Edit, ...]
    """That the planner heard of at this step or later, in order: it hears of each at its `noted_at`."""

    @property
    def step(self) -> int:
        """The step that comes next."""
        return self.snapshot.step

    def standing(self) -> Standing:
        """Return what a coordinator is born from."""
        return Standing(
            generation=0,
            first_step=self.step,
            start=self.progress,
            digest=fingerprint(self.progress),
            edits=self.edits,
            is_resumed=True,
        )

    def origin(self, path: str) -> str:
        """Return where the position comes from, for people."""
        at = f"snapshot {self.snapshot.name} in {path}, saved {self.snapshot.when} by run {self.snapshot.run}"
        return f"{at}, with {len(self.edits)} edits to come" if self.edits else at


def resume_point(store: Store, config: CheckpointConfig, identity: StateDict) -> ResumePoint | None:
    """Return where a run that starts goes on, None for the beginning. Where it resumes is told in the log, loudly.

    Args:
        store: That the run holds.
        config: Of the checkpoint: `resume` and `force`.
        identity: Of the run; see `msd.build.identity`.

    Raises:
        ConfigError: If there is a snapshot and should be none, or the other way round.
        StateError: If every snapshot is damaged, or the newest is of a run that this one cannot go on with.
    """
    if config.resume == "never":
        _refuse_any(store)
        return None
    snapshot = store.newest()
    if snapshot is None:
        if config.resume == "must":
            raise ConfigError(
                f"checkpoint.resume is must, and there is no snapshot in {store.path}; correct checkpoint.path, or set "
                "resume: auto to begin a run"
            )
        return None
    try:
        progress = progress_of(snapshot.state, identity, force=config.force)
    except StateError as error:
        raise StateError(
            f"{error} (snapshot {snapshot.name} in {store.path}); to begin a new run set another checkpoint.path"
        ) from None
    since = [edit for _, edit in journalled(store, snapshot)]
    if read_state(snapshot.state).identity == identity:
        point = ResumePoint(snapshot, *_replayed(progress, since))
    else:
        # The steps come out otherwise anyway, and a planner that loads drops edits of sources that are gone.
        point = ResumePoint(snapshot, with_pending(progress, since), ())
    _LOG.warning("the run resumes at step %d: %s", point.step, point.origin(store.path))
    return point


def journalled(store: Store, snapshot: Snapshot) -> list[tuple[int, Edit]]:
    """Return the edits that were journalled after a snapshot on its lineage, with the numbers of their entries.

    Raises:
        StateError: If the journal is damaged.
    """
    entries = [entry for entry in store.journal(snapshot.journal) if entry.lineage == snapshot.lineage]
    records = [(entry.number, entry.record[_EDIT]) for entry in entries if entry.record and _EDIT in entry.record]
    edits = edits_from_state([record for _, record in records])
    return [(number, edit) for (number, _), edit in zip(records, edits, strict=True)]


def _replayed(progress: StateDict, since: Sequence[Edit]) -> tuple[StateDict, tuple[Edit, ...]]:
    """Return a position as the planner had it, and the edits that it heard of only at later steps.

    A snapshot tells of every edit that waits, so that it is whole by itself; the steps before those were planned by a
    planner that did not know of them yet, and positions after them have to come out the same.
    """
    step = int(progress["step"])
    known = edits_from_state(progress.get(PENDING, []))
    waiting = [*known, *(edit for edit in since if edit.at_step >= step and edit not in known)]
    bare = {key: value for key, value in progress.items() if key != PENDING}
    heard = [edit for edit in waiting if edit.noted_at < step]
    return with_pending(bare, heard), tuple(edit for edit in waiting if edit.noted_at >= step)


def _refuse_any(store: Store) -> None:
    snapshots = store.snapshots()
    if snapshots:
        raise ConfigError(
            f"checkpoint.resume is never, and {store.path} has {len(snapshots)} snapshots, the newest of step "
            f"{snapshots[-1].step}; set resume: auto to go on from there, or another checkpoint.path"
        )


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
        self._thread: threading.Thread | None = None
        self._job: _Job | None = None
        self._is_busy = self._is_closed = False
        self._start: _Job | None = None
        """What an edit refers to, while nothing of its lineage is saved."""
        self._saved: tuple[str, int, str] | None = None
        """Lineage, step and name of the newest snapshot."""
        self._due_at = 0
        self._entries: list[tuple[int, int]] = []
        """(number, at_step) of the edits of this lineage that a snapshot may not contain."""
        self._contained = 0
        newest = store.newest()
        if newest is not None:
            self._lineage = newest.lineage
            self._saved = (newest.lineage, newest.step, newest.name)
            self._contained = newest.journal
            self._entries = [(number, edit.at_step) for number, edit in journalled(store, newest)]

    def begin(self, generation: int, progress: StateDict) -> None:
        """Note that a generation begins at a position, or that a new planner goes on with one.

        What a load opened is saved, so that a restart goes on there and not where the run was before.

        Args:
            generation: Its number: 0 is what the run started with.
            progress: The planner's, at its first step.
        """
        with self._writing:
            lineage = self._first_lineage if generation == 0 else f"{self._run}.{generation}"
            if lineage != self._lineage:
                # What was decided for other steps is none of these.
                self._contained = max([self._contained, *(number for number, _ in self._entries)])
                self._lineage, self._entries = lineage, []
            self._start = _Job(progress, lineage)
            self._due_at = self._next_due(progress["step"])
            is_saved = self._saved is not None and self._saved[0] == lineage
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
        with self._writing:
            if self._start is not None and (self._saved is None or self._saved[0] != self._lineage):
                self._write(self._start)
            check_owner(self.store.folder, self._run)
            (record,) = edits_to_state([edit])
            number = self.store.append({_EDIT: record}, run=self._run, lineage=self._lineage)
            self._entries.append((number, edit.at_step))

    def save(self, progress: StateDict) -> str:
        """Save a position at once and return the name of its snapshot; it is durable then.

        Raises:
            EngineError: If it cannot be written.
        """
        return self._write(_Job(progress, self._lineage))

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
            self._write(job)
        except LeaseError:
            return  # The run hears of it from whoever holds the lease.
        except EngineError as error:
            _LOG.warning("step %d is not saved, and the run goes on: %s", job.progress["step"], error)

    def _write(self, job: _Job) -> str:
        with self._writing:
            step = int(job.progress["step"])
            if self._saved is not None and self._saved[:2] == (job.lineage, step):
                return self._saved[2]
            check_owner(self.store.folder, self._run)
            name = self.store.save(
                run_state(job.progress, self._identity),
                step=step,
                run=self._run,
                lineage=job.lineage,
                journal=self._contained_at(step) if job.lineage == self._lineage else self._contained,
            )
            self._saved = (job.lineage, step, name)
            return name

    def _contained_at(self, step: int) -> int:
        """Return the number of the last journal entry that a position before `step` contains with all before it."""
        while self._entries and self._entries[0][1] < step:
            self._contained = self._entries.pop(0)[0]
        return self._contained

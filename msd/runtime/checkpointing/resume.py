"""Where a run that starts goes on: the newest snapshot, and what was decided since."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from msd.checkpoint import Snapshot, Store
from msd.config.pipeline import CheckpointConfig
from msd.coordinator.standing import Standing
from msd.core.journal import PENDING, Edit, edits_from_state, with_pending
from msd.core.state import StateDict, fingerprint
from msd.errors import ConfigError, StateError
from msd.runtime.state import progress_of, read_state

_LOG = logging.getLogger("msd")
EDIT = "edit"
"""Key of a journal record that is an edit."""


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
    records = [(entry.number, entry.record[EDIT]) for entry in entries if entry.record and EDIT in entry.record]
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

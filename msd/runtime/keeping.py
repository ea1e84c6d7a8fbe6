"""The checkpoint of a run whose engine and planner share a process: held, resumed from, written and given back."""

import weakref
from collections.abc import Callable
from typing import Any

from msd.config.pipeline import CheckpointConfig
from msd.core.journal import Edit
from msd.core.state import StateDict
from msd.errors import ConfigError, LeaseError
from msd.runtime.checkpointing import CheckpointWriter, ResumePoint, StoreHold, resume_point


class RunKeeper:
    """Keeps one run. Methods raise `LeaseError` once another run has taken the checkpoint over."""

    def __init__(self, config: CheckpointConfig, *, run: str, identity: StateDict) -> None:
        """Take the store and find out where to go on.

        Raises:
            ConfigError: If the path means nothing, or `resume` does not go with what is there.
            LeaseError: If another run holds it.
            StateError: If what is there cannot be gone on with.
            EngineError: If it cannot be read or written.
        """
        self._lost: LeaseError | None = None
        self._hold = StoreHold(config, run=run, on_lost=_told_of(self))
        # A run that nobody closes gives its store back when it is forgotten, or when the interpreter ends.
        self._give_back = weakref.finalize(self, self._hold.close)
        try:
            self.point: ResumePoint | None = resume_point(self._hold.store, config, identity)
            """Where the run goes on; None for the beginning."""
            lineage = None if self.point is None else self.point.snapshot.lineage
            self._writer = CheckpointWriter(
                self._hold.store, run=run, every=config.every, identity=identity, lineage=lineage
            )
        except BaseException:
            self._give_back()
            raise
        self._taken: int | None = None
        self._begun_at = 0

    def check(self) -> None:
        """Raise `LeaseError` if the run has lost its store."""
        if self._lost is not None:
            raise self._lost

    def begin(self, generation: int, progress: StateDict) -> None:
        """See `CheckpointWriter.begin`."""
        self._taken, self._begun_at = None, int(progress["step"])
        self._writer.begin(generation, progress)

    def note(self, step: int | None, position: Callable[[int], StateDict | None]) -> None:
        """Note which step the slowest rank asks for, None while there is none; see `CheckpointWriter.note`."""
        self.note_last(step)
        if step is not None:
            self._writer.note(step, position)

    def note_last(self, step: int | None) -> None:
        """Note where the slowest rank stands if this is the end: whether it used what it has is not known yet."""
        if step is not None and step > self._begun_at:
            self._taken = step

    def journal(self, edit: Edit) -> None:
        """See `CheckpointWriter.journal`."""
        self._writer.journal(edit)

    def save(self, progress: StateDict) -> str:
        """See `CheckpointWriter.save`."""
        return self._writer.save(progress)

    def stats(self, step: int) -> dict[str, Any]:
        """See `CheckpointWriter.stats`."""
        return self._writer.stats(step)

    def state(self, name: str) -> StateDict:
        """Return the state of a snapshot.

        Raises:
            StateError: If there is none of that name, or it is damaged.
        """
        self._writer.flush()
        state = self._hold.store.find(name=name).state
        assert state is not None, "a whole snapshot has one"
        return state

    def close(self, position: Callable[[int], StateDict | None] | None) -> None:
        """Write where ranks stood last, and give the store back.

        Args:
            position: Returns the run's position before a step; None for a run that ends in disorder: what was
                handed out last may not have been used.
        """
        progress = None if position is None or self._taken is None else position(self._taken)
        self._writer.close(progress)
        self._give_back()


def _told_of(keeper: RunKeeper) -> Callable[[LeaseError], None]:
    """Return what a thread calls that must not keep a keeper alive."""
    reference: Any = weakref.ref(keeper)

    def lose(error: LeaseError) -> None:
        found = reference()
        if found is not None:
            found._lost = error

    return lose


def needed(keeper: RunKeeper | None, what: str) -> RunKeeper:
    """Return the keeper of a run.

    Raises:
        ConfigError: If the run keeps nothing.
    """
    if keeper is None:
        raise ConfigError(f"{what}: this run keeps no checkpoint; set checkpoint.path in its configuration")
    return keeper

"""What a planner writes to the run's checkpoint; the engine's process holds it against other runs."""

from typing import Any

from msd.checkpoint import open_store
from msd.config.pipeline import CheckpointConfig
from msd.coordinator import Coordinator
from msd.core.journal import Edit
from msd.core.state import StateDict
from msd.errors import EngineError
from msd.runtime.checkpointing import CheckpointWriter


class PlannerStore:
    """Follows one coordinator, on its thread, and writes its positions and edits."""

    def __init__(self, config: CheckpointConfig, identity: StateDict, kept: dict[str, Any]) -> None:
        """Find out what is there.

        Args:
            config: Of the checkpoint.
            identity: Of the run, for states.
            kept: `run`, and `lineage` of the snapshot that it resumed from, None if it began new.

        Raises:
            StateError: If the journal is damaged.
            EngineError: If the store cannot be read.
        """
        store = open_store(config.path, keep=config.keep, storage_options=config.storage_options)
        self._writer = CheckpointWriter(
            store, run=kept["run"], every=config.every, identity=identity, lineage=kept["lineage"]
        )
        self._generation = -1
        self._last: int | None = None
        """The step that the slowest rank asked for last, if any was taken in the generation."""

    def heed(self, coordinator: Coordinator) -> None:
        """Take where the run stands; a snapshot is written beside it when it is time. Returns at once."""
        generations = coordinator.generations
        first_step, slowest = coordinator.first_step, generations.slowest
        if generations.generation != self._generation:
            progress = coordinator.progress_before(first_step)
            assert progress is not None, "where a generation begins is known"
            self._generation, self._last = generations.generation, None
            self._writer.begin(generations.generation, progress)
        if slowest is not None and slowest > first_step:
            self._last = slowest
            self._writer.note(slowest, coordinator.progress_before)

    def position(self, coordinator: Coordinator) -> StateDict:
        """Return where the slowest rank stands.

        Raises:
            EngineError: If that is not known: it stands far behind what is planned.
        """
        slowest = coordinator.generations.slowest
        step = coordinator.first_step if slowest is None else slowest
        progress = coordinator.progress_before(step)
        if progress is None:
            raise EngineError(
                f"the position before step {step}, where the slowest rank stands, is not held any more; save again "
                "when it has gone on"
            )
        return progress

    def last(self, coordinator: Coordinator) -> StateDict | None:
        """Return where ranks stood last, None if they took nothing."""
        return None if self._last is None else coordinator.progress_before(self._last)

    def journal(self, edit: Edit) -> None:
        """Make an edit durable. On a thread that may wait.

        Raises:
            EngineError: If it cannot be written.
        """
        self._writer.journal(edit)

    def save(self, progress: StateDict) -> str:
        """Save a position and return the name of its snapshot. On a thread that may wait.

        Raises:
            EngineError: If it cannot be written.
        """
        return self._writer.save(progress)

    def stats(self, coordinator: Coordinator) -> dict[str, Any]:
        """See `CheckpointWriter.stats`."""
        return self._writer.stats(coordinator.generations.watermark + 1)

    def close(self, progress: StateDict | None) -> None:
        """Write a last position, if it is given, and end. On a thread that may wait."""
        self._writer.close(progress)

"""Edits become durable one after the other: in the store, if there is one, and in another process."""

import asyncio
from collections.abc import Callable

from msd.coordinator.commands import Journal
from msd.coordinator.events import Event, Journalled, NotJournalled
from msd.core.journal import Edit
from msd.errors import DeadlineError, MsdError
from msd.runtime.dask.crew import Crew


class Journalling:
    """Makes edits durable for a planner, in order."""

    def __init__(
        self,
        crew: Crew,
        *,
        keep: Callable[[Edit], None] | None,
        happened: Callable[[Event], None],
        deadline_s: float,
    ) -> None:
        """Get ready; `run` does the work.

        Args:
            crew: Whose hosts keep copies.
            keep: Writes an edit to the run's checkpoint, on a thread that may wait; None if the run keeps none.
            happened: Takes events.
            deadline_s: Seconds that an edit may take to become durable.
        """
        self.num_done = 0
        """Edits that this planner made durable."""
        self._crew = crew
        self._keep = keep
        self._happened = happened
        self._deadline_s = deadline_s
        self._waiting: asyncio.Queue[Journal] = asyncio.Queue()
        self._outcomes: dict[int, asyncio.Future[None]] = {}

    def put(self, journal: Journal) -> None:
        """Have an edit made durable. The copy that holds it is given to the crew before anything else happens."""
        self._outcomes[journal.number] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait(journal)

    async def settled(self, number: int) -> None:
        """Wait until an edit is durable.

        Raises:
            MsdError: If it could not be made so: it takes no effect.
        """
        await asyncio.shield(self._outcomes[number])

    async def run(self) -> None:
        """Make edits durable for ever."""
        while True:
            journal = await self._waiting.get()
            outcome = self._outcomes[journal.number]
            try:
                await self._make_durable(journal)
            except MsdError as error:
                self._happened(NotJournalled(journal.number, error))
                outcome.set_exception(error)
                # Nobody may be waiting for it.
                outcome.exception()
            else:
                self.num_done += 1
                self._happened(Journalled(journal.number))
                outcome.set_result(None)

    async def _make_durable(self, journal: Journal) -> None:
        if self._keep is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._keep, journal.edit)
        try:
            await asyncio.wait_for(self._crew.replicated(), self._deadline_s)
        except TimeoutError:
            raise DeadlineError(
                f"the edit of step {journal.edit.at_step} reached no loader host within {self._deadline_s:g} s, and an "
                "edit takes effect only when a second process knows it; ask again when a loader host is there"
            ) from None

"""What a constructor tells its planner of itself: all of it anew when another one plans."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

from msd.constructor.shelf import Shelf
from msd.runtime.dask.attendance import Attendance
from msd.runtime.dask.calls import Fence, Ref
from msd.runtime.dask.planner_line import PlannerLine
from msd.runtime.dask.standings import rank_to_wire


class Reporting:
    """Reports which steps ranks ask for, which of them left, and what is held. On its worker's loop."""

    def __init__(
        self,
        name: str,
        planner: PlannerLine,
        shelf: Shelf,
        attendance: Attendance,
        changed: threading.Condition,
        fence: Fence,
    ) -> None:
        """Get ready; `run` does the work.

        Args:
            name: Of the constructor.
            planner: Reaches whoever plans.
            shelf: Of the constructor.
            attendance: Of its ranks.
            changed: Held around each use of both.
            fence: Of the constructor.
        """
        self._name = name
        self._planner = planner
        self._shelf = shelf
        self._attendance = attendance
        self._changed = changed
        self._left: list[tuple[int, int]] = []
        """(rank, session) of connections that ended and of which the planner has not heard."""
        self._due = asyncio.Event()
        self._introduced_to: Ref | None = None
        """The planner that knows of the ranks that are connected here."""
        self._told: tuple[Any, ...] = ()
        self._fence = fence
        self._lacking: dict[tuple[int, int], int] = {}
        """By rank and session: the first step that neither it nor this constructor had under the present planner."""
        self._lacking_of = (-1, -1)
        """(term, generation) that it is said of."""

    def soon(self) -> None:
        """Have what is new told."""
        self._due.set()

    def anew(self) -> None:
        """Have all told once more: what another planner heard may be lost with it."""
        self._told = ()
        self._due.set()

    def leaves(self, rank: int, session: int) -> None:
        """Have it told that a connection ended. With the condition held, on any thread; `soon` sends it."""
        self._left.append((rank, session))

    async def run(self, key: str) -> None:
        """Report for ever, one call for all that gathered meanwhile; `key` is the constructor's actor's."""
        while True:
            await self._due.wait()
            self._due.clear()
            with self._changed:
                generation, left = self._shelf.generation, list(self._left)
                asked = [[*one, self._lacks(one[0], one[1])] for one in self._attendance.asked(generation)]
                waits = sorted(self._attendance.waits().items())
                report = (self._fence.term, generation, asked, left, self._shelf.nbytes, waits)
            if report != self._told:
                self._told = report
                await self._introduce(key)
                await self._planner.ask("report", self._name, key, *report)
                with self._changed:
                    self._left = [entry for entry in self._left if entry not in left]

    def _lacks(self, rank: int, session: int) -> int | None:
        """Return the first step that no planner before the present one gave a rank, or this constructor for it.

        What is said once stays true, whatever comes: it comes from the present planner.
        """
        said_of = self._fence.term, self._shelf.generation
        if self._lacking_of != said_of:
            self._lacking_of, self._lacking = said_of, {}
        lacks = self._attendance.lacks(rank, self._shelf.generation)
        if lacks is not None and (rank, session) not in self._lacking:
            self._lacking[rank, session] = max([lacks, *(step + 1 for step in self._shelf.held_steps)])
        return self._lacking.get((rank, session))

    async def _introduce(self, key: str) -> None:
        """Have a planner that is new know of the ranks that were connected before it was made."""
        while (ref := self._planner.ref) != self._introduced_to:
            with self._changed:
                generation, positions = self._shelf.generation, self._shelf.positions()
                ranks = [rank for rank in self._attendance.standings() if rank.session]
            stated = [
                replace(rank, progress=rank.progress or positions.get(rank.next_step))
                if rank.generation == generation
                else rank
                for rank in ranks
            ]
            if stated:
                await self._planner.ask("introduce", self._name, key, [rank_to_wire(rank) for rank in stated])
            self._introduced_to = ref

"""The coordinator on a thread of its own: events and questions in, commands out to the crew and the store."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from msd.coordinator import Coordinator
from msd.coordinator.commands import (
    Abandon,
    Avoid,
    Command,
    Drained,
    Examine,
    Fail,
    Follow,
    Isolate,
    Journal,
    Planned,
    Release,
    Replicate,
    Seats,
    Warn,
)
from msd.coordinator.events import Event, RunFailed, TimePassed
from msd.core.sample import MetaTable
from msd.core.state import StateDict
from msd.runtime.dask.calls import HasRpc, Superseded
from msd.runtime.dask.crew import Crew
from msd.runtime.dask.journalling import Journalling
from msd.runtime.dask.news import News
from msd.runtime.dask.orders import orders_for, plain
from msd.runtime.dask.pace import Pace
from msd.runtime.dask.planner_store import PlannerStore
from msd.runtime.dask.standings import standing_to_wire
from msd.runtime.dask.tasks import Tasks
from msd.runtime.dask.wire import Wire
from msd.runtime.failures import FailureNotes
from msd.runtime.record import RunRecord
from msd.scaling.limits import Limit

_T = TypeVar("_T")

CLOCK_S = 1.0
"""How often the coordinator is told the time: what it measures takes many seconds."""


class Helm:
    """Runs one coordinator for one planner. On its worker's loop, except what is decided."""

    def __init__(
        self,
        node: HasRpc,
        coordinator: Coordinator,
        *,
        term: int,
        identity: StateDict,
        store: PlannerStore | None,
        failures: FailureNotes,
        silence_s: float,
        deadline_s: float,
    ) -> None:
        """Get ready; `begin` starts.

        Args:
            node: That calls others.
            coordinator: That decides; nobody else may use it while this runs, except on the thread of `decide`.
            term: Of the planner.
            identity: What order and content depend on, for states.
            store: Where positions and edits are kept, if they are.
            failures: Where failed rows are noted.
            silence_s: After which silence counts as loss.
            deadline_s: Of whatever has no other.
        """
        self.coordinator = coordinator
        self.record = RunRecord()
        """Of the present generation, as far as this planner planned it."""
        self.news = News()
        self.superseded: Superseded | None = None
        """Why this planner has nothing to say any more."""
        self._identity = identity
        self._store = store
        self._failures = failures
        self._recorded = coordinator.generations.generation
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="msd-coordinator")
        self._inbox: list[Event] = []
        self._has_events = asyncio.Event()
        self._waits: str | None = None
        self.pace = Pace()
        self.drained: set[str] = set()
        """Loader hosts that were to go and of which nothing is needed any more."""
        self._starving: tuple[str, float] | None = None
        """The source that planning waits for now, and since when."""
        self._is_closed = False
        self._tasks = Tasks(self._broke)
        self.crew = Crew(
            node,
            self._tasks,
            term=term,
            silence_s=silence_s,
            happened=self.put,
            came=self._note_failures,
            is_shadow=lambda name: name in coordinator.shadows,
        )
        keep = None if store is None else store.journal
        self.journalling = Journalling(self.crew, keep=keep, happened=self.put, deadline_s=deadline_s)

    async def begin(self) -> None:
        """Start to decide. The crew's first members are there."""
        for work in (self._handle_for_ever(), self._tell_time_for_ever(), self.journalling.run()):
            self._tasks.spawn(work)
        await self.decide(lambda: (None, self.coordinator.begin()))

    def put(self, event: Event) -> None:
        """Have the coordinator hear of something."""
        self._inbox.append(event)
        self._has_events.set()

    async def decide(self, decide: Callable[[], tuple[_T, list[Command]]]) -> _T:
        """Run a decision on the coordinator's thread: planning takes longer than an event loop may be held.

        Its commands are carried in the order of the decisions, and before whoever asked for one goes on.

        Args:
            decide: Returns an answer, and commands of the coordinator.
        """
        loop = asyncio.get_running_loop()

        def on_thread() -> _T:
            began_s = time.thread_time()
            answer, commands = decide()
            self.pace.decide_s += time.thread_time() - began_s
            if self._store is not None:
                self._store.heed(self.coordinator)
            orders = orders_for(commands, self.coordinator, self._identity)
            generation, waits = self.coordinator.generations.generation, self.coordinator.waits_for
            loop.call_soon_threadsafe(self._carry, orders, generation, waits, self.coordinator.starving)
            return answer

        return await loop.run_in_executor(self._thread, on_thread)

    def limit(self) -> Limit | None:
        """Return the source that limits the steps of late, if one does."""
        return self.pace.limit()

    async def close(self, *, saves: bool) -> None:
        """Decide nothing more. Closing twice is fine.

        Args:
            saves: Write where ranks stood last, if this planner was not replaced: else the one in its place does.
        """
        self._tasks.cancel()
        if self._is_closed:
            return
        self._is_closed = True
        store, loop = self._store, asyncio.get_running_loop()
        if store is not None:
            last = None
            if saves and self.superseded is None:
                with contextlib.suppress(RuntimeError):
                    last = await loop.run_in_executor(self._thread, store.last, self.coordinator)
            await loop.run_in_executor(None, store.close, last)
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._failures.close()

    async def _handle_for_ever(self) -> None:
        while True:
            await self._has_events.wait()
            self._has_events.clear()
            events, self._inbox = self._inbox, []
            await self.decide(partial(self._handle, events))

    def _handle(self, events: list[Event]) -> tuple[None, list[Command]]:
        return None, self.coordinator.handle_all(events)

    async def _tell_time_for_ever(self) -> None:
        while True:
            now_s = asyncio.get_running_loop().time()
            self.put(TimePassed(now_s))
            if self._starving is not None:
                self._note_starving(self._starving[0])
            self.pace.look(now_s, self.record.samples)
            await asyncio.sleep(CLOCK_S)

    def _carry(
        self,
        commands: Sequence[tuple[Command, Wire | None]],
        generation: int,
        waits: str | None,
        starving: str | None,
    ) -> None:
        """Put commands where the tasks that carry them out find them."""
        self._note_starving(starving)
        if generation != self._recorded:
            self._recorded, self.record = generation, RunRecord()
        for command, order in commands:
            self._carry_one(command, order)
        if waits != self._waits:
            self._waits = waits
            self.crew.tell_constructors({"kind": "waits", "for": waits or "samples on their way"})

    def _note_starving(self, source: str | None) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._starving is not None:
            waited_for, since_s = self._starving
            self.pace.note_starved(waited_for, now_s - since_s)
        self._starving = None if source is None else (source, now_s)

    def _carry_one(self, command: Command, order: Wire | None) -> None:
        crew = self.crew
        match command:
            case Examine(host=host):
                if host in crew.hosts:
                    crew.hosts[host].examine(command)
            case Abandon(generation=generation):
                for driver in crew.hosts.values():
                    driver.abandon(generation)
            case Release(source=source, before=before):
                for driver in crew.hosts.values():
                    driver.release(source, before)
            case Planned(plan=plan):
                self.record.add(plan)
            case Avoid():
                crew.treat(["avoid", command.source, command.first, command.last, command.reason])
            case Isolate(rows=rows):
                crew.treat(["isolate", *(list(row) for row in rows)])
            case Follow(host=host, cursors=cursors):
                if host in crew.hosts:
                    crew.hosts[host].tell("follow", {"kind": "follow", "cursors": dict(cursors)})
            case Replicate(standing=standing):
                crew.replicate(standing_to_wire(standing))
            case Seats(host=host, seats=seats):
                if host in crew.hosts:
                    told = [[source, one.partition, one.workers] for source, of in seats.items() for one in of]
                    crew.hosts[host].tell("seats", {"kind": "seats", "seats": told})
            case Drained(host=host):
                self.drained.add(host)
            case Journal():
                self.journalling.put(command)
            case Warn(text=text):
                self.news.add(text)
            case Fail(error=error):
                crew.tell_constructors({"kind": "fail", "error": plain(error)})
            case _:
                assert order is not None
                crew.tell_constructor(command.constructor, order)

    def _note_failures(self, tables: list[MetaTable]) -> None:
        for table in tables:
            self._failures.note(table.source, table.failures)

    def _broke(self, error: Exception) -> None:
        """Have the run fail with a task that failed; a planner that was replaced ends alone."""
        if isinstance(error, Superseded):
            self.superseded = self.superseded or error
            self._tasks.cancel()
            return
        self.crew.tell_constructors({"kind": "fail", "error": plain(error)})
        self.put(RunFailed(error))

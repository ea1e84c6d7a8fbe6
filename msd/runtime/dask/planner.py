"""The planner actor: hosts the coordinator, carries its commands to hosts and constructors, brings back events."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from distributed import get_worker

from msd.build import build_coordinator
from msd.config import PipelineConfig
from msd.coordinator import RankStanding
from msd.coordinator.commands import (
    Assign,
    Avoid,
    Command,
    Drop,
    Examine,
    Fail,
    Finish,
    Isolate,
    Planned,
    Release,
    Rewind,
)
from msd.coordinator.events import (
    BytesHeld,
    Event,
    HostLost,
    HostSilent,
    RowKilled,
    RowsEnded,
    RowsExamined,
    RunFailed,
    StepAsked,
)
from msd.coordinator.placement import Placement
from msd.core.order import SourceOrder
from msd.core.state import StateDict, canonical_json
from msd.errors import ConfigError, DeadlineError, EngineError, MsdError
from msd.runtime.dask.calls import ActorGone, Ref, call
from msd.runtime.dask.hosts import TICK_S
from msd.runtime.dask.lifetime import close_when_released, listen_for_losses
from msd.runtime.dask.tasks import Tasks
from msd.runtime.dask.wire import Wire, pack, plan_to_wire, tables_from_wire, unpack
from msd.runtime.failures import FailureNotes
from msd.runtime.record import RunRecord, provenance
from msd.runtime.state import run_state

_T = TypeVar("_T")

DEPTH = 4
"""Steps planned from the one that the slowest rank asks for: it has one, two are prefetched, one is being made."""

SETTLE_S = 5.0
"""A load waits this long at most until every constructor has heard of it."""

SILENCE_S = 10.0
"""A host answers `advance` within a fraction of a second; after this its answer is taken for lost."""
SILENCES = 3
"""So many in a row, and the host is."""


class PlannerActor:
    """Decides nothing itself: the coordinator does, on one thread, event by event."""

    def __init__(
        self,
        config: PipelineConfig,
        orders: dict[str, SourceOrder],
        identity: StateDict,
        placement: Placement,
        constructors: dict[str, tuple[int, ...]],
        term: int,
    ) -> None:
        """Get ready; `begin` starts.

        Args:
            config: The run's configuration.
            orders: The sequence of each source.
            identity: What order and content depend on, for states.
            placement: Which host owns which windows.
            constructors: The ranks that each constructor serves.
            term: Of this planner: hosts and constructors refuse lower ones.
        """
        self._config = config
        self._orders = orders
        self._identity = identity
        self._term = term
        self._deadline_s = config.runtime.deadline_s
        self._worker = get_worker()
        self._coordinator = build_coordinator(
            config, orders, placement=placement, constructors=constructors, depth=DEPTH
        )
        self._failures = FailureNotes(config.sources)
        self._record = RunRecord()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="msd-coordinator")
        self._inbox: list[Event] = []
        self._has_events: asyncio.Event | None = None
        self._tasks = Tasks(self._broke)
        self._stop_listening: Callable[[], None] | None = None
        self._waits: str | None = None
        close_when_released(self)

    async def begin(self, hosts: dict[str, Ref], constructors: dict[str, Ref]) -> None:
        """Take the references of the others and start planning."""
        self._hosts, self._constructors = dict(hosts), dict(constructors)
        self._outboxes = {name: _Outbox() for name in (*hosts, *constructors)}
        self._has_events = asyncio.Event()
        self._stop_listening = listen_for_losses(self._lost)
        for name in hosts:
            self._tasks.spawn(self._drive_host(name))
        for name in constructors:
            self._tasks.spawn(self._drive_constructor(name))
        self._tasks.spawn(self._handle_for_ever())
        self._send(await self._decide(self._coordinator.begin))

    # What constructors and the engine ask.

    async def connect(self, rank: int, next_step: int | None, generation: int | None) -> dict[str, Any]:
        """Connect a rank; one that comes back states where it stands."""
        at = (
            None
            if next_step is None or generation is None
            else RankStanding(rank=rank, generation=generation, next_step=next_step)
        )

        def connect() -> tuple[dict[str, Any], list[Command]]:
            session, commands = self._coordinator.connect(rank, at)
            return {"session": session, **self._standing()}, commands

        answer, commands = await self._decide(connect)
        self._send(commands)
        return answer

    async def disconnect(self, rank: int, session: int) -> None:
        """Release a rank."""
        self._send(await self._decide(lambda: self._coordinator.disconnect(rank, session)))

    async def load(self, rank: int, session: int, progress: StateDict) -> dict[str, Any]:
        """Move the run to a saved progress, or join the others there."""

        def load() -> tuple[dict[str, Any], list[Command]]:
            commands = self._coordinator.load(rank, session, progress)
            return self._standing(), commands

        answer, commands = await self._decide(load)
        self._send(commands)
        if any(isinstance(command, Rewind) for command in commands):
            # Whoever loads may then tell other ranks to go on: by then they must not use what they fetched before.
            settling = asyncio.gather(*(self._outboxes[name].settled() for name in self._constructors))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(settling, min(SETTLE_S, self._deadline_s / 2))
        return answer

    async def report(self, constructor: str, generation: int, asked: Sequence[Sequence[int]], held_bytes: int) -> None:
        """Take which steps ranks ask for and how much a constructor holds."""
        for rank, session, step in asked:
            self._put(StepAsked(rank, session, generation, step))
        self._put(BytesHeld(constructor, held_bytes))

    async def host_lost(self, host: str) -> None:
        """Take that a loader host cannot be reached."""
        self._put(HostLost(host))

    async def failed(self, error: Exception) -> None:
        """Take that the run cannot go on."""
        self._put(RunFailed(error))

    async def check(self) -> None:
        """Raise what ended the run, if something did."""
        if self._coordinator.error is not None:
            raise _plain(self._coordinator.error)

    async def stats(self) -> dict[str, Any]:
        """Return what the run has done so far."""

        def stats() -> dict[str, Any]:
            generations = self._coordinator.generations
            return {
                "generation": generations.generation,
                "steps_planned": self._record.num_steps,
                "next_step": self._coordinator.next_step,
                "watermark": generations.watermark,
                "waits_for": self._coordinator.waits_for,
                "alive": list(self._coordinator.placement.alive),
                **self._record.as_dict(self._coordinator.closing_notes),
                "sources": {
                    name: {**self._record.of_source(name), "rows_per_epoch": order.rows_per_epoch}
                    for name, order in self._orders.items()
                },
            }

        return await self._decide(stats)

    async def which(self, step: int) -> list[dict[str, Any]]:
        """Return where each document of a step came from and where it went."""
        deadline = asyncio.get_running_loop().time() + self._deadline_s
        while True:
            self._send(await self._decide(lambda: self._coordinator.recall(step)))
            plan = await self._decide(lambda: self._coordinator.plan(step))
            if plan is not None:
                return provenance(plan, self._orders)
            if self._coordinator.error is not None:
                raise _plain(self._coordinator.error)
            if not self._coordinator.exists(step):
                raise ConfigError(f"step {step} does not exist: the run ends before step {self._coordinator.end}")
            if asyncio.get_running_loop().time() > deadline:
                raise DeadlineError(f"the plan of step {step} was not made again within {self._deadline_s:g} s")
            await asyncio.sleep(TICK_S)

    async def close(self) -> None:
        """Stop planning. Closing twice is fine."""
        if self._stop_listening is not None:
            self._stop_listening()
        self._tasks.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._failures.close()

    def _standing(self) -> dict[str, Any]:
        coordinator = self._coordinator
        return {
            "generation": coordinator.generations.generation,
            "first_step": coordinator.first_step,
            "progress": coordinator.progress_before(coordinator.first_step),
        }

    # Events in, commands out.

    def _put(self, event: Event) -> None:
        assert self._has_events is not None
        self._inbox.append(event)
        self._has_events.set()

    async def _handle_for_ever(self) -> None:
        assert self._has_events is not None
        while True:
            await self._has_events.wait()
            self._has_events.clear()
            events, self._inbox = self._inbox, []
            self._send(await self._decide(partial(self._coordinator.handle_all, events)))

    async def _decide(self, decide: Callable[[], _T]) -> _T:
        """Run a decision on the coordinator's thread: planning takes longer than an event loop may be held."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, decide)

    def _send(self, commands: Sequence[Command]) -> None:
        """Put commands where the tasks that carry them out find them."""
        for command in commands:
            match command:
                case Examine(host=host):
                    self._outboxes[host].put([command.source, command.partition, command.start, command.num_rows])
                case Release(source=source, before=before):
                    for host in dict.fromkeys(self._coordinator.placement.hosts[source]):
                        self._outboxes[host].releases[source] = before
                case Avoid(source=source, first=first, last=last, reason=reason):
                    self._treat(["avoid", source, first, last, reason])
                case Isolate(rows=rows):
                    self._treat(["isolate", *([source, ordinal] for source, ordinal in rows)])
                case Planned(plan=plan):
                    self._record.add(plan)
                case Assign() | Drop() | Finish() | Rewind():
                    self._outboxes[command.constructor].put(self._order(command))
                    if isinstance(command, Rewind):
                        self._record = RunRecord()
                case Fail(error=error):
                    self._tell_all({"kind": "fail", "error": _plain(error)})
        waits = self._coordinator.waits_for
        if waits != self._waits:
            self._waits = waits
            self._tell_all({"kind": "waits", "for": waits or "samples on their way"})

    def _treat(self, rows: list[Any]) -> None:
        """Tell every host of rows that are not run like others."""
        for host in self._hosts:
            self._outboxes[host].put_rows(rows)

    def _tell_all(self, order: Wire) -> None:
        for name in self._constructors:
            self._outboxes[name].put(order)

    def _order(self, command: Assign | Drop | Finish | Rewind) -> Wire:
        match command:
            case Assign():
                return {
                    "kind": "assign",
                    "term": self._term,
                    "generation": command.generation,
                    "version": command.placement_version,
                    "number": command.number,
                    "plan": plan_to_wire(command.plan),
                    "owners": {
                        source: [[ordinal, host, partition] for ordinal, (host, partition) in entries.items()]
                        for source, entries in command.owners.items()
                    },
                }
            case Drop():
                return {
                    "kind": "drop",
                    "generation": command.generation,
                    "through": command.through,
                    "number": command.number,
                }
            case Finish():
                return {"kind": "finish", "generation": command.generation, "step": command.step}
            case Rewind():
                standing = self._standing()
                position = canonical_json(run_state(standing["progress"], self._identity))
                return {
                    "kind": "rewind",
                    "generation": command.generation,
                    "first_step": standing["first_step"],
                    "position": position,
                }

    async def _drive_host(self, name: str) -> None:
        """Carry requests to a host and metadata back, as long as there is something to ask or to wait for."""
        outbox, seen, silences = self._outboxes[name], 0, 0
        told, num_rows_told = 0, 0
        silence_s = min(SILENCE_S, self._deadline_s / (2 * SILENCES))
        owed: set[tuple[str, int, int]] = set()
        while True:
            if not owed:
                await outbox.wait()
            requests, releases = outbox.drain()
            owed.update((source, start, num_rows) for source, _, start, num_rows in requests)
            rows = outbox.rows[num_rows_told:]
            asked = pack({"requests": requests, "releases": releases, "rows": rows, "told": told})
            try:
                packed = await call(
                    self._worker, self._hosts[name], "advance", self._term, asked, seen, TICK_S, deadline_s=silence_s
                )
            except ActorGone:
                self._put(HostLost(name))
                return
            except DeadlineError:
                silences += 1
                if silences == SILENCES:
                    self._put(HostLost(name))
                    return
                # What it owes is asked for once more: the request may be lost, or the answer.
                owed.clear()
                outbox.restore(releases)
                self._put(HostSilent(name))
                continue
            wire = unpack(packed)
            silences, seen, told = 0, wire["number"], wire["news_number"]
            num_rows_told += len(rows)
            for news in wire["news"]:
                self._put(_event_of(news))
            tables = tables_from_wire(wire)
            owed.difference_update((table.source, table.start, table.num_rows) for table in tables)
            for table in tables:
                self._failures.note(table.source, table.failures)
            if tables:
                self._put(RowsExamined(name, tuple(tables)))

    async def _drive_constructor(self, name: str) -> None:
        outbox = self._outboxes[name]
        while True:
            await outbox.wait()
            orders, _ = outbox.drain()
            await call(self._worker, self._constructors[name], "perform", pack(orders), deadline_s=self._deadline_s)
            outbox.note_done(len(orders))

    def _lost(self, address: str) -> None:
        """Hear of a lost worker from the scheduler, sooner than from a call that fails."""
        for name, ref in self._hosts.items():
            if ref.address == address:
                self._put(HostLost(name))
        for ref in self._constructors.values():
            if ref.address == address:
                self._put(RunFailed(EngineError(
                    f"{ref.name} at {address} is gone, and with it the ranks that it served; start the run again from "
                    "the last saved state"
                )))  # fmt: skip

    def _broke(self, error: Exception) -> None:
        """Have the run fail with a task that failed."""
        self._tell_all({"kind": "fail", "error": _plain(error)})
        self._put(RunFailed(error))


def _plain(error: Exception) -> MsdError:
    """Return an error that can be sent to any process: what users raise may have a class that only they have."""
    if isinstance(error, MsdError) and type(error).__module__.partition(".")[0] == "msd":
        return error
    return EngineError(f"the run failed with {type(error).__name__}: {error}")


def _event_of(news: Wire) -> Event:
    """Return what a host has to tell of rows that ended a process."""
    if "killed" in news:
        source, ordinal = news["killed"]
        return RowKilled(source, ordinal, news["how"])
    return RowsEnded(tuple((source, ordinal) for source, ordinal in news["rows"]), news["how"])


class _Outbox:
    """What waits to be carried to one process."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self.rows: list[list[Any]] = []
        """All that was ever said of rows that are not run like others."""
        self.releases: dict[str, int] = {}
        self._has_items = asyncio.Event()
        self._num_put = 0
        self._num_done = 0
        self._progress = asyncio.Event()

    def put(self, item: Any) -> None:
        self._num_put += 1
        self._items.append(item)
        self._has_items.set()

    def put_rows(self, rows: list[Any]) -> None:
        self.rows.append(rows)
        self._has_items.set()

    async def wait(self) -> None:
        await self._has_items.wait()

    def note_done(self, count: int) -> None:
        """Note that so many more items were carried out there."""
        self._num_done += count
        self._progress.set()

    async def settled(self) -> None:
        """Wait until all that was put so far is carried out."""
        wanted = self._num_put
        while self._num_done < wanted:
            self._progress.clear()
            await self._progress.wait()

    def restore(self, releases: dict[str, int]) -> None:
        """Put back what may not have arrived."""
        self.releases = {**releases, **self.releases}

    def drain(self) -> tuple[list[Any], dict[str, int]]:
        items, self._items = self._items, []
        releases, self.releases = self.releases, {}
        self._has_items.clear()
        return items, releases

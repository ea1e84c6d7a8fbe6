"""The planner actor: hosts the coordinator, carries its commands to hosts and constructors, brings back events.

It may die at any moment: whoever comes in its place has a higher term, and begins with what survivors know.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from distributed import get_worker

from msd.build import build_coordinator
from msd.config import PipelineConfig
from msd.coordinator.commands import Command, Journal
from msd.coordinator.events import BytesHeld, RanksStand, RunFailed, StepAsked
from msd.coordinator.placement import Placement
from msd.core.journal import edits_from_state, edits_to_state
from msd.core.order import SourceOrder
from msd.core.plan import StepPlan
from msd.core.state import StateDict
from msd.errors import ConfigError, EngineError
from msd.runtime.base import too_late
from msd.runtime.dask.autoscaler import seats_from_wire, seats_to_wire
from msd.runtime.dask.calls import Ref
from msd.runtime.dask.helm import Helm
from msd.runtime.dask.hosts import TICK_S
from msd.runtime.dask.lifetime import close_when_released, listen_for_losses
from msd.runtime.dask.orders import plain, start_of
from msd.runtime.dask.outfit import HOST_BYTES
from msd.runtime.dask.planner_store import PlannerStore
from msd.runtime.dask.standings import rank_from_wire, stall_to_wire, standing_from_wire, standing_to_wire
from msd.runtime.dask.wire import Wire
from msd.runtime.failures import FailureNotes
from msd.runtime.record import provenance, size_of

DEPTH = 4
"""Steps planned from the one that the slowest rank asks for: it has one, two are prefetched, one is being made."""

ANSWERED = 0.9
"""Part of the deadline within which a question is answered or given up: before whoever asked gives up waiting."""

SETTLE_S = 5.0
"""A load waits this long at most until every constructor has heard of it."""


@dataclass(frozen=True, slots=True)
class _Load:
    """A load that was carried out."""

    load_id: str
    answer: Wire
    until: float
    """Time of the loop until which constructors are waited for."""


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
        standing: Wire | None = None,
        kept: Wire | None = None,
    ) -> None:
        """Get ready; `begin` starts.

        Args:
            config: The run's configuration.
            orders: The sequence of each source.
            identity: What order and content depend on, for states.
            placement: Which host owns which windows.
            constructors: The ranks that each constructor serves.
            term: Of this planner: hosts and constructors refuse lower ones.
            standing: What is known of a run that had a planner before, as `standing_to_wire` gives it.
            kept: For a run that keeps a checkpoint: `run`, its identity; `lineage` of the snapshot that it resumed
                from, None if it began new; `origin`, the same for people.
        """
        self._orders = orders
        self._term = term
        self._deadline_s = config.runtime.deadline_s
        self._coordinator = build_coordinator(
            config,
            orders,
            placement=placement,
            constructors=constructors,
            depth=DEPTH,
            # The other half is for what is planned and on its way to ranks.
            ahead_bytes=config.runtime.workers * HOST_BYTES // 2,
            standing=None if standing is None else standing_from_wire(standing),
        )
        self._store: PlannerStore | None = None
        if config.checkpoint is not None and kept is not None:
            self._store = PlannerStore(config.checkpoint, identity, kept)
        self._origin: str = "" if kept is None else kept["origin"]
        self._helm = Helm(
            get_worker(),
            self._coordinator,
            term=term,
            identity=identity,
            store=self._store,
            failures=FailureNotes(config.sources),
            silence_s=min(config.runtime.silence_s, self._deadline_s / 2),
            deadline_s=self._deadline_s,
        )
        self._crew = self._helm.crew
        self._decide = self._helm.decide
        self._has_begun = asyncio.Event()
        self._asking = asyncio.Lock()
        self._connects: dict[int, tuple[tuple[str, int], Wire]] = {}
        """By rank: what a constructor asked last, and the answer: the same asked again is answered the same."""
        self._loads: dict[int, _Load] = {}
        self._stop_listening: Callable[[], None] | None = None
        close_when_released(self, self._leave)

    async def begin(self, hosts: dict[str, Ref], constructors: dict[str, Ref]) -> None:
        """Take the references of the others and start planning."""
        if self._has_begun.is_set():
            return
        self._stop_listening = listen_for_losses(self._crew.worker_gone)
        for name, ref in hosts.items():
            self._crew.add_host(name, ref)
        for name, ref in constructors.items():
            self._crew.add_constructor(name, ref)
        await self._helm.begin()
        self._has_begun.set()

    async def ping(self) -> Wire:
        """Answer, with what whoever watches wants to know."""
        return {
            "name": "planner",
            "pid": os.getpid(),
            "term": self._term,
            "journal": [self._coordinator.generations.generation, self._helm.journalling.num_done],
            "news": self._helm.news.newest(),
            "crew": self._crew.keys,
            "drained": sorted(self._helm.drained & self._crew.hosts.keys()),
            "stall": stall_to_wire(self._coordinator.stall),
        }

    async def standing(self) -> Wire | None:
        """Return what is known of the run."""
        return await self._decide(lambda: (standing_to_wire(self._coordinator.standing()), []))

    # What the supervisor says.

    async def host_joined(self, name: str, ref: Ref, is_shadow: bool) -> None:
        """Take that a process of a loader host is there."""
        await self._has_begun.wait()
        self._crew.host_joined(name, ref, is_shadow)

    async def host_gone(self, name: str, key: str, how: str = "") -> None:
        """Take that a process of a loader host is gone; `key` is its actor's, so that another one stays."""
        await self._has_begun.wait()
        self._crew.host_gone(name, key)

    async def constructor_joined(self, name: str, ref: Ref) -> None:
        """Take that a process of a constructor is there, which holds nothing."""
        await self._has_begun.wait()
        self._crew.constructor_joined(name, ref)

    async def constructor_gone(self, name: str, key: str, how: str = "") -> None:
        """Take that a process of a constructor is gone; `key` is its actor's."""
        await self._has_begun.wait()
        self._crew.constructor_gone(name, key)

    # What constructors and the engine ask.

    async def connect(self, rank: int, asked_by: tuple[str, str, int], stated: Wire | None) -> Wire:
        """Connect a rank.

        Args:
            rank: Of the mesh.
            asked_by: Name and key of the constructor, and number of the question. The same one is answered the same;
                one that is heard after a later one is refused, and so is a constructor that was replaced.
            stated: Where a rank stands that was connected before, as `rank_to_wire` gives it.
        """
        await self._may_speak()
        name, key, number = asked_by
        await self._crew.knows(name, key, deadline_s=self._deadline_s)

        def connect() -> tuple[Wire, list[Command]]:
            known = self._connects.get(rank)
            if known is not None and known[0] == (key, number):
                return known[1], []
            if known is not None and known[0][0] == key and known[0][1] > number:
                raise EngineError(f"rank {rank} was connected again meanwhile")
            session, commands = self._coordinator.connect(rank, None if stated is None else rank_from_wire(stated))
            standing = self._coordinator.rank_standing(rank)
            answer = {
                "session": session,
                "num_loads": standing.num_loads,
                "origin": self._origin,
                **start_of(self._coordinator),
            }
            self._connects[rank] = ((key, number), answer)
            return answer, commands

        return await self._decide(connect)

    async def load(self, rank: int, session: int, load_id: str, number: int, progress: StateDict) -> Wire:
        """Move the run to a saved progress, or join the others there; the same load again changes nothing."""
        await self._may_speak()
        until = self._settles_until()

        def load() -> tuple[_Load, list[Command]]:
            known = self._loads.get(rank)
            if known is not None and known.load_id == load_id:
                return known, []
            commands = self._coordinator.load(rank, session, progress, number=number)
            self._loads[rank] = known = _Load(load_id, start_of(self._coordinator), until)
            return known, commands

        known = await self._decide(load)
        await self._settle(known.until)
        return known.answer

    async def introduce(self, constructor: str, key: str, ranks: Sequence[Wire]) -> None:
        """Take which ranks are connected to a constructor that served them before this planner was made.

        Args:
            constructor: By name.
            key: Of its actor: one that was replaced is not heard.
            ranks: As `rank_to_wire` gives them.
        """
        await self._may_speak()
        if self._crew.is_present(constructor, key):
            self._helm.put(RanksStand(tuple(rank_from_wire(rank) for rank in ranks)))

    async def report(
        self,
        constructor: str,
        key: str,
        term: int,
        generation: int,
        asked: Sequence[Sequence[Any]],
        left: Sequence[Sequence[int]],
        held_bytes: int,
        waits: Sequence[tuple[int, float]] = (),
    ) -> None:
        """Take what a constructor knows of its ranks, and how much it holds.

        Args:
            constructor: By name.
            key: Of its actor: one that was replaced is not heard.
            term: Of the planner that it followed when it said so: this one may be asked in its place.
            generation: That it is in.
            asked: (rank, session, step, lacking) of ranks that ask for a step; see `StepAsked`.
            left: (rank, session) of connections that ended.
            held_bytes: Payload.
            waits: (rank, seconds) for which loops have waited, all together.
        """
        await self._may_speak()
        if not self._crew.is_present(constructor, key):
            return
        for rank, session, step, lacking in asked:
            known = lacking if term == self._term else None
            self._helm.put(StepAsked(rank, session, generation, step, known))
        self._helm.put(BytesHeld(constructor, held_bytes))
        self._helm.pace.note_waits(waits)
        if left:
            await self._decide(lambda: (None, [c for one in left for c in self._coordinator.disconnect(*one)]))

    async def host_doubted(self, host: str, key: str) -> None:
        """Take that a constructor cannot reach a loader host."""
        await self._may_speak()
        self._crew.doubt(host, key)

    async def edit(self, entry: Wire, move_late: bool) -> int:
        """Have an edit take effect, and return the step that it is the first to affect, once it is durable.

        Args:
            entry: As `edits_to_state` gives it.
            move_late: Let an edit of a step that is planned already take effect at the first that is not.
        """
        await self._may_speak()
        (edit,) = edits_from_state([entry])

        def ask() -> tuple[tuple[int, list[int]], list[Command]]:
            taken, commands = self._coordinator.edit(edit, move_late=move_late)
            numbers = [command.number for command in commands if isinstance(command, Journal)]
            return (taken.at_step, numbers), commands

        at_step, numbers = await self._decide(ask)
        for number in numbers:
            await self._helm.journalling.settled(number)
        return at_step

    async def edits(self) -> list[dict[str, Any]]:
        """Return the edits of the generation that are durable, in order."""
        await self._may_speak()
        return await self._decide(lambda: (edits_to_state(self._coordinator.edits), []))

    async def save(self) -> str:
        """Save where the slowest rank stands to the checkpoint, and return the snapshot's name once it is durable."""
        await self._may_speak()
        store = self._store
        if store is None:
            raise ConfigError("save: this run keeps no checkpoint; set checkpoint.path in its configuration")
        progress = await self._decide(lambda: (store.position(self._coordinator), []))
        return await asyncio.get_running_loop().run_in_executor(None, store.save, progress)

    async def restore(self, progress: StateDict) -> Wire:
        """Move the run to a saved progress, for every rank: a generation begins."""
        await self._may_speak()
        await self._decide(lambda: (None, self._coordinator.restore(progress)))
        await self._settle(self._settles_until())
        return await self._decide(lambda: (start_of(self._coordinator), []))

    async def failed(self, error: Exception) -> None:
        """Take that the run cannot go on."""
        self._helm.put(RunFailed(error))

    async def check(self) -> None:
        """Raise what ended the run, if something did."""
        if self._helm.superseded is not None:
            raise self._helm.superseded
        if self._coordinator.error is not None:
            raise plain(self._coordinator.error)

    async def stats(self) -> Wire:
        """Return what the run has done so far."""
        # Ledgers are read apart: the coordinator's thread does nothing but decide.
        sizes = await asyncio.get_running_loop().run_in_executor(None, self._sizes)

        def stats() -> tuple[Wire, list[Command]]:
            generations = self._coordinator.generations
            killed = self._coordinator.num_killed()
            shares, suspended = self._coordinator.shares, self._coordinator.suspended
            losses = self._coordinator.losses
            gauges = self._coordinator.gauges()
            return {
                "generation": generations.generation,
                "steps_planned": self._helm.record.num_steps,
                "next_step": self._coordinator.next_step,
                "watermark": generations.watermark,
                "waits_for": self._coordinator.waits_for,
                "edits": edits_to_state(self._coordinator.edits),
                "limited_by": None if (limit := self._helm.limit()) is None else limit.as_dict(),
                "waited_s": self._helm.pace.waited_s,
                "plan_s": self._helm.pace.decide_s,
                "recent": self._helm.record.recent(),
                "alive": list(self._coordinator.placement.alive),
                "shadows": list(self._coordinator.shadows),
                "seats": [
                    {"source": source, "partition": seat.partition, "host": seat.host, "workers": seat.workers}
                    for source, seating in self._coordinator.placement.allocation.items()
                    for seat in seating.seats
                ],
                "term": self._term,
                "checkpoint": None if self._store is None else self._store.stats(self._coordinator),
                **self._helm.record.as_dict(self._coordinator.closing_notes),
                "sources": {
                    name: {
                        **self._helm.record.of_source(name),
                        **sizes[name],
                        "killed": killed.get(name, 0),
                        "target_share": shares[name],
                        "is_suspended": name in suspended,
                        "loss": losses.get(name),
                        "starved_s": self._helm.pace.starved_s[name],
                        "ready_rows": gauges[name].ready,
                        "wanted_rows": gauges[name].wanted,
                    }
                    for name in self._orders
                },
            }, []

        return await self._decide(stats)

    def _sizes(self) -> dict[str, dict[str, Any]]:
        return {name: size_of(order) for name, order in self._orders.items()}

    async def gauges(self, steps_ahead: int) -> Wire:
        """Return what sizes are decided from: totals of each source, and who has how many workers.

        Args:
            steps_ahead: Steps within which it is told how shares turn.
        """

        def look() -> tuple[Wire, list[Command]]:
            coordinator, record = self._coordinator, self._helm.record
            drawn = {name: record.of_source(name) for name in self._orders}
            return {
                "term": self._term,
                "next_step": coordinator.next_step,
                "waited_s": self._helm.pace.waited_s,
                "alive": list(coordinator.placement.alive),
                "seats": seats_to_wire(coordinator.placement.allocation),
                "tokens": {name: one["tokens"] for name, one in drawn.items()},
                "shares_ahead": coordinator.shares_ahead(steps_ahead),
                "sources": {
                    name: {
                        "samples": drawn[name]["samples"],
                        "starved_s": self._helm.pace.starved_s[name],
                        "ready": gauge.ready,
                        "wanted": gauge.wanted,
                        "consumed": gauge.consumed,
                    }
                    for name, gauge in coordinator.gauges().items()
                },
            }, []

        await self._may_speak()
        return await self._decide(look)

    async def seat(self, seats: Wire) -> None:
        """Give sources other loaders, as `seats_to_wire` gives them, from rows on that nobody was asked for."""
        await self._may_speak()
        await self._decide(lambda: (None, self._coordinator.seat(seats_from_wire(seats))))

    async def drain(self, hosts: Sequence[str]) -> None:
        """Have loader hosts go that were given no seat any more; `ping` tells when nothing of one is needed."""
        await self._may_speak()
        for host in hosts:
            await self._decide(lambda host=host: (None, self._coordinator.drain(host)))  # type: ignore[misc]

    async def which(self, step: int) -> list[dict[str, Any]]:
        """Return where each document of a step came from and where it goes; see `Engine.which`."""
        await self._may_speak()
        try:
            # One question at a time: another one would begin again from where the run stands.
            async with asyncio.timeout(ANSWERED * self._deadline_s), self._asking:
                try:
                    while (plan := await self._decide(partial(self._ask, step))) is None:
                        await asyncio.sleep(TICK_S)
                finally:
                    await self._decide(lambda: (None, self._coordinator.ask(None)))
        except TimeoutError:
            raise too_late(step, ANSWERED * self._deadline_s) from None
        return provenance(plan, self._orders)

    async def close(self) -> None:
        """Stop planning, and save where ranks stood last: the run is over. Closing twice is fine."""
        if self._stop_listening is not None:
            self._stop_listening()
        await self._helm.close(saves=True)

    async def _leave(self) -> None:
        """Stop planning: another planner is in this place, or nobody's."""
        if self._stop_listening is not None:
            self._stop_listening()
        await self._helm.close(saves=False)

    def _ask(self, step: int) -> tuple[StepPlan | None, list[Command]]:
        """Return the plan of a step, if it is there, and what is to be done for it."""
        held = self._coordinator.plan(step)
        if held is not None:
            return held, []
        if self._coordinator.error is not None:
            raise plain(self._coordinator.error)
        commands = self._coordinator.ask(step)
        return self._coordinator.answer(step), commands

    def _settles_until(self) -> float:
        return asyncio.get_running_loop().time() + min(SETTLE_S, self._deadline_s / 2)

    async def _settle(self, until: float) -> None:
        """Wait until every constructor has heard of a move.

        Whoever loads may then tell other ranks to go on: by then they must not use what they fetched before.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._crew.settled(), max(0.0, until - asyncio.get_running_loop().time()))

    async def _may_speak(self) -> None:
        """Wait until planning has begun; a planner that was replaced says so instead."""
        await self._has_begun.wait()
        if self._helm.superseded is not None:
            raise self._helm.superseded

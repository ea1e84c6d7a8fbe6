"""Constructor actors: gather the samples of a step, assemble it once, serve every rank of their group.

The shelf decides what is missing and what is ready; the link serves ranks on threads of its own. Between them stands
one condition: a rank's thread waits on it, the worker's loop notifies it.
"""

import asyncio
import atexit
import json
import os
import socket
import threading
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from distributed import get_worker

from msd.build import build_constructor
from msd.client.link.batches import Encoded, encode
from msd.client.link.messages import Ended, Load, Moved, NotYet, Place, Stated, Welcome
from msd.client.link.server import LinkServer
from msd.config import PipelineConfig
from msd.constructor.shelf import Shelf
from msd.core.state import StateDict, canonical_json
from msd.errors import ClosedError, ConfigError, EngineError, MsdError
from msd.runtime.dask.calls import ActorGone, Ref, call
from msd.runtime.dask.lifetime import close_when_released
from msd.runtime.dask.tasks import Tasks
from msd.runtime.dask.wire import Wire, pack, plan_from_wire, slab_from_wire, unpack
from msd.runtime.state import progress_of, run_state


class ConstructorActor:
    """Serves some ranks. One process per host may hold several."""

    def __init__(
        self,
        run: str,
        name: str,
        config: PipelineConfig,
        ranks: Sequence[int],
        identity: StateDict,
        link: dict[str, Any],
    ) -> None:
        """Get ready to be told who the planner is.

        Args:
            run: Identity of the run.
            name: Of this constructor.
            config: The run's configuration.
            ranks: That it serves.
            identity: What order and content depend on, for states.
            link: `token`, `version`, `unix` (whether to listen there), `host` and `port` to listen on.
        """
        self.name = name
        self._run = run
        self._config = config
        self._deadline_s = config.runtime.deadline_s
        self._identity = identity
        self._ranks = tuple(ranks)
        self._worker = get_worker()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = threading.Condition()
        self._shelf = Shelf(build_constructor(config), self._ranks)
        self._error: Exception | None = None
        self._generation = 0
        self._first_step = 0
        self._position = "{}"
        self._progress = self._state_after = ""
        self._waits_for = "the first plan"
        self._asked: dict[int, tuple[int, int]] = {}
        self._sessions: dict[int, int] = {}
        self._clients: dict[int, str] = {}
        """Who speaks for a rank in its session."""
        self._tasks = Tasks(self._broke)
        self._report_due: asyncio.Event | None = None
        self._directory: dict[int, Place] = {}
        self._encoded: dict[tuple[int, Hashable], Encoded] = {}
        self._loads: dict[int, tuple[str, Moved]] = {}
        self._server = self._listen(run, link)
        # However the process ends in order, no socket file stays.
        atexit.register(self._end)
        close_when_released(self)

    async def begin(self, planner: Ref, hosts: dict[str, Ref]) -> dict[str, Any]:
        """Take the references of the others and return where ranks reach this constructor."""
        self._loop = asyncio.get_running_loop()
        self._planner, self._hosts = planner, dict(hosts)
        self._report_due = asyncio.Event()
        self._tasks.spawn(self._report_for_ever())
        return {"host": socket.gethostname(), "addresses": self._server.addresses}

    async def publish(self, directory: dict[str, dict[str, Any]], served: dict[str, Sequence[int]]) -> None:
        """Take where each constructor is reached and whom it serves: any of them answers that question."""
        for name, place in directory.items():
            at = Place(host=place["host"], addresses=tuple(place["addresses"]))
            self._directory.update(dict.fromkeys(served[name], at))

    async def perform(self, orders: Wire) -> None:
        """Carry out what the planner decided, in order; see `msd.coordinator.commands`."""
        moved = False
        for order in unpack(orders):
            kind = order["kind"]
            with self._changed:
                if kind == "assign":
                    self._assign(order)
                elif kind == "drop":
                    self._shelf.drop(order["generation"], order["through"], number=order["number"])
                    self._encoded = {key: kept for key, kept in self._encoded.items() if key[0] > order["through"]}
                elif kind == "rewind":
                    self._shelf.rewind(order["generation"])
                    self._generation, self._first_step = order["generation"], order["first_step"]
                    self._position = order["position"]
                    self._asked.clear()
                    self._encoded.clear()
                    moved = True
                elif kind == "finish":
                    self._shelf.finish(order["generation"], order["step"])
                elif kind == "fail":
                    self._error = order["error"]
                elif kind == "waits":
                    self._waits_for = order["for"]
                self._changed.notify_all()
        if moved:
            news = Moved(generation=self._generation, first_step=self._first_step, position=self._position)
            await asyncio.get_running_loop().run_in_executor(None, self._server.announce, news)
        self._report_soon()

    async def stats(self) -> dict[str, Any]:
        """Return what is held."""
        with self._changed:
            return {
                "constructor": self.name,
                "ranks": list(self._ranks),
                "connected": sorted(self._sessions),
                "held_bytes": self._shelf.nbytes,
                "held_steps": sorted(self._shelf.held_steps),
            }

    async def close(self) -> None:
        """End the link and all that waits. Closing twice is fine."""
        self._tasks.cancel()
        await asyncio.get_running_loop().run_in_executor(None, self._end)
        atexit.unregister(self._end)

    def _end(self) -> None:
        with self._changed:
            self._error = self._error or ClosedError(
                "the run was closed; start it again, connect, and load the last saved state to go on"
            )
            self._changed.notify_all()
        self._server.close(self._error)

    def _listen(self, run: str, link: dict[str, Any]) -> LinkServer:
        host, port = link["host"], link["port"]
        try:
            return LinkServer(
                self,
                run=run,
                token=link["token"],
                version=link["version"],
                unix_path=link["unix"],
                host=host,
                port=port,
            )
        except OSError as error:
            raise ConfigError(
                f"{self.name} cannot listen at {host}:{port} ({_reason(error)}); choose another host or port, or "
                "port 0 for any that is free"
            ) from None

    # What the link asks, on the thread of a rank's connection.

    def where(self, rank: int) -> list[Place] | NotYet:
        """Return where a rank finds its constructor."""
        self._config.place.check_rank(rank)
        self._check_running()
        place = self._directory.get(rank)
        return NotYet(waits_for="the constructors to be placed") if place is None else [place]

    def hello(self, rank: int, client: str, stated: Stated | None) -> Welcome:
        """Connect a rank, or take one back that lost its connection."""
        self._config.place.check_rank(rank)
        if rank not in self._ranks:
            raise EngineError(f"constructor {self.name} does not serve rank {rank}; ask for the one that does")
        self._check_running()
        if rank in self._sessions and stated is None and self._clients[rank] != client:
            raise EngineError(
                f"rank {rank} is connected already, and two clients of one rank would share its batches; close the "
                "other one, or use the rank number of this process"
            )
        if stated is not None and stated.run != self._run:
            raise EngineError(
                f"a rank of run {stated.run} reached run {self._run}; take the present address of its run"
            )
        at = (None, None) if stated is None else (stated.next_step, stated.generation)
        answer = self._ask_planner("connect", rank, *at)
        with self._changed:
            self._sessions[rank], self._clients[rank] = answer["session"], client
        return Welcome(
            mesh=self._config.place.as_dict(),
            session=answer["session"],
            deadline_s=float(self._deadline_s),
            **self._moved_to(answer),
        )

    def take(self, rank: int, session: int, generation: int, step: int, taken_through: int, wait_s: float) -> Any:
        """Return an encoded batch once it is there, or what else there is to say."""
        with self._changed:
            if self._sessions.get(rank) != session:
                raise EngineError(
                    f"rank {rank} was connected again; this client no longer speaks for it: use the newer one"
                )
            self._note_asked(rank, session, generation, taken_through + 1)
            answer = self._changed.wait_for(lambda: self._answer(rank, generation, step), wait_s)
        if isinstance(answer, Exception):
            raise answer.with_traceback(None)
        return NotYet(waits_for=self._waits_for) if answer is None else answer

    def load(self, rank: int, session: int, load: Load) -> Moved:
        """Move the run to a saved position, or join the others there; the same load twice is one."""
        known = self._loads.get(rank)
        if known is None or known[0] != load.load_id:
            answer = self._ask_planner("load", rank, session, progress_of(load.state, self._identity, force=load.force))
            self._loads[rank] = (load.load_id, Moved(**self._moved_to(answer)))
        return self._loads[rank][1]

    def bye(self, rank: int, session: int) -> None:
        """Release a rank."""
        self.lost(rank, session)

    def lost(self, rank: int, session: int) -> None:
        """Note that the connection of a rank ended."""
        with self._changed:
            if self._sessions.get(rank) != session:
                return
            del self._sessions[rank]
            self._asked.pop(rank, None)
        if self._error is None:
            try:
                self._ask_planner("disconnect", rank, session)
            except MsdError:
                # The planner is gone: nobody is left to be told.
                return

    def _check_running(self) -> None:
        """Refuse a rank that comes when there is nothing to come."""
        if self._error is not None and self._shelf.end is None:
            raise self._error.with_traceback(None)

    def _answer(self, rank: int, generation: int, step: int) -> Encoded | Moved | Ended | Exception | None:
        if generation > self._generation:
            # The rank heard of the move from the planner, which tells this constructor too.
            return self._error
        if generation < self._generation:
            return Moved(generation=self._generation, first_step=self._first_step, position=self._position)
        encoded = self._encoded_for(step, rank)
        if encoded is not None:
            return encoded
        if self._error is not None:
            return self._error
        return Ended(step=step) if self._shelf.end is not None and step >= self._shelf.end else None

    def _encoded_for(self, step: int, rank: int) -> Encoded | None:
        """Return a batch as it is sent, if it is there: one encoding for all the ranks that hold the same."""
        key = (step, self._shelf.share_key(step, rank))
        if key not in self._encoded:
            batch = self._shelf.batch(self._generation, step, rank)
            if batch is None:
                return None
            # All ranks stand at the same position after a step: with hundreds of sources it costs to write it down.
            if batch.progress != self._progress:
                self._progress, self._state_after = batch.progress, self._state(json.loads(batch.progress))
            self._encoded[key] = encode(replace(batch, progress=self._state_after))
        return self._encoded[key]

    def _note_asked(self, rank: int, session: int, generation: int, step: int) -> None:
        if generation == self._generation and self._asked.get(rank, (0, -1)) != (session, step):
            self._asked[rank] = (session, step)
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._report_soon)

    def _ask_planner(self, method: str, *args: Any) -> Any:
        assert self._loop is not None
        asking = asyncio.run_coroutine_threadsafe(
            call(self._worker, self._planner, method, *args, deadline_s=self._deadline_s), self._loop
        )
        try:
            return asking.result()
        except ActorGone as error:
            raise _planner_lost(error) from None

    def _moved_to(self, answer: dict[str, Any]) -> dict[str, Any]:
        return {
            "generation": answer["generation"],
            "first_step": answer["first_step"],
            "position": self._state(answer["progress"]),
        }

    def _state(self, progress: StateDict) -> str:
        return canonical_json(run_state(progress, self._identity))

    # What happens on the worker's loop.

    def _assign(self, order: Wire) -> None:
        plan = plan_from_wire(order["plan"])
        owners = {
            source: {int(ordinal): (host, partition) for ordinal, host, partition in entries}
            for source, entries in order["owners"].items()
        }
        if self._shelf.assign(order["generation"], plan, owners, order["version"], number=order["number"]):
            self._tasks.spawn(self._gather(order["generation"], plan.step, order["term"]))

    async def _gather(self, generation: int, step: int, term: int) -> None:
        """Fetch what a step lacks, one call a host, and one more for samples whose pixels go to another constructor."""
        calls: dict[tuple[str, bool], list[list[Any]]] = {}
        with self._changed:
            needed, without_pixels = self._shelf.needed(step), self._shelf.needed_without_pixels(step)
        for (host, partition), ids in needed.items():
            of_source: dict[tuple[str, bool], list[list[int]]] = {}
            for sample_id in ids:
                key = (sample_id.source, sample_id not in without_pixels)
                of_source.setdefault(key, []).append([sample_id.ordinal, sample_id.part])
            for (source, pixels), places in of_source.items():
                calls.setdefault((host, pixels), []).append([source, partition, places])
        await asyncio.gather(
            *(self._fetch(generation, step, host, term, wanted, pixels) for (host, pixels), wanted in calls.items())
        )

    async def _fetch(
        self, generation: int, step: int, host: str, term: int, wanted: list[list[Any]], pixels: bool
    ) -> None:
        try:
            wire = await call(
                self._worker, self._hosts[host], "fetch", term, pack(wanted), pixels, deadline_s=self._deadline_s
            )
            with self._changed:
                if generation == self._generation:
                    self._shelf.deliver(step, slab_from_wire(wire))
                self._changed.notify_all()
        except ActorGone:
            await self._tell_planner("host_lost", host)
        except Exception as error:
            # Rows that moved to another host meanwhile are fetched from there.
            if self._is_owed(generation, step, host):
                await self._tell_planner("failed", error)

    def _is_owed(self, generation: int, step: int, host: str) -> bool:
        with self._changed:
            return generation == self._generation and any(owner == host for owner, _ in self._shelf.needed(step))

    async def _tell_planner(self, method: str, *args: Any) -> None:
        try:
            await call(self._worker, self._planner, method, *args, deadline_s=self._deadline_s)
        except EngineError as error:
            self._broke(_planner_lost(error) if isinstance(error, ActorGone) else error)

    def _report_soon(self) -> None:
        if self._report_due is not None:
            self._report_due.set()

    async def _report_for_ever(self) -> None:
        """Tell the planner which steps ranks ask for and what is held: one call for all that gathered meanwhile."""
        assert self._report_due is not None
        told: tuple[Any, ...] = ()
        while True:
            await self._report_due.wait()
            self._report_due.clear()
            with self._changed:
                asked = [[rank, session, step] for rank, (session, step) in sorted(self._asked.items())]
                held = self._shelf.nbytes
            if (asked, held) != told:
                told = (asked, held)
                await self._tell_planner("report", self.name, self._generation, asked, held)

    def _broke(self, error: Exception) -> None:
        """Have ranks hear of a task that failed."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()


def _planner_lost(error: ActorGone) -> EngineError:
    return EngineError(
        f"the run has lost its planner ({error}); start it again, connect, and load the last saved state to go on"
    )


def _reason(error: OSError) -> str:
    # What is raised for a port may say the address once more.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)

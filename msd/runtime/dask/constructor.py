"""Constructor actors: gather the samples of a step, assemble it once, serve every rank of their group.

The shelf decides what is missing and what is ready; the link serves ranks on threads of its own. Between them stands
one condition: a rank's thread waits on it, the worker's loop notifies it. While the planner is away, what is held goes
on being served.
"""

import asyncio
import atexit
import contextlib
import itertools
import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from distributed import get_worker

from msd.build import build_constructor
from msd.client.link.messages import Load, Moved, NotYet, Place, Stated, Welcome
from msd.client.link.server import LinkServer
from msd.config import PipelineConfig
from msd.constructor.shelf import Shelf
from msd.core.state import StateDict
from msd.errors import ClosedError, ConfigError, EngineError
from msd.runtime.dask.answers import Answers
from msd.runtime.dask.attendance import Attendance
from msd.runtime.dask.calls import Fence, Ref
from msd.runtime.dask.encoded import EncodedBatches
from msd.runtime.dask.gathering import Gathering
from msd.runtime.dask.lifetime import close_when_released, key_of, listen_for_losses
from msd.runtime.dask.memory import pss_bytes
from msd.runtime.dask.planner_line import PlannerAway, PlannerLine
from msd.runtime.dask.reporting import Reporting
from msd.runtime.dask.securing import link_certificates
from msd.runtime.dask.standings import enriched, rank_to_wire, stands_of
from msd.runtime.dask.tasks import Tasks
from msd.runtime.dask.wire import Wire, plan_from_wire, unpack
from msd.runtime.state import progress_of

ANSWER_S = 1.0
"""A rank is told to ask again when the planner has not answered within this."""


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
        self._fence = Fence(name)
        self._waits_for = "the first plan"
        self._attendance = Attendance()
        self._replica: Wire | None = None
        """What a new planner would have to know of the generation."""
        self._tasks = Tasks(self._broke)
        self._planner = PlannerLine(self._worker)
        self._gathering = Gathering(
            self._worker,
            self._shelf,
            self._changed,
            self._tasks,
            self._fence,
            deadline_s=self._deadline_s,
            doubt_s=config.runtime.silence_s,
            doubt=lambda host, ref: self._tell_planner("host_doubted", host, ref.key),
            failed=lambda error: self._tell_planner("failed", error),
        )
        self._performed = (0, 0)
        """(term, number of the order that comes next)"""
        self._questions = itertools.count(1)
        self._reporting = Reporting(name, self._planner, self._shelf, self._attendance, self._changed, self._fence)
        self._stop_listening: Callable[[], None] | None = None
        self._directory: dict[int, Place] = {}
        self._encoded = EncodedBatches(self._shelf, identity)
        self._answers = Answers(self._shelf, self._encoded)
        self._loads: dict[int, tuple[str, Moved]] = {}
        self._server = self._listen(run, link)
        # However the process ends in order, no socket file stays.
        atexit.register(self._server.close)
        close_when_released(self, self._leave)

    async def begin(self, planner: Ref, term: int, hosts: dict[str, Ref]) -> Wire:
        """Take who plans and where the hosts are, and return where ranks reach this constructor.

        Comes again whenever one of them was replaced.
        """
        self._fence.admit(term)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._key = key_of(self)
            self._stop_listening = listen_for_losses(self._planner.worker_gone)
            self._tasks.spawn(self._reporting.run(self._key))
        self._planner.follow(planner)
        self._gathering.hosts_are(hosts)
        self._reporting.anew()
        return {"host": socket.gethostname(), "addresses": self._server.addresses}

    async def publish(self, directory: dict[str, Wire], served: dict[str, Sequence[int]]) -> None:
        """Take where each constructor is reached and whom it serves: any of them answers that question."""
        for name, place in directory.items():
            at = Place(host=place["host"], addresses=tuple(place["addresses"]))
            self._directory.update(dict.fromkeys(served[name], at))

    async def ping(self) -> Wire:
        """Answer, with the keys of the planner that it asks and of the hosts that it knows."""
        return {
            "name": self.name,
            "pid": os.getpid(),
            "term": self._fence.term,
            "follows": None if self._planner.ref is None else self._planner.ref.key,
            "hosts": self._gathering.keys,
        }

    async def standing(self, term: int) -> Wire | None:
        """Return where the run stands, as far as is known here; a planner of a lower term is refused from now on."""
        self._fence.admit(term)
        if self._replica is None:
            return None
        with self._changed:
            return enriched(
                self._replica,
                ranks=self._attendance.standings(),
                most_session=self._attendance.most_session,
                generation=self._shelf.generation,
                positions=self._shelf.positions(),
            )

    async def fail(self, error: Exception) -> None:
        """Have every rank that is served here, and each that comes, hear why the run cannot go on."""
        self._broke(error)

    async def perform(self, term: int, first: int, orders: Wire) -> None:
        """Carry out what the planner decided, in order; see `msd.runtime.dask.orders`.

        Args:
            term: Of the planner: lower ones are refused.
            first: Number of the first order; one that was carried out is not carried out again.
            orders: Packed.
        """
        self._fence.admit(term)
        generation = self._answers.generation
        done = self._performed[1] if self._performed[0] == term else 0
        with self._changed:
            for number, order in enumerate(unpack(orders), first):
                if number >= done:
                    self._carry_out(term, order)
                    self._performed = (term, number + 1)
            self._changed.notify_all()
        if self._answers.generation > generation:
            await asyncio.get_running_loop().run_in_executor(None, self._server.announce, self._answers.moved)
        self._reporting.soon()

    def _carry_out(self, term: int, order: Wire) -> None:
        match order["kind"]:
            case "assign":
                self._assign(term, order)
            case "drop":
                through = order["through"]
                self._shelf.drop(order["generation"], through, number=order["number"], term=term)
                self._encoded.drop(through)
            case "rewind":
                self._answers.rewind(order)
            case "finish":
                self._shelf.finish(order["generation"], order["step"])
            case "refuse":
                self._answers.refuse(order)
            case "fail":
                self._answers.fail(order["error"])
            case "waits":
                self._waits_for = order["for"]
            case "replica":
                self._replica = order["standing"]

    async def stats(self) -> dict[str, Any]:
        """Return what is held."""
        pss = await asyncio.get_running_loop().run_in_executor(None, pss_bytes)
        with self._changed:
            return {
                "constructor": self.name,
                "pid": os.getpid(),
                "pss_bytes": pss,
                "ranks": list(self._ranks),
                "connected": self._attendance.connected,
                "held_bytes": self._shelf.nbytes,
                "held_steps": sorted(self._shelf.held_steps),
                "gathered_steps": self._gathering.num_steps,
                "gather_s": self._gathering.seconds,
                "assembled_batches": self._encoded.num_batches,
                "assemble_s": self._encoded.seconds,
            }

    async def close(self) -> None:
        """End the link and all that waits: the run is over. Closing twice is fine."""
        with self._changed:
            self._answers.fail(
                ClosedError("the run was closed; start it again, connect, and load the last saved state to go on")
            )
            self._changed.notify_all()
        await self._leave()

    async def _leave(self) -> None:
        """End here; unless the run is over, its ranks look for whoever takes this place, or starts the run again."""
        if self._stop_listening is not None:
            self._stop_listening()
        self._tasks.cancel()
        await asyncio.get_running_loop().run_in_executor(None, self._server.close, self._answers.error)
        atexit.unregister(self._server.close)

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
                certificates=link_certificates(self._config.security, self._worker.security),
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
        self._answers.check_running()
        place = self._directory.get(rank)
        return [] if place is None else [place]

    def hello(self, rank: int, client: str, stated: Stated | None) -> Welcome | NotYet:
        """Connect a rank, or take one back that lost its connection."""
        self._config.place.check_rank(rank)
        if rank not in self._ranks:
            # The directory may have changed while the rank was on its way.
            return NotYet(waits_for=f"the constructor that serves rank {rank}, which {self.name} does not")
        self._answers.check_running()
        if stated is None and self._attendance.is_taken(rank, client):
            raise EngineError(
                f"rank {rank} is connected already, and two clients of one rank would share its batches; close the "
                "other one, or use the rank number of this process"
            )
        at = None if stated is None else stands_of(rank, stated, self._identity, run=self._run)
        asked_by = [self.name, self._key, next(self._questions)]
        try:
            answer = self._ask_planner("connect", rank, asked_by, at and rank_to_wire(at), limit_s=ANSWER_S)
        except PlannerAway:
            return NotYet(waits_for=self._waited_for())
        with self._changed:
            self._attendance.arrive(
                rank,
                client,
                session=answer["session"],
                generation=answer["generation"],
                first_step=answer["first_step"],
                num_loads=answer["num_loads"],
                stated=at,
            )
        return Welcome(
            mesh=self._config.place.as_dict(),
            session=answer["session"],
            deadline_s=float(self._deadline_s),
            num_loads=answer["num_loads"],
            origin=answer["origin"],
            **self._moved_to(answer),
        )

    def take(self, rank: int, session: int, generation: int, step: int, taken_through: int, wait_s: float) -> Any:
        """Return an encoded batch once it is there, or what else there is to say."""
        with self._changed:
            if not self._attendance.speaks(rank, session):
                raise EngineError(
                    f"rank {rank} was connected again; this client no longer speaks for it: use the newer one"
                )
            self._note_asked(rank, generation, taken_through + 1, fetches=step)
            answer = self._changed.wait_for(lambda: self._answers.of(rank, session, generation, step), wait_s)
        if isinstance(answer, Exception):
            raise answer.with_traceback(None)
        return NotYet(waits_for=self._waited_for()) if answer is None else answer

    def waited(self, rank: int, session: int, waited_s: float) -> None:
        """Note how long the loop of a rank has waited; the planner hears of it with the next step."""
        with self._changed:
            if self._attendance.speaks(rank, session):
                self._attendance.waited(rank, waited_s)

    def load(self, rank: int, session: int, load: Load) -> Moved | NotYet:
        """Move the run to a saved position, or join the others there; the same load twice is one."""
        known = self._loads.get(rank)
        if known is None or known[0] != load.load_id:
            progress = progress_of(load.state, self._identity, force=load.force)
            asked = (rank, session, load.load_id, load.number, progress)
            try:
                answer = self._ask_planner("load", *asked, limit_s=ANSWER_S)
            except PlannerAway:
                return NotYet(waits_for=self._waited_for())
            with self._changed:
                self._attendance.loaded(rank, answer["generation"], answer["first_step"], load.number)
            self._loads[rank] = (load.load_id, Moved(**self._moved_to(answer)))
        return self._loads[rank][1]

    def control(self, method: str, arguments: dict[str, Any]) -> Any:
        """Refuse: the run is steered elsewhere."""
        raise EngineError("a constructor takes no orders; ask the address of the run")

    def bye(self, rank: int, session: int) -> None:
        """Release a rank."""
        self.lost(rank, session)

    def lost(self, rank: int, session: int) -> None:
        """Note that the connection of a rank ended; the planner hears of it with the next report."""
        with self._changed:
            if self._attendance.leave(rank, session):
                self._reporting.leaves(rank, session)
        self._report_soon()

    def _waited_for(self) -> str:
        return "the planner, which is being replaced" if self._planner.is_away else self._waits_for

    def _note_asked(self, rank: int, generation: int, step: int, *, fetches: int) -> None:
        if generation != self._answers.generation:
            return
        is_news = self._attendance.asks(rank, generation, step)
        if self._attendance.fetches(rank, generation, fetches) or is_news:
            self._report_soon()

    def _ask_planner(self, method: str, *args: Any, limit_s: float) -> Any:
        """Return what the planner answers, whichever it is by then. On the thread of a rank."""
        assert self._loop is not None
        return self._planner.ask_from_thread(self._loop, method, *args, limit_s=limit_s)

    def _moved_to(self, answer: dict[str, Any]) -> dict[str, Any]:
        return {
            "generation": answer["generation"],
            "first_step": answer["first_step"],
            "position": self._encoded.state(answer["progress"]),
        }

    # What happens on the worker's loop.

    def _assign(self, term: int, order: Wire) -> None:
        plan = plan_from_wire(order["plan"])
        owners = {
            source: {int(ordinal): (host, partition) for ordinal, host, partition in entries}
            for source, entries in order["owners"].items()
        }
        number, version = order["number"], order["version"]
        if self._shelf.assign(order["generation"], plan, owners, version, number=number, term=term):
            self._gathering.gather(order["generation"], plan.step)

    def _tell_planner(self, method: str, *args: Any) -> None:
        self._tasks.spawn(self._told_planner(method, *args))

    async def _told_planner(self, method: str, *args: Any) -> None:
        await self._planner.ask(method, *args)

    def _report_soon(self) -> None:
        assert self._loop is not None
        # A loop that is closed is that of a process which is ending: there is nobody to report to any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._reporting.soon)

    def _broke(self, error: Exception) -> None:
        """Have ranks hear of a task that failed."""
        with self._changed:
            self._answers.fail(error)
            self._changed.notify_all()


def _reason(error: OSError) -> str:
    # What is raised for a port may say the address once more.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)

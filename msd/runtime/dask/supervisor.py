"""Keeps a run's actors in their places: hears of losses, has the roster decide, makes what is to be made.

Everything here runs on one loop of the engine's process. What survivors know of where the run stands is merged before
a planner is made anew: content is computed from addresses and plans from positions, so nothing else has to survive.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from distributed import Client
from distributed.security import Security

from msd.config import PipelineConfig
from msd.coordinator.roster import Roster
from msd.coordinator.staff import (
    PLANNER,
    AddWorkers,
    Command,
    Dismiss,
    Event,
    Fill,
    GiveUp,
    HostsWanted,
    KillWorker,
    PostLost,
    PostSilent,
    Probe,
    StartWorker,
    Vacate,
    Worker,
    WorkerAnswered,
    WorkerCame,
    WorkerEnded,
    WorkerLost,
    split,
)
from msd.coordinator.standing import Standing
from msd.core.allocation import Allocation
from msd.core.state import fingerprint
from msd.errors import ConfigError, DeadlineError, EngineError, MsdError, how_ended, told
from msd.loader.poison.watch import EXIT_STATUS
from msd.runtime.dask.autoscaler import Autoscaler
from msd.runtime.dask.calls import ActorGone, Ref, Superseded, call
from msd.runtime.dask.cluster import CLOSE_S, START_S, EmbeddedCluster, connect, gathered
from msd.runtime.dask.hosts import added
from msd.runtime.dask.making import Run
from msd.runtime.dask.pinging import Pinging
from msd.runtime.dask.plugin import CAME_TOPIC, LOST_TOPIC, RunPlugin
from msd.runtime.dask.posts import Posts
from msd.runtime.dask.recoveries import Recoveries
from msd.runtime.dask.registry import Registry
from msd.runtime.dask.scalable import ScalableCluster
from msd.runtime.dask.standings import standing_from_wire
from msd.runtime.dask.tasks import Tasks
from msd.runtime.dask.versions import check_versions
from msd.runtime.dask.watching.eventlog import EventLog
from msd.runtime.dask.watching.feed import Feed

_LOG = logging.getLogger("msd")

_OF_HOST = ("pid", "pss_bytes", "payload_bytes")
TICK_S = 0.2
"""How often our own processes and the connection to the scheduler are looked at; an event mostly tells sooner."""
MAKE_S = 20.0
"""A worker that has not made an actor within this is taken for silent."""
PAUSE_S = 0.2
"""Between two tries to find a scheduler again."""
CHECK_S = 5.0
"""For how long a planner is asked whether the run failed."""
FIND_S = 5.0
"""Of one such try; and how long all the workers that were there before are waited for, not only those that must be."""


class Supervisor:
    """Of one run. Made, and all its methods called, on one loop."""

    def __init__(
        self,
        run: Run,
        registry: Registry,
        *,
        address: str,
        cluster: EmbeddedCluster | None,
        scalable: ScalableCluster | None = None,
        listen: str | None,
        security: Security | None = None,
    ) -> None:
        """Get ready; `start` begins.

        Args:
            run: What actors are made from.
            registry: Told where ranks are served.
            address: Of the scheduler.
            cluster: If it is our own.
            scalable: If it is somebody else's, who lets us start and end workers.
            listen: Where constructors listen for ranks; None takes the address of their Dask workers.
            security: Certificates for the scheduler; None is what Dask's own configuration says.
        """
        runtime = run.config.runtime
        self._security = security
        num_loading = runtime.workers + run.config.shadows
        self._num_control = 1 if cluster is None else len(cluster.names) - num_loading
        self._address, self._cluster, self._scalable = address, cluster, scalable
        self._deadline_s = runtime.deadline_s
        silence_s = self._silence_s = min(runtime.silence_s, runtime.deadline_s / 2)
        self._roster = Roster(
            num_hosts=runtime.workers,
            num_shadows=run.config.shadows,
            own=() if cluster is None else cluster.names,
            ends_others=scalable is not None and scalable.can_end,
            silence_s=silence_s,
            deadline_s=runtime.deadline_s,
        )
        self._inbox: list[Event] = []
        self._has_news = asyncio.Event()
        self._working = asyncio.Lock()
        self._tasks = Tasks(self._broke)
        pinging = Pinging(silence_s=silence_s, happened=self._put)
        self._posts = Posts(
            run,
            registry,
            pinging,
            self._tasks,
            happened=self._put,
            stands_by=self._roster.stands_by,
            folder=None if cluster is None else cluster.folder,
            listen=listen,
            silence_s=silence_s,
        )
        self._client: Client | None = None
        self._num_lost: Counter[str] = Counter()
        """By address: processes that were lost there, as far as was heard."""
        self._moving: asyncio.Future[int] | None = None
        """The last rewind, kept while it is under way."""
        self._probed: set[tuple[str, int]] = set()
        """Address and incarnation of processes that are asked whether they answer again."""
        self.recoveries = Recoveries(asyncio.get_running_loop().time)
        self.autoscaler: Autoscaler | None = None
        """Has sizes follow the mixture, if that is configured."""
        if run.config.scaling is not None:
            self.autoscaler = Autoscaler(run.config, run.orders, run.demands, run.models, self)
        self._events = None if runtime.events is None else EventLog(runtime.events, run.name)
        seen = None if self._events is None else self._events.take
        self._feed = Feed(run.name, self.stats, lambda: self.client.scheduler, seen=seen)
        self.error: EngineError | None = None
        """Why the run cannot go on."""

    @property
    def client(self) -> Client:
        """Of the scheduler; another one after the scheduler was lost."""
        assert self._client is not None
        return self._client

    async def start(self) -> None:
        """Find the workers, make the actors, begin to watch.

        Raises:
            ConfigError: If the cluster is not there, or does not fit.
            MsdError: What an actor raised while it was made.
        """
        limit_s = min(START_S, self._deadline_s)
        found = await self._find(limit_s, num_loading=self._all_loading, deadline_s=limit_s)
        self._posts.serve(len(split(found)[0]))
        fills = self._roster.begin(list(self._posts.served), found)
        for error in (await self._posts.fill(fills, limit_s=limit_s)).values():
            raise error
        self._tasks.spawn(self._watch())
        self._tasks.spawn(self._feed.feed())
        if self.autoscaler is not None:
            self._tasks.spawn(self.autoscaler.run())

    @property
    def _all_loading(self) -> int:
        """Loader hosts that are wanted, with those that stand by."""
        return self._roster.num_hosts + self._posts.run.config.shadows

    async def stats(self) -> dict[str, Any]:
        """Return what the run has done so far, JSON-able; see `Engine.stats`."""
        planned, told, constructors = await asyncio.gather(
            self.ask_planner("stats"), self.ask_hosts(), self.ask_all("constructor", "stats")
        )
        alive, shadows = planned.pop("alive"), planned.pop("shadows", [])
        hosts = {host["host"]: host for host in told}
        counts: dict[str, Any] = {}
        for host in hosts.values():
            counts = added(counts, host["sources"])
        roles = {**dict.fromkeys(alive, "host"), **dict.fromkeys(shadows, "shadow")}
        return {
            "runtime": "dask",
            "mesh": self.config.place.as_dict(),
            **planned,
            "sources": {name: {**of_source, **counts.get(name, {})} for name, of_source in planned["sources"].items()},
            "hosts": [
                {"host": name, "role": role, **{key: hosts[name].get(key) for key in _OF_HOST}}
                for name, role in roles.items()
                if name in hosts
            ],
            "constructors": constructors,
            "recoveries": self.recoveries.as_list(),
            "scaling": None if self.autoscaler is None else self.autoscaler.stats(),
        }

    # What the autoscaler asks.

    async def ask_planner(self, method: str, *args: Any) -> Any:
        """Return what the planner answers."""
        return await self.ask(PLANNER, method, *args)

    async def ask_hosts(self) -> list[dict[str, Any]]:
        """Return what each loader host says of itself."""
        return await self.ask_all("host", "stats")

    def note_seats(self, seats: Allocation) -> None:
        """Take which loaders there are: a planner that is made anew begins with them."""
        self._posts.seats = seats

    def want_hosts(self, count: int) -> None:
        """Have so many loader hosts, besides those that stand by."""
        self._put(HostsWanted(count))

    @property
    def num_wanted(self) -> int:
        """Loader hosts that are wanted, besides those that stand by."""
        return self._roster.num_hosts

    @property
    def can_add_hosts(self) -> bool:
        """Whether a loader host can be had by asking for it."""
        return self._cluster is not None or self._scalable is not None or self._roster.num_idle > 0

    def machines(self) -> tuple[dict[str, str], set[str]]:
        """Return the machine of each loader host, and the machines that serve ranks."""
        return self._posts.machines("host"), set(self._posts.machines("constructor").values())

    @property
    def config(self) -> PipelineConfig:
        """Of the run, on the mesh that it is on now."""
        return self._posts.run.config

    async def close(self) -> None:
        """Stop watching, end the actors and let them go. Closing twice is fine.

        A scheduler that does not answer is not waited for: what it knows of ends with it, or is let go by itself.
        """
        self._tasks.cancel()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_S / 5):
                await self._feed.end()
        if self._events is not None and self.error is None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_S / 5):
                    await asyncio.to_thread(self._events.take, await self.stats())
        if self._events is not None:
            await asyncio.to_thread(self._events.close, None if self.error is None else str(self.error))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * CLOSE_S):
                await self._posts.close(CLOSE_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * CLOSE_S):
                await self._drop_client()

    async def check(self) -> None:
        """Raise what ended the run, if something did; a planner that is being replaced has not."""
        if self.error is not None:
            raise self.error
        planner = self._posts.ref(PLANNER)
        if planner is not None:
            with contextlib.suppress(ActorGone, DeadlineError, Superseded):
                # Whoever asks asks again: `msd serve` ends no later than this when it is told to.
                await call(self.client, planner, "check", deadline_s=min(CHECK_S, self._deadline_s))

    async def ask(self, post: str, method: str, *args: Any) -> Any:
        """Return what the holder of a post answers; while it is being replaced, its successor is waited for.

        Raises:
            DeadlineError: If there was no answer in time.
            MsdError: What ended the run, or what the method raised.
        """
        deadline = self._now() + self._deadline_s
        gone: Ref | None = None
        while True:
            ref = await self._holder(post, gone, deadline)
            try:
                return await call(self.client, ref, method, *args, deadline_s=max(0.1, deadline - self._now()))
            except (ActorGone, Superseded):
                # Also one that was replaced and has not ended yet.
                gone = ref

    async def ask_all(self, kind: str, method: str) -> list[Any]:
        """Return what all holders of a kind answer, asked at once; what is gone or silent is left out."""
        refs = [self._posts.ref(post) for post in self._posts.names(kind)]
        asking = [call(self.client, ref, method, deadline_s=self._deadline_s) for ref in refs if ref is not None]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, ActorGone | DeadlineError):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def rewind(self, config: PipelineConfig, step: int | None) -> int:
        """Go on at a step boundary with a configuration that has another mesh; return the step.

        What has begun is brought to its end, also when whoever asked is interrupted.

        Raises:
            ConfigError: If the position before the step is not known.
            EngineError: If the planner is not there.
        """
        moving = self._moving = asyncio.ensure_future(self._rewind(config, step))
        # Where nobody asks any more nobody hears why it failed either.
        moving.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(moving)

    async def _rewind(self, config: PipelineConfig, step: int | None) -> int:
        async with self._working:
            planner = self._posts.ref(PLANNER)
            if planner is None:
                raise EngineError("the planner of the run is being replaced; rewind again when it is there")
            known = standing_from_wire(await call(self.client, planner, "standing", deadline_s=self._deadline_s))
            standing = rewound(known, step)
            run = replace(self._posts.run, config=config, standing=standing)
            await self._posts.change(run, self._roster.num_constructing, EngineError(
                f"the run goes on at step {standing.first_step} on the mesh {config.place.as_dict()}; connect again as "
                f"one of its {config.place.world_size} ranks"
            ))  # fmt: skip
            await self._perform(self._roster.move(list(self._posts.served), self._now()))
            return standing.first_step

    async def _holder(self, post: str, gone: Ref | None, deadline: float) -> Ref:
        """Return what holds a post, but not what is gone."""
        async with self._posts.changed:
            while (ref := self._posts.ref(post)) is None or ref == gone:
                if self.error is not None:
                    raise self.error
                try:
                    await asyncio.wait_for(self._posts.changed.wait(), deadline - self._now())
                except TimeoutError:
                    raise DeadlineError(
                        f"the {post} of the run is being replaced and was not there within {self._deadline_s:g} s; see "
                        "engine.stats()['recoveries'] and the log"
                    ) from None
        return ref

    # Finding a scheduler and its workers.

    async def _find(self, connect_s: float, *, num_loading: int, deadline_s: float) -> list[Worker]:
        """Return the workers of the scheduler, once there are enough."""
        client = self._client = await connect(self._address, deadline_s=connect_s, security=self._security)
        await client.register_plugin(RunPlugin())
        client.subscribe_topic(LOST_TOPIC, self._hear_lost)
        client.subscribe_topic(CAME_TOPIC, self._hear_came)
        found = await gathered(
            client,
            at_least=self._num_control + num_loading,
            loading=num_loading,
            deadline_s=deadline_s,
            cluster=self._cluster,
        )
        await check_versions(client, [worker.address for worker in found])
        self._posts.use(client)
        return [replace(worker, incarnation=self._num_lost[worker.address]) for worker in found]

    async def _drop_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(OSError, RuntimeError, TimeoutError):
                await client.close(timeout=CLOSE_S)

    async def _find_again(self) -> None:
        """Wait for a scheduler where one was, and for workers; then make everything anew from what is known."""
        began = self._now()
        _LOG.warning(
            "the Dask scheduler at %s is gone; the run waits %g s for one there and for workers, and then goes on",
            self._address,
            self._deadline_s,
        )
        # Workers end some seconds after their scheduler: until then they may say where the run stands.
        await self._posts.standing(self._roster.next_term)
        self._posts.forget()
        found: list[Worker] | None = None
        while found is None:
            await self._drop_client()
            left_s = began + self._deadline_s - self._now()
            try:
                try:
                    found = await self._find(FIND_S, num_loading=self._all_loading, deadline_s=FIND_S)
                except MsdError:
                    # Not all that were there have come back: enough to begin with will do.
                    await self._drop_client()
                    found = await self._find(PAUSE_S, num_loading=1, deadline_s=PAUSE_S)
            except (MsdError, OSError) as error:
                if left_s < 0:
                    raise EngineError(
                        f"the Dask scheduler at {self._address} is gone, and with it the run, since neither it nor its "
                        f"workers were there again within {self._deadline_s:g} s ({error}); start them again, then the "
                        "run; ranks go on from the last saved state"
                    ) from None
                await asyncio.sleep(PAUSE_S)
        await self._perform(self._roster.begin(list(self._posts.served), found))
        self.recoveries.scheduler(self._address, self._now() - began)

    # Hearing.

    def _put(self, event: Event) -> None:
        self._inbox.append(event)
        self._has_news.set()

    def _hear_lost(self, event: tuple[float, dict[str, Any]]) -> None:
        address = event[1]["worker"]
        incarnation = self._num_lost[address]
        self._num_lost[address] += 1
        self._posts.note_lost(address)
        worker = self._roster.worker(address)
        name = None if worker is None or worker.incarnation != incarnation else worker.name
        # Also one of which it was not heard yet that it came.
        self._tasks.spawn(self._note_lost(address, incarnation, name))

    async def _note_lost(self, address: str, incarnation: int, name: str | None) -> None:
        how = "its Dask worker left the cluster"
        if self._cluster is not None and name in self._cluster.names:
            how = await asyncio.to_thread(self._cluster.how_ended, name)
        self._put(_lost(address, how, incarnation))

    def _hear_came(self, event: tuple[float, dict[str, Any]]) -> None:
        found = event[1]
        address = found["worker"]
        self._posts.note_came(address)
        self._put(WorkerCame(Worker(found["name"], address, found["host"], self._num_lost[address])))

    async def _probe(self, worker: Worker) -> None:
        """Ask a process for a sign of life until it gives one or is lost."""
        known = worker.address, worker.incarnation
        if known in self._probed:
            return
        self._probed.add(known)
        while self._num_lost[worker.address] == worker.incarnation and self.error is None:
            with contextlib.suppress(OSError, RuntimeError, TimeoutError):
                async with asyncio.timeout(self._silence_s):
                    await self.client.rpc(worker.address).identity()
                self._put(WorkerAnswered(*known))
                break
            await asyncio.sleep(PAUSE_S)
        self._probed.discard(known)

    def _look_after_processes(self) -> None:
        if self._cluster is None:
            return
        for name, how in self._cluster.newly_ended().items():
            address = self._roster.address(name)
            worker = None if address is None else self._roster.worker(address)
            if worker is None:
                self._put(WorkerEnded(name, how))
                continue
            self._posts.note_lost(worker.address)
            self._put(_lost(worker.address, how, worker.incarnation))

    # Deciding and performing.

    async def _watch(self) -> None:
        while self.error is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_news.wait(), TICK_S)
            self._has_news.clear()
            async with self._working:
                if self._cluster is None and self.client.status != "running":
                    await self._find_again()
                self._look_after_processes()
                events, self._inbox = self._inbox, []
                await self._perform(self._roster.handle(events, self._now()))

    async def _perform(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case Vacate():
                    self.recoveries.lost(command)
                    await self._posts.vacate(command)
                case StartWorker(name=name):
                    assert self._cluster is not None
                    self._tasks.spawn(asyncio.to_thread(self._cluster.restart, name))
                case KillWorker(name=name, why=why):
                    assert self._cluster is not None
                    _LOG.warning("worker %s is ended and started anew: %s", name, why)
                    self._cluster.kill(name)
                case Dismiss(post=post, worker=worker):
                    await self._posts.dismiss(post)
                    self._tasks.spawn(self._end(worker))
                case AddWorkers(count=count):
                    if self._scalable is not None:
                        self._tasks.spawn(asyncio.to_thread(self._scalable.scale, count))
                case Probe(worker=worker):
                    self._tasks.spawn(self._probe(worker))
                case GiveUp(why=why):
                    await self.give_up(EngineError(why))
        fills = [command for command in commands if isinstance(command, Fill)]
        if not fills:
            return
        failed = await self._posts.fill(fills, limit_s=min(MAKE_S, self._deadline_s))
        for fill in fills:
            error = failed.get(fill.post)
            if error is None:
                self.recoveries.filled(fill)
            elif self._posts.is_lost(fill.worker.address):
                pass  # How its process ended is being looked into: that says more, and comes in a moment.
            elif isinstance(error, DeadlineError):
                self._put(PostSilent(fill.post, fill.epoch))
            else:
                self._put(PostLost(fill.post, fill.epoch, str(error)))

    async def _end(self, worker: Worker) -> None:
        """Have the process of a loader host end that was dismissed, if it is ours to end."""
        _LOG.info("loader host %s is closed: it is not needed any more", worker.name)
        if self._cluster is not None:
            await asyncio.to_thread(self._cluster.end, worker.name)
        elif self._scalable is not None:
            await asyncio.to_thread(self._scalable.end, worker.name)

    async def give_up(self, error: EngineError) -> None:
        """Have the run end, for every rank."""
        self.error = self.error or error
        await self._posts.fail(error)

    def _broke(self, error: Exception) -> None:
        """Have the run end with what ended the supervisor: nobody would replace anything any more."""
        if self.error is None:
            known = error if isinstance(error, EngineError) else EngineError(f"the run failed with {told(error)}")
            self._tasks.spawn(self.give_up(known))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _lost(address: str, how: str, incarnation: int) -> WorkerLost:
    return WorkerLost(address, how, is_counted=how != how_ended(EXIT_STATUS), incarnation=incarnation)


def rewound(known: Standing, step: int | None) -> Standing:
    """Return where a run stands that goes on before a step in a new generation, which no rank has joined.

    Args:
        known: Where it stands.
        step: None is the one that the slowest connected rank asks for.

    Raises:
        ConfigError: If the position before the step is not known.
    """
    positions = {known.first_step: known.start, **known.positions}
    if step is None:
        asked = [rank.next_step for rank in known.ranks if rank.session and rank.generation == known.generation]
        step = min(asked, default=known.first_step)
    if step not in positions:
        raise ConfigError(
            f"the position before step {step} is not known any more; those before steps "
            f"{', '.join(map(str, sorted(positions)))} are: name one of them, or restore a snapshot"
        )
    generation = known.generation + 1
    return Standing(
        generation=generation,
        first_step=step,
        start=positions[step],
        digest=fingerprint(positions[step]),
        edits=tuple(edit for edit in known.edits if edit.noted_at >= step),
        num_sessions=known.num_sessions,
        isolated=known.isolated,
        loads_before=generation,
    )

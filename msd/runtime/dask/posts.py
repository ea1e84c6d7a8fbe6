"""What holds each post of a run: made, introduced to the others, taken away again. On the supervisor's loop."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from distributed import Client

from msd.coordinator.placement import Placement
from msd.coordinator.staff import PLANNER, Event, Fill, HostDrained, Vacate
from msd.coordinator.standing import Stall, Standing, merged
from msd.core.allocation import Allocation
from msd.errors import EngineError, MsdError
from msd.runtime.dask.calls import ActorGone, Ref, call
from msd.runtime.dask.constructor import ConstructorActor
from msd.runtime.dask.hosts import LoaderHost, SourceLoaderActor
from msd.runtime.dask.making import Maker, Run
from msd.runtime.dask.outfit import HOST_BYTES, link_of, placement_of, served_by
from msd.runtime.dask.pinging import Pinging
from msd.runtime.dask.planner import PlannerActor
from msd.runtime.dask.registry import Registry, socket_path
from msd.runtime.dask.standings import stall_from_wire, standing_from_wire, standing_to_wire
from msd.runtime.dask.tasks import Tasks

_LOG = logging.getLogger("msd")

NOT_NEEDED = "it was not needed any more"
STANDING_S = 1.0
"""Survivors say within this where the run stands, or are not listened to."""


class Posts:
    """Of one run."""

    def __init__(
        self,
        run: Run,
        registry: Registry,
        pinging: Pinging,
        tasks: Tasks,
        *,
        happened: Callable[[Event], None],
        stands_by: Callable[[str], bool],
        folder: str | None,
        listen: str | None,
        silence_s: float,
    ) -> None:
        """Have nobody yet.

        Args:
            run: What actors are made from.
            registry: Told where ranks are served.
            pinging: Told whom to watch.
            tasks: For what is done beside.
            happened: Takes events.
            stands_by: Returns whether a loader host holds nothing until another one is lost.
            folder: That is removed with the workers, if they are our own.
            listen: Where constructors listen for ranks; None takes the address of their Dask workers.
            silence_s: Whoever is told something answers within this.
        """
        self.run = run
        self.served: dict[str, tuple[int, ...]] = {}
        """The ranks of each constructor."""
        self._registry, self._pinging, self._tasks = registry, pinging, tasks
        self._happened, self._stands_by = happened, stands_by
        self._folder, self._listen, self._silence_s = folder, listen, silence_s
        self.seats: Allocation = {}
        """Loaders by source as they were last heard of; empty as long as nobody steers them."""
        self._client: Any = None
        self._maker: Maker | None = None
        self._held: dict[str, tuple[Fill, Ref]] = {}
        self._gone: dict[str, asyncio.Event] = {}
        """By address of a worker."""
        self._loaders: list[Ref] = []
        """The actors of single partitions, which decide nothing."""
        self._copy = run.standing
        """What the planner said last of where the run stands."""
        self._journal: Any = None
        """Of that."""
        self._stall: tuple[Stall | None, float] = (None, 0.0)
        """What the planner said last of the row that it waits for, and when that was heard."""
        self._lacking: set[str] = set()
        """Constructors whose last answer named a planner that was replaced, or not every host."""
        self._unknown: set[str] = set()
        """Posts whose holders the planner's last answer did not name."""
        self._told = (0, 0)
        """(term, number) of the planner's news that was told last."""
        self.changed = asyncio.Condition()

    def serve(self, num_processes: int) -> None:
        """Decide which constructor serves which ranks.

        Args:
            num_processes: That may construct.
        """
        config = self.run.config
        self.served = served_by(config.place, num_processes if config.constructors == "auto" else config.constructors)

    def use(self, client: Client) -> None:
        """Make actors through a client from now on."""
        self._client, self._maker = client, Maker(client, self.run.name)

    def ref(self, post: str) -> Ref | None:
        """Return what holds a post."""
        held = self._held.get(post)
        return None if held is None else held[1]

    def names(self, kind: str) -> list[str]:
        """Return the posts of a kind that are held."""
        return [post for post, (fill, _) in self._held.items() if fill.kind == kind]

    def note_lost(self, address: str) -> None:
        """Take that a worker is gone, as soon as that is known: nothing that is being made there is waited for."""
        self._is_gone(address).set()
        if self._maker is not None:
            self._maker.note_lost(address)

    def is_lost(self, address: str) -> bool:
        """Return whether the worker at an address is known to be gone."""
        return self._is_gone(address).is_set()

    def note_came(self, address: str) -> None:
        """Take that a worker is there, perhaps where another one was lost."""
        self._gone.pop(address, None)
        if self._maker is not None:
            self._maker.note_came(address)

    def _is_gone(self, address: str) -> asyncio.Event:
        return self._gone.setdefault(address, asyncio.Event())

    async def fill(self, fills: Sequence[Fill], *, limit_s: float) -> dict[str, Exception]:
        """Have workers hold posts; return by post why one does not.

        Args:
            fills: What the roster decided.
            limit_s: Seconds in which actors are made.
        """
        assert self._maker is not None
        planner = next((fill for fill in fills if fill.kind == PLANNER), None)
        standing = self._copy
        if planner is not None and self._held:
            standing = await self.standing(planner.epoch)
        placement = None if planner is None else placement_of(self.run, self._active(fills), self.seats)
        values = [self.run.config, self.run.orders]
        await self._maker.share(values, [fill.worker.address for fill in fills], deadline_s=limit_s)
        refs: dict[str, Ref] = {}
        failed: dict[str, Exception] = {}
        for fill in fills:
            try:
                refs[fill.post] = self._submit(fill, fills, placement, standing)
            except EngineError as error:
                failed[fill.post] = error
        unmade = await self._maker.finish(refs.values(), deadline_s=limit_s)
        failed |= {post: unmade[ref.key] for post, ref in refs.items() if ref.key in unmade}
        self._maker.release(refs[post] for post in failed if post in refs)
        made = [fill for fill in fills if fill.post not in failed]
        for fill in made:
            self._held[fill.post] = fill, refs[fill.post]
        if placement is not None and planner in made and any(fill.kind == "host" for fill in made):
            unmade = await self._make_loaders(placement, limit_s)
            # A host makes a loader when it is first asked for rows of it: later these are for people, and may be
            # missing; at the start one that cannot be made says that its data cannot be read there.
            failed |= unmade if planner is not None and planner.epoch == 1 else {}
        failed |= await self._introduce(made)
        for fill in made:
            heard = self._heard if fill.kind == PLANNER else partial(self._heard_of, fill)
            self._pinging.begin(self._client, fill, refs[fill.post], heard)
        async with self.changed:
            self.changed.notify_all()
        return failed

    async def vacate(self, vacated: Vacate) -> None:
        """Take a holder away and tell the others."""
        self._pinging.end(vacated.post)
        held = self._held.pop(vacated.post, None)
        if vacated.kind == "constructor":
            self._registry.withdraw(self.served.get(vacated.post, ()), f"{vacated.post}, which is being replaced")
        if held is None or held[0].epoch != vacated.epoch:
            return
        assert self._maker is not None
        self._maker.release([held[1]])
        if vacated.kind == "host":
            self._maker.release(ref for ref in self._loaders if ref.address == held[1].address)
            self._loaders = [ref for ref in self._loaders if ref.address != held[1].address]
        if vacated.kind != PLANNER:
            await self._tell_planner(f"{vacated.kind}_gone", vacated.post, held[1].key, vacated.how)

    async def dismiss(self, post: str) -> None:
        """Have a loader host close in order: nothing of it is needed."""
        self._pinging.end(post)
        held = self._held.pop(post, None)
        if held is None:
            return
        assert self._maker is not None
        await self._tell_planner("host_gone", post, held[1].key, NOT_NEEDED)
        await self._tell([(held[1], "close")])
        gone = [held[1], *(ref for ref in self._loaders if ref.address == held[1].address)]
        self._maker.release(gone)
        self._loaders = [ref for ref in self._loaders if ref not in gone]

    def machines(self, kind: str) -> dict[str, str]:
        """Return the machine of each post of a kind that is held."""
        return {post: fill.worker.host for post, (fill, _) in self._held.items() if fill.kind == kind}

    async def change(self, run: Run, num_processes: int, error: Exception) -> None:
        """Let planner and constructors go in order; those that are made next are made from another run's settings.

        Args:
            run: The same run, on another mesh, and where it goes on.
            num_processes: That may construct.
            error: What ranks of the present mesh hear.
        """
        assert self._maker is not None
        ending = [(fill, ref) for fill, ref in self._held.values() if fill.kind != "host"]
        for fill, _ in ending:
            self._pinging.end(fill.post)
            del self._held[fill.post]
        self._registry.move(run.config.place)
        # Told why before they close: that they close says only that the run was closed.
        await self._tell([(ref, "fail", error) for fill, ref in ending if fill.kind == "constructor"])
        await self._tell([(ref, "close") for _, ref in ending])
        self._maker.release(ref for _, ref in ending)
        self._maker.forget_shared()
        self.run, self._copy, self._stall = run, run.standing, (None, 0.0)
        self.serve(num_processes)

    async def standing(self, term: int) -> Standing | None:
        """Return what all that is left knows of where the run stands; whoever is asked follows `term` from then on."""
        refs = [ref for fill, ref in self._held.values() if fill.kind != PLANNER]
        asking = [self._call(ref, "standing", term, deadline_s=STANDING_S) for ref in refs]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        known = [standing_from_wire(answer) for answer in answers if isinstance(answer, dict)]
        if self._copy is not None:
            known.append(self._copy)
        self._copy = merged(known)
        if self._copy is not None:
            self._copy = replace(self._copy, stall=self._stalled())
        return self._copy

    def _stalled(self) -> Stall | None:
        """Return what the last planner waited for, with the time up to now."""
        stall, heard_s = self._stall
        passed_s = asyncio.get_running_loop().time() - heard_s
        return None if stall is None else replace(stall, waited_s=stall.waited_s + passed_s)

    async def fail(self, error: Exception) -> None:
        """Have every rank hear why the run cannot go on."""
        self._registry.fail(error)
        await self._tell_planner("failed", error)
        await self._tell([(ref, "fail", error) for fill, ref in self._held.values() if fill.kind == "constructor"])
        async with self.changed:
            self.changed.notify_all()

    async def close(self, deadline_s: float) -> None:
        """End actors in order, the last made first: constructors turn ranks away before the planner goes."""
        if self._client is None or self._client.status != "running":
            return
        there: Any = {ref.address for _, ref in self._held.values()}
        with contextlib.suppress(OSError, RuntimeError):  # Silence is a TimeoutError, which is an OSError.
            async with asyncio.timeout(deadline_s / 2):
                there = (await self._client.scheduler.identity(n_workers=-1))["workers"]
        with contextlib.suppress(OSError, RuntimeError):
            order = {"constructor": 0, PLANNER: 1, "host": 2}
            held = sorted(self._held.values(), key=lambda one: order[one[0].kind])
            closing = [
                call(self._client, ref, "close", deadline_s=deadline_s) for _, ref in held if ref.address in there
            ]
            await asyncio.gather(*closing, return_exceptions=True)
        self.forget()

    def forget(self) -> None:
        """Let every actor go, without a word to them."""
        self._pinging.end_all()
        for name, ranks in self.served.items():
            self._registry.withdraw(ranks, f"{name}, which is being replaced")
        self._held.clear()
        self._loaders.clear()
        if self._maker is not None:
            self._maker.release_all()

    # Making.

    def _submit(self, fill: Fill, fills: Sequence[Fill], placement: Placement | None, standing: Standing | None) -> Ref:
        assert self._maker is not None
        config, orders = self._maker.shared(fill.worker.address)
        args: tuple[Any, ...]
        match fill.kind:
            case "host":
                hosts = [held for held, _ in self._held.values() if held.kind == "host"]
                sharing = Counter(one.worker.host for one in (*hosts, *(f for f in fills if f.kind == "host")))
                args = (self.run.name, fill.post, config, orders, sharing[fill.worker.host], HOST_BYTES)
                return self._maker.submit(LoaderHost, f"loader-host {fill.post}", fill.epoch, fill.worker, *args)
            case "constructor":
                ranks = self.served[fill.post]
                socket = socket_path(self.run.name, list(self.served).index(fill.post), fill.epoch, self._folder)
                link = link_of(self.run, fill.worker, socket, self._listen)
                args = (self.run.name, fill.post, config, ranks, self.run.identity, link)
                return self._maker.submit(ConstructorActor, fill.post, fill.epoch, fill.worker, *args)
            case "planner":
                wire = None if standing is None else standing_to_wire(standing)
                args = (config, orders, self.run.identity, placement, self.served, fill.epoch, wire)
                args = (*args, self.run.kept)
                return self._maker.submit(PlannerActor, PLANNER, fill.epoch, fill.worker, *args)

    def _hosts_in_order(self, fills: Sequence[Fill] = ()) -> list[str]:
        """Return the loader hosts, those that stand by last."""
        held = (*(fill for fill, _ in self._held.values()), *fills)
        return sorted((fill.post for fill in held if fill.kind == "host"), key=self._stands_by)

    def _active(self, fills: Sequence[Fill] = ()) -> list[str]:
        """Return the loader hosts that do not stand by; where all do, all."""
        hosts = self._hosts_in_order(fills)
        return [name for name in hosts if not self._stands_by(name)] or hosts

    async def _make_loaders(self, placement: Placement, limit_s: float) -> dict[str, Exception]:
        assert self._maker is not None
        self._loaders = [
            self._maker.submit(
                SourceLoaderActor,
                f"loader {source}/{seat.partition} {host}",
                self._held[host][0].epoch,
                self._held[host][0].worker,
                self.run.name,
                source,
                seat.partition,
            )
            for source, seating in placement.allocation.items()
            for seat in seating.seats
            if (host := seat.host) in self._held
        ]
        return await self._maker.finish(self._loaders, deadline_s=limit_s)

    # Introducing.

    async def _introduce(self, made: Sequence[Fill]) -> dict[str, Exception]:
        """Make new holders known to the others; return by post why one does not take part."""
        planner = self._held.get(PLANNER)
        if planner is None:
            return {}  # Whoever plans next is introduced to everybody.
        hosts = {name: self._held[name][1] for name in self._hosts_in_order()}
        news = {fill.post for fill in made}
        everybody = any(fill.kind != "constructor" for fill in made)
        constructors = {
            post: ref
            for post, (fill, ref) in self._held.items()
            if fill.kind == "constructor" and (everybody or post in news)
        }
        begun = await self._tell([(ref, "begin", planner[1], planner[0].epoch, hosts) for ref in constructors.values()])
        failed: dict[str, Exception] = {}
        for (post, ref), place in zip(constructors.items(), begun, strict=True):
            if isinstance(place, Exception):
                failed |= {post: place} if post in news else {}
            elif self.ref(post) == ref:
                self._registry.publish(self.served[post], place)
        if PLANNER in news:
            error = await self._begin_planning(planner[1], hosts)
            return failed if error is None else failed | {PLANNER: error}
        for fill in made:
            ref = self._held[fill.post][1]
            if fill.kind == "constructor":
                await self._tell_planner("constructor_joined", fill.post, ref)
            else:
                await self._tell_planner("host_joined", fill.post, ref, fill.is_shadow)
        return failed

    async def _begin_planning(self, planner: Ref, hosts: dict[str, Ref]) -> Exception | None:
        constructors = {post: self._held[post][1] for post in self.names("constructor")}
        loading = self._active()
        (answer,) = await self._tell([(planner, "begin", {name: hosts[name] for name in loading}, constructors)])
        for name in hosts.keys() - set(loading):
            await self._tell_planner("host_joined", name, hosts[name], True)
        return answer if isinstance(answer, Exception) else None

    async def _tell_planner(self, method: str, *args: Any) -> None:
        planner = self.ref(PLANNER)
        if planner is not None:
            # One that does not listen is replaced, and its successor told everything.
            await self._tell([(planner, method, *args)])

    async def _tell(self, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the answers of several at once, errors among them."""
        assert self._client is not None
        asking = [self._call(ref, method, *args, deadline_s=max(self._silence_s, 1.0)) for ref, method, *args in calls]
        return await asyncio.gather(*asking, return_exceptions=True)

    async def _call(self, ref: Ref, method: str, *args: Any, deadline_s: float) -> Any:
        """Call an actor, and give up as soon as its worker is known to be gone: that is sooner than a call fails."""
        calling = asyncio.ensure_future(call(self._client, ref, method, *args, deadline_s=deadline_s))
        losing = asyncio.ensure_future(self._is_gone(ref.address).wait())
        try:
            await asyncio.wait({calling, losing}, return_when=asyncio.FIRST_COMPLETED)
            if not calling.done():
                raise ActorGone(f"{ref.name} at {ref.address} is gone")
            return calling.result()
        finally:
            losing.cancel()
            calling.cancel()

    # What the planner says when it is asked whether it is there.

    def _heard(self, answer: dict[str, Any]) -> None:
        term = int(answer.get("term", 0))
        for number, text in answer.get("news", ()):
            if (term, number) > self._told:
                self._told = (term, number)
                _LOG.warning("%s", text)
        if (term, answer.get("journal")) != self._journal:
            self._journal = (term, answer.get("journal"))
            self._tasks.spawn(self._take_copy())

        for name in answer["drained"]:
            if name in self._held:
                self._happened(HostDrained(name, self._held[name][0].epoch))
        self._stall = stall_from_wire(answer["stall"]), asyncio.get_running_loop().time()
        self._tell_missed(set(answer["crew"]))

    def _heard_of(self, fill: Fill, answer: dict[str, Any]) -> None:
        """Have a constructor that missed who plans, or that a host came, hear of it once more."""
        planner = self._held.get(PLANNER)
        if fill.kind != "constructor" or planner is None:
            return
        hosts = {ref.key for held, ref in self._held.values() if held.kind == "host"}
        if answer["follows"] == planner[1].key and hosts <= set(answer["hosts"]):
            self._lacking.discard(fill.post)
        elif fill.post in self._lacking:
            self._tasks.spawn(self._begin_again(fill.post))
        else:
            # What tells it may be on its way: the next answer shows.
            self._lacking.add(fill.post)

    async def _begin_again(self, post: str) -> None:
        held, planner = self._held.get(post), self._held.get(PLANNER)
        if held is None or planner is None:
            return
        hosts = {name: self._held[name][1] for name in self._hosts_in_order()}
        (place,) = await self._tell([(held[1], "begin", planner[1], planner[0].epoch, hosts)])
        if not isinstance(place, Exception) and self.ref(post) == held[1]:
            self._registry.publish(self.served[post], place)

    def _tell_missed(self, known: set[str]) -> None:
        """Have a planner hear of those whom it does not know though two of its answers have passed since they came."""
        there = {post: one for post, one in self._held.items() if one[0].kind != PLANNER}
        unknown = {post for post, (_, ref) in there.items() if ref.key not in known}
        for post in unknown & self._unknown:
            fill, ref = there[post]
            shadow = (fill.is_shadow,) if fill.kind == "host" else ()
            self._tasks.spawn(self._tell_planner(f"{fill.kind}_joined", post, ref, *shadow))
        self._unknown = unknown - self._unknown

    async def _take_copy(self) -> None:
        planner = self.ref(PLANNER)
        if planner is None:
            return
        with contextlib.suppress(MsdError):
            wire = await call(self._client, planner, "standing", deadline_s=self._silence_s)
            if wire is not None and self.ref(PLANNER) == planner:
                self._copy = standing_from_wire(wire)

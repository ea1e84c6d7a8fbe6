"""Whom a planner drives: loader hosts and constructors, each with a driver, coming and going as the run goes on."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from msd.coordinator.events import ConstructorJoined, ConstructorLost, Event, HostJoined, HostLost
from msd.core.sample import MetaTable
from msd.errors import EngineError
from msd.runtime.dask.calls import HasRpc, Ref, epoch_of
from msd.runtime.dask.constructor_driver import ConstructorDriver
from msd.runtime.dask.host_driver import HostDriver
from msd.runtime.dask.tasks import Tasks
from msd.runtime.dask.wire import Wire


class Crew:
    """The hosts and constructors of a run, as one planner knows them. On its worker's loop."""

    def __init__(
        self,
        node: HasRpc,
        tasks: Tasks,
        *,
        term: int,
        silence_s: float,
        happened: Callable[[Event], None],
        came: Callable[[list[MetaTable]], None],
        is_shadow: Callable[[str], bool],
    ) -> None:
        """Begin with nobody.

        Args:
            node: That calls.
            tasks: Of the planner: what ends one of the drivers ends the run.
            term: Of the planner.
            silence_s: After which silence counts as loss.
            happened: Takes events.
            came: Takes tables before they become an event.
            is_shadow: Whether a host stands by for others.
        """
        self._node = node
        self._tasks = tasks
        self._term = term
        self._silence_s = silence_s
        self._happened = happened
        self._came = came
        self._is_shadow = is_shadow
        self.hosts: dict[str, HostDriver] = {}
        """By name, also those that are silent."""
        self.constructors: dict[str, ConstructorDriver] = {}
        self._driving: dict[str, asyncio.Task[None]] = {}
        """By key of the actor."""
        self._replica: Wire | None = None
        self._treated: list[list[Any]] = []
        """All that was said of rows that are not run like others."""
        self._least: dict[str, int] = {}
        """By name: the least epoch of which word does not come too late."""
        self._num_replicas = 0
        self._carried = asyncio.Event()
        self._came_constructor = asyncio.Event()

    # Coming and going. A word about a process that was replaced meanwhile changes nothing.

    @property
    def keys(self) -> list[str]:
        """Of the actors that are driven."""
        return list(self._driving)

    def _is_stale(self, name: str, ref: Ref) -> bool:
        """Note an actor; return whether a later one of its name was heard of: word of this one comes late."""
        least = self._least[name] = max(ref.epoch, self._least.get(name, ref.epoch))
        return ref.epoch < least

    def _note_gone(self, name: str, key: str) -> None:
        """Note that an actor is gone: word that it came may be on its way still, or be said once more."""
        self._least[name] = max(epoch_of(key) + 1, self._least.get(name, 0))

    def add_host(self, name: str, ref: Ref) -> None:
        """Drive a host that the coordinator knows already."""
        self._is_stale(name, ref)
        driver = HostDriver(
            self._node,
            name,
            ref,
            term=self._term,
            silence_s=self._silence_s,
            happened=self._happened,
            came=self._came,
            carried=self._carried.set,
            is_shadow=lambda: self._is_shadow(name),
        )
        if self._replica is not None:
            driver.tell("replica", self._replica)
        for rows in self._treated:
            driver.treat(rows)
        self.hosts[name] = driver
        self._driving[ref.key] = self._tasks.spawn(driver.drive())

    def add_constructor(self, name: str, ref: Ref) -> None:
        """Drive a constructor that the coordinator knows already."""
        self._is_stale(name, ref)
        driver = ConstructorDriver(self._node, ref, term=self._term, silence_s=self._silence_s)
        if self._replica is not None:
            driver.tell(self._replica)
        self.constructors[name] = driver
        self._came_constructor.set()
        self._driving[ref.key] = self._tasks.spawn(driver.drive())

    def host_joined(self, name: str, ref: Ref, is_shadow: bool) -> None:
        """Drive a new host, or a new process of one."""
        known = self.hosts.get(name)
        if (known is not None and known.ref == ref) or self._is_stale(name, ref):
            return
        if known is not None:
            self.host_gone(name, known.ref.key)
        self.add_host(name, ref)
        self._happened(HostJoined(name, is_shadow))

    def host_gone(self, name: str, key: str) -> None:
        """Drive a host no longer."""
        self._note_gone(name, key)
        known = self.hosts.get(name)
        if known is not None and known.ref.key == key:
            del self.hosts[name]
            known.leave()
            self._driving.pop(key).cancel()
            self._happened(HostLost(name))

    def constructor_joined(self, name: str, ref: Ref) -> None:
        """Drive a new process of a constructor, which holds nothing."""
        known = self.constructors.get(name)
        if (known is not None and known.ref == ref) or self._is_stale(name, ref):
            return
        if known is not None:
            self.constructor_gone(name, known.ref.key)
        self.add_constructor(name, ref)
        self._happened(ConstructorJoined(name))

    def constructor_gone(self, name: str, key: str) -> None:
        """Drive a constructor no longer."""
        self._note_gone(name, key)
        known = self.constructors.get(name)
        if known is not None and known.ref.key == key:
            del self.constructors[name]
            self._driving.pop(key).cancel()
            self._happened(ConstructorLost(name))

    def worker_gone(self, address: str) -> None:
        """Drive nobody of a worker that the scheduler has lost: it says so sooner than a call fails."""
        for name, driver in list(self.hosts.items()):
            if driver.ref.address == address:
                self.host_gone(name, driver.ref.key)
        for name, one in list(self.constructors.items()):
            if one.ref.address == address:
                self.constructor_gone(name, one.ref.key)

    def doubt(self, name: str, key: str) -> None:
        """Take that somebody else cannot reach a host."""
        if name in self.hosts and self.hosts[name].ref.key == key:
            self.hosts[name].doubt()

    def is_present(self, name: str, key: str) -> bool:
        """Return whether an actor is the constructor of that name at present."""
        return name in self.constructors and self.constructors[name].ref.key == key

    async def knows(self, name: str, key: str, *, deadline_s: float) -> None:
        """Wait until a constructor has joined.

        Raises:
            EngineError: If it has not in time: another one is in its place.
        """
        until = asyncio.get_running_loop().time() + deadline_s
        while not self.is_present(name, key):
            if asyncio.get_running_loop().time() > until:
                raise EngineError(f"{name} was replaced; ask where the rank is served now")
            self._came_constructor.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._came_constructor.wait(), deadline_s)

    # Telling.

    def treat(self, rows: list[Any]) -> None:
        """Tell every host of rows that are not run like others, whoever joins later too."""
        if rows not in self._treated:
            self._treated.append(rows)
            for driver in self.hosts.values():
                driver.treat(rows)

    def tell_constructor(self, name: str, order: Wire) -> None:
        """Tell a constructor something, unless it is gone: one that joins is told all anew."""
        if name in self.constructors:
            self.constructors[name].tell(order)

    def tell_constructors(self, order: Wire) -> None:
        """Tell every constructor something."""
        for driver in self.constructors.values():
            driver.tell(order)

    async def settled(self) -> None:
        """Wait until the constructors that are there have carried out all that they were told so far."""
        await asyncio.gather(*(driver.settled() for driver in self.constructors.values()))

    def replicate(self, standing: Wire) -> None:
        """Have everyone keep a copy of a standing, whoever joins later too."""
        self._num_replicas += 1
        self._replica = {"kind": "replica", "number": self._num_replicas, "standing": standing}
        for driver in self.hosts.values():
            driver.tell("replica", self._replica)
        self.tell_constructors(self._replica)

    async def replicated(self) -> None:
        """Wait until one host at least holds the newest copy: constructors may share a process with the planner."""
        wanted = self._num_replicas
        while not any(driver.replica >= wanted for driver in self.hosts.values()):
            self._carried.clear()
            await self._carried.wait()

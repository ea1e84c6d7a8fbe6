"""How a constructor gathers what its steps lack: one call a host and step, asked again where it failed."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from msd.constructor.shelf import Shelf
from msd.runtime.dask.calls import ActorGone, Fence, HasRpc, Ref, Superseded, call
from msd.runtime.dask.tasks import Tasks
from msd.runtime.dask.wire import pack, slab_from_wire

PAUSE_S = 0.2
"""Until a host that could not be reached is asked again: most often its rows have moved by then."""


class Gathering:
    """Fetches for the steps of one shelf. On its worker's loop; the shelf is guarded by a condition."""

    def __init__(
        self,
        node: HasRpc,
        shelf: Shelf,
        changed: threading.Condition,
        tasks: Tasks,
        fence: Fence,
        *,
        deadline_s: float,
        doubt_s: float,
        doubt: Callable[[str, Ref], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Get ready.

        Args:
            node: That calls.
            shelf: Says what is lacking, and takes it.
            changed: Held around each use of the shelf; notified when something came.
            tasks: Of the constructor.
            fence: Knows the term of the planner that is followed.
            deadline_s: Seconds that one call may take.
            doubt_s: Seconds until a host that cannot be reached is told of.
            doubt: Called with a host, and its reference, that could not be reached for so long.
            failed: Called with what no other host can do better.
        """
        self._node = node
        self._shelf = shelf
        self._changed = changed
        self._tasks = tasks
        self._fence = fence
        self._deadline_s = deadline_s
        self._doubt_s = doubt_s
        self._doubt = doubt
        self._failed = failed
        self._hosts: dict[str, Ref] = {}
        self._under_way: dict[tuple[int, int, str], asyncio.Task[None]] = {}
        """By generation, step and host."""
        self._begun_s: dict[tuple[int, int], float] = {}
        self.num_steps, self.seconds = 0, 0.0
        """Steps that were gathered, and what that took from the first question to the last answer, all together."""

    @property
    def keys(self) -> list[str]:
        """Of the hosts that are known."""
        return [ref.key for ref in self._hosts.values()]

    def hosts_are(self, hosts: dict[str, Ref]) -> None:
        """Take where hosts are; what was asked of a process that was replaced is asked of the new one."""
        changed = {name for name, ref in hosts.items() if name in self._hosts and self._hosts[name] != ref}
        self._hosts = dict(hosts)
        for key in [key for key in self._under_way if key[2] in changed]:
            self._under_way.pop(key).cancel()
            self.gather(*key[:2])

    def gather(self, generation: int, step: int) -> None:
        """Fetch what a step lacks from who owns it now; what others were asked for it is no longer waited for."""
        with self._changed:
            owners = {host for host, _ in self._shelf.needed(step)}
        for key in [key for key in self._under_way if key[:2] == (generation, step) and key[2] not in owners]:
            self._under_way.pop(key).cancel()
        if owners:
            self._begun_s.setdefault((generation, step), asyncio.get_running_loop().time())
        for host in owners:
            key = (generation, step, host)
            if key in self._under_way:
                self._under_way.pop(key).cancel()
            self._under_way[key] = task = self._tasks.spawn(self._fetch_from(generation, step, host))
            task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: tuple[int, int, str], task: asyncio.Task[None]) -> None:
        if self._under_way.get(key) is task:
            del self._under_way[key]
            if not any(one[:2] == key[:2] for one in self._under_way) and key[:2] in self._begun_s:
                self.num_steps += 1
                self.seconds += asyncio.get_running_loop().time() - self._begun_s.pop(key[:2])
                # Of a generation that was left nothing ends any more.
                self._begun_s = {one: at for one, at in self._begun_s.items() if one[0] >= key[0]}

    async def _fetch_from(self, generation: int, step: int, host: str) -> None:
        """Fetch what a host owes to a step, however often it takes."""
        loop = asyncio.get_running_loop()
        unreached_since: float | None = None
        while wanted := self._wanted(generation, step, host):
            try:
                await asyncio.gather(*(self._fetch(generation, step, host, *one) for one in wanted.items()))
                return
            except Superseded:
                # Hosts have heard of a new planner before this constructor has.
                await asyncio.sleep(PAUSE_S)
            except ActorGone:
                if unreached_since is None:
                    unreached_since = loop.time()
                elif loop.time() > unreached_since + self._doubt_s and host in self._hosts:
                    unreached_since = None
                    self._doubt(host, self._hosts[host])
                await asyncio.sleep(PAUSE_S)
            except Exception as error:
                # Rows that moved to another host meanwhile are fetched from there.
                if self._wanted(generation, step, host):
                    self._failed(error)
                return

    def _wanted(self, generation: int, step: int, host: str) -> dict[bool, list[list[Any]]]:
        """Return what a step lacks that a host owns, with pixels and without."""
        with self._changed:
            if generation != self._shelf.generation:
                return {}
            needed, without_pixels = self._shelf.needed(step), self._shelf.needed_without_pixels(step)
        wanted: dict[bool, list[list[Any]]] = {}
        for (owner, partition), ids in needed.items():
            if owner != host:
                continue
            of_source: dict[tuple[str, bool], list[list[int]]] = {}
            for sample_id in ids:
                key = (sample_id.source, sample_id not in without_pixels)
                of_source.setdefault(key, []).append([sample_id.ordinal, sample_id.part])
            for (source, pixels), places in of_source.items():
                wanted.setdefault(pixels, []).append([source, partition, places])
        return wanted

    async def _fetch(self, generation: int, step: int, host: str, pixels: bool, wanted: list[list[Any]]) -> None:
        ref = self._hosts.get(host)
        if ref is None:
            raise ActorGone(f"loader host {host} is not known here yet")
        term, asked = self._fence.term, pack(wanted)
        wire = await call(self._node, ref, "fetch", term, asked, pixels, deadline_s=self._deadline_s)
        with self._changed:
            if generation == self._shelf.generation:
                self._shelf.deliver(step, slab_from_wire(wire))
            self._changed.notify_all()

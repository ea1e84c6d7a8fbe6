"""Loader hosts: processes that hold many source loaders, and one named actor for each of them.

What happens every step goes through two calls a host: `advance` (examine these rows, tell what is known) and `fetch`
(hand over these samples). The actors of single partitions are for state and for people: the scheduler shows them.
"""

import asyncio
import atexit
import contextlib
import os
import resource
from collections.abc import Sequence
from functools import partial
from typing import Any

from dask.system import CPU_COUNT
from distributed import get_worker
from distributed.system import MEMORY_LIMIT

from msd.build import build_chains, build_loader, build_precautions, place_chains
from msd.config import PipelineConfig
from msd.core.order import SourceOrder
from msd.core.sample import SampleId, SampleSlab
from msd.errors import EngineError
from msd.loader.buffer import BufferPool
from msd.loader.counts import Spent
from msd.loader.ledgers import close_orders
from msd.loader.loader import SourceLoader
from msd.loader.poison.notes import Ended, folder_of
from msd.loader.poison.suspects import News
from msd.loader.processes.pool import TransformProcesses
from msd.loader.slices import Counted, Sliced
from msd.loader.transforms.chain import AppliesTransforms
from msd.loader.workers import Permits, Threads
from msd.runtime.dask.calls import Fence
from msd.runtime.dask.lifetime import close_when_released
from msd.runtime.dask.memory import pss_bytes
from msd.runtime.dask.standby import Standby
from msd.runtime.dask.wire import Wire, pack, slab_to_wire, tables_to_wire, unpack
from msd.runtime.dask.workshop import STANDBY, Key, Workshop

_hosts: dict[str, "LoaderHost"] = {}
"""Hosts of this process by run, where the actors of partitions find theirs."""

READ_BYTES = 32 << 20
"""Raw rows that the loaders of one host hold ahead together. Less means that blocks are decoded more often."""

MOST_FILES = 65_536

TICK_S = 0.05
"""An `advance` that has nothing to tell waits this long for something."""


class LoaderHost:
    """Examines rows and hands over samples for all the partitions of one process."""

    def __init__(
        self,
        run: str,
        name: str,
        config: PipelineConfig,
        orders: dict[str, SourceOrder],
        num_sharing: int,
        buffer_bytes: int,
    ) -> None:
        """Get ready; partitions come with `SourceLoaderActor`.

        Args:
            run: Identity of the run.
            name: Of this host.
            config: The run's configuration.
            orders: The sequence of each source.
            num_sharing: Loader hosts of the run on this machine, which share its cores; this one counts.
            buffer_bytes: Payload that all loaders of the host hold together.
        """
        self.name = name
        self._run = run
        self._config = config
        self._orders = orders
        num_cores = len(os.sched_getaffinity(0)) // num_sharing
        # Two at least, so that one slow source does not hold up the others.
        threads = max(2, num_cores)
        self._precautions = build_precautions(config, folder_of(run))
        self._suspects = self._precautions.suspects
        self._processes = TransformProcesses(threads, memory=self._precautions.memory)
        self._helpers = Threads(threads, "msd-worker")
        self._permits = {source: Permits() for source in config.sources}
        self._spent = {source: Spent() for source in config.sources}
        self._fewest = threads
        try:
            chains = build_chains(config)
            self._chains = place_chains(
                config,
                chains,
                self._processes,
                self._precautions,
                num_cores=num_cores,
                divided=self._divided,
                counted=self._counted,
            )
        except BaseException:
            self._precautions.close()
            raise
        num_sources = max(1, len(config.sources))
        self._buffer_bytes = buffer_bytes
        self._pool = BufferPool(buffer_bytes, num_sources)
        self._read_bytes = READ_BYTES // num_sources
        fills = config.runtime.fill_shadows
        self._workshop = Workshop(name, threads=threads, make=self._make, holds_ahead=fills)
        self._standby = Standby(orders, fills=fills)
        self._news: asyncio.Event | None = None
        self._fence = Fence(f"loader host {name}")
        self._replica: tuple[tuple[int, int], Wire] | None = None
        """(term, number) of the newest copy of where the run stands, and it."""
        self._abandoned = (0, 0)
        """(term, generation) before which what was asked is left."""
        _hosts[run] = self
        # A process that ends in order leaves no notes of what it had in hand.
        atexit.register(self._precautions.close)
        _allow_files()
        close_when_released(self)

    def add(self, source: str, partition: int) -> SourceLoader:
        """Return the loader of a partition, making it if need be."""
        return self._workshop.add(source, partition)

    def _divided(self, source: str, chain: AppliesTransforms) -> AppliesTransforms:
        return Sliced(chain, self._helpers, self._permits[source], self._spent[source])

    def _counted(self, source: str, chain: AppliesTransforms) -> AppliesTransforms:
        return Counted(chain, self._spent[source])

    def _seat(self, seats: Sequence[tuple[str, int, int | None]]) -> None:
        """Have the loaders there that somebody gave a seat here, with so many workers for each."""
        allowed: dict[str, int | None] = dict.fromkeys(self._permits, 0)
        for source, _, workers in seats:
            known = allowed[source]
            allowed[source] = None if workers is None or known is None else known + workers
        for source, most in allowed.items():
            # One that has no seat here any more may still be asked for what it had: one worker will do.
            self._permits[source].allow(most if most != 0 else 1)
        workers_of_all = sum(most or 0 for most in allowed.values())
        self._helpers.count = max(self._fewest, workers_of_all)
        self._workshop.resize(max(self._fewest, workers_of_all))
        self._workshop.keep_only({(source, partition) for source, partition, _ in seats})

    def _make(self, source: str) -> SourceLoader:
        return build_loader(
            self._config,
            self._orders[source],
            self._chains[source],
            buffer_bytes=self._buffer_bytes,
            read_bytes=self._read_bytes,
            pool=self._pool,
            suspects=self._suspects,
        )

    async def advance(self, term: int, asked: Wire, seen: int, wait_s: float) -> Wire:
        """Take requests and return the metadata that is there, waiting for some up to `wait_s`.

        The same call again gives the same answer: what was returned is kept until a later call says that it came.

        Args:
            term: Of the planner: lower ones are refused.
            asked: Packed: `requests`, (source, partition, start, num_rows) each, of which one that is under way already
                is not begun twice; `releases`, by source the ordinal before which payload may go; `rows` that are not
                run like others; `orders`, what else to do; `told`, the `news_number` of the last answer that came.
            seen: `number` of the last answer that came.
            wait_s: Seconds to wait while there is nothing to tell.
        """
        self._fence.admit(term)
        if self._news is None:
            self._news = asyncio.Event()
            self._workshop.on_news, self._workshop.on_idle = self._news.set, self._get_ready
            self._suspects.on_news = partial(asyncio.get_running_loop().call_soon_threadsafe, self._news.set)
        asked = unpack(asked)
        self._workshop.seen(seen)
        for source, before in asked["releases"].items():
            self._workshop.release(source, before)
        for order in asked["orders"]:
            self._carry_out(term, order)
        self._treat(asked["rows"])
        if asked["requests"]:
            # Another host may have had them before, and may be gone because of one of them.
            self._precautions.read_others(self._config.runtime.silence_s)
            self._standby.follow({})
            self._workshop.request((source, *place) for source, *place in asked["requests"])
        self._news.clear()
        number, tables = self._workshop.answers()
        if not tables and self._workshop.error is None and not self._suspects.news(asked["told"])[1]:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), wait_s)
            number, tables = self._workshop.answers()
        if self._workshop.error is not None:
            raise self._workshop.error
        news_number, news = self._suspects.news(asked["told"])
        return pack({
            "number": number,
            "news_number": news_number,
            "news": [_told(one) for one in news],
            "lacks": self._workshop.lacks(),
            **tables_to_wire(tables),
        })  # fmt: skip

    async def fetch(self, term: int, wanted: Wire, pixels: bool = True) -> Wire:
        """Return samples of any partitions as one slab.

        Args:
            term: As in `advance`. The version of the placement does not matter: any host can make any row.
            wanted: Packed: (source, partition, [[ordinal, part], ...]) each.
            pixels: False sends images' geometry alone.
        """
        self._fence.admit(term)
        ids: dict[Key, list[SampleId]] = {}
        for source, partition, places in unpack(wanted):
            found = [SampleId(source, ordinal, part) for ordinal, part in places]
            ids.setdefault((source, partition), []).extend(found)
        slabs = await self._workshop.fetch(ids)
        return slab_to_wire(SampleSlab.joined([slab if pixels else slab.without_pixels() for slab in slabs]))

    async def ping(self) -> Wire:
        """Answer: the process is there, whatever its threads are at."""
        return {"name": self.name, "pid": os.getpid(), "term": self._fence.term}

    async def standing(self, term: int) -> Wire | None:
        """Return the newest copy of where the run stands; a planner of a lower term is refused from now on."""
        self._fence.admit(term)
        return None if self._replica is None else self._replica[1]

    def _carry_out(self, term: int, order: Wire) -> None:
        match order["kind"]:
            case "replica":
                age = (term, order["number"])
                if self._replica is None or age > self._replica[0]:
                    self._replica = age, order["standing"]
            case "abandon":
                # Not again, by a message that comes late: what was asked since is waited for.
                if (term, order["generation"]) > self._abandoned:
                    self._abandoned = term, order["generation"]
                    self._workshop.abandon()
            case "seats":
                self._seat(order["seats"])
            case "follow":
                self._standby.follow(order["cursors"])
                for source, before in order["cursors"].items():
                    self._workshop.release(source, before)
                self._get_ready()

    def _get_ready(self) -> None:
        """Prepare, as a shadow, what is wanted first if this host takes over."""
        ahead = self._standby.next()
        if ahead is not None:
            source, start, num_rows = ahead
            self._workshop.request([(source, STANDBY, start, num_rows)])

    def _treat(self, rows: Sequence[Sequence[Any]]) -> None:
        """Take which rows are not run like others: `avoid` or `isolate`, and what `Suspects` wants to know."""
        for kind, *what in rows:
            if kind == "avoid":
                self._suspects.avoid(*what)
            else:
                self._suspects.isolate([(source, ordinal) for source, ordinal in what])
        if rows:
            self._workshop.unpark()

    async def stats(self) -> dict[str, Any]:
        """Return counts by source, summed over the partitions held here, and what the process takes."""
        counts: dict[str, dict[str, Any]] = {}
        for source, of_loader in self._workshop.counts():
            counts[source] = added(counts.get(source), of_loader)
        for source, of_source in counts.items():
            of_source.update(self._spent[source].as_dict())
        pss = await asyncio.get_running_loop().run_in_executor(None, pss_bytes)
        return {
            "host": self.name,
            "pid": os.getpid(),
            "pss_bytes": pss,
            "payload_bytes": self._pool.nbytes,
            "cores": CPU_COUNT,
            "memory_bytes": MEMORY_LIMIT,
            "sources": counts,
        }

    async def close(self) -> None:
        """Close files, threads and processes. Closing twice is fine."""
        _hosts.pop(self._run, None)
        self._workshop.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._processes.close()
        self._precautions.close()
        atexit.unregister(self._precautions.close)
        self._workshop.close()
        close_orders(self._orders)
        self._helpers.shutdown(wait=False)


class SourceLoaderActor:
    """One partition of one source, by name, on the host that holds it. Decides nothing."""

    def __init__(self, run: str, source: str, partition: int) -> None:
        """Have the host of this process hold the partition."""
        host = _hosts.get(run)
        if host is None:
            raise EngineError(f"worker {get_worker().address} holds no loader host of run {run}")
        self._loader = host.add(source, partition)
        self._name = f"{source}/{partition}"

    async def state(self) -> dict[str, Any]:
        """Return what the loader has done."""
        return {"name": self._name, **self._loader.counts()}


def added(first: Any, second: Any) -> Any:
    """Return the sum of two counts: numbers, or mappings of them."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(second, dict):
        return {key: added(first.get(key), second.get(key)) for key in {**first, **second}}
    return first + second


def _told(news: News) -> Wire:
    if isinstance(news, Ended):
        return {"rows": [list(row) for row in news.rows], "how": news.how}
    return {"killed": [news.source, news.ordinal], "how": news.how}


def _allow_files() -> None:
    """Let this process open as many files as the system allows it: a reader holds a few, and sources are many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

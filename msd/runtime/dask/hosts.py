"""Loader hosts: processes that hold many source loaders, and one named actor for each of them.

What happens every step goes through two calls a host: `advance` (examine these rows, tell what is known) and `fetch`
(hand over these samples). The actors of single partitions are for state and for people: the scheduler shows them.
"""

import asyncio
import contextlib
import os
import resource
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from distributed import get_worker
from distributed.threadpoolexecutor import ThreadPoolExecutor

from msd.build import build_chains, build_loader, build_precautions, place_chains
from msd.config import PipelineConfig
from msd.core.order import SourceOrder
from msd.core.sample import MetaTable, SampleId, SampleSlab
from msd.errors import ClosedError, EngineError, MsdError, told
from msd.loader.loader import BATCH_ROWS, SourceLoader
from msd.loader.poison.notes import Ended, folder_of
from msd.loader.poison.suspects import News, RowsKilled
from msd.loader.processes.pool import TransformProcesses
from msd.runtime.dask.calls import Fence
from msd.runtime.dask.lifetime import close_when_released
from msd.runtime.dask.wire import Wire, pack, slab_to_wire, tables_to_wire, unpack

_hosts: dict[str, "LoaderHost"] = {}
"""Hosts of this process by run, where the actors of partitions find theirs."""

_Key: TypeAlias = tuple[str, int]
"""(source, partition)"""
_Request: TypeAlias = tuple[str, int, int, int]
"""(source, partition, start, num_rows)"""

READ_BYTES = 32 << 20
"""Raw rows that the loaders of one host hold ahead together. Less means that blocks are decoded more often."""

MOST_FILES = 65_536

CLOSE_S = 2.0
"""A transform that takes longer is left behind when its host closes."""

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
        try:
            chains = build_chains(config)
            self._chains = place_chains(config, chains, self._processes, self._precautions, num_cores=num_cores)
        except BaseException:
            self._precautions.close()
            raise
        self._buffer_bytes = buffer_bytes
        self._loaders: dict[_Key, SourceLoader] = {}
        self._partitions: dict[str, list[int]] = {}
        self._adding = threading.Lock()
        # Dask's, since those threads do not keep a process from ending.
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="msd-loader")
        self._num_idle = threads
        self._num_fetching = max(1, threads // 2)
        self._fetching = ThreadPoolExecutor(self._num_fetching, thread_name_prefix="msd-fetch")
        self._queue: deque[_Request] = deque()
        self._under_way: set[_Request] = set()
        self._parked: list[_Request] = []
        """Those with a row of which somebody has to decide what it is answered with."""
        self._busy: set[_Key] = set()
        """Loaders that are given to a thread."""
        self._entered: set[_Key] = set()
        """Loaders that a thread is in."""
        self._is_closed = False
        self._fetched: Counter[_Key] = Counter()
        """Loaders that a fetch is waiting for: it goes first."""
        self._left = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_done = 0
        self._done: list[tuple[int, _Request, MetaTable]] = []
        """Numbered answers that the planner is not known to have."""
        self._release_due: dict[_Key, int] = {}
        self._error: Exception | None = None
        self._news: asyncio.Event | None = None
        self._fence = Fence(f"loader host {name}")
        self._replica: tuple[tuple[int, int], Wire] | None = None
        """(term, number) of the newest copy of where the run stands, and it."""
        _hosts[run] = self
        _allow_files()
        close_when_released(self)

    def add(self, source: str, partition: int) -> SourceLoader:
        """Return the loader of a partition, making it if need be."""
        key = (source, partition)
        with self._adding:
            if key not in self._loaders:
                num_sources = max(1, len(self._config.sources))
                self._loaders[key] = build_loader(
                    self._config,
                    self._orders[source],
                    self._chains[source],
                    buffer_bytes=max(4 << 20, self._buffer_bytes // num_sources),
                    read_bytes=READ_BYTES // num_sources,
                    suspects=self._suspects,
                )
                self._partitions.setdefault(source, []).append(partition)
            return self._loaders[key]

    async def advance(self, term: int, asked: Wire, seen: int, wait_s: float) -> Wire:
        """Take requests and return the metadata that is there, waiting for some up to `wait_s`.

        The same call again gives the same answer: what was returned is kept until a later call says that it came.

        Args:
            term: Of the planner: lower ones are refused.
            asked: Packed: `requests`, (source, partition, start, num_rows) each, of which one that is under way already
                is not begun twice; `releases`, by source the ordinal before which payload may go; `rows` that are not
                run like others; `told`, the `news_number` of the last answer that came.
            seen: `number` of the last answer that came.
            wait_s: Seconds to wait while there is nothing to tell.
        """
        self._fence.admit(term)
        if self._news is None:
            self._news = asyncio.Event()
            self._suspects.on_news = partial(asyncio.get_running_loop().call_soon_threadsafe, self._news.set)
        self._done = [entry for entry in self._done if entry[0] > seen]
        asked = unpack(asked)
        for order in asked["orders"]:
            self._carry_out(term, order)
        for source, before in asked["releases"].items():
            for partition in self._partitions.get(source, ()):
                self._release_due[source, partition] = before
                self._release((source, partition))
        self._treat(asked["rows"])
        if asked["requests"]:
            # Another host may have had them before, and may be gone because of one of them.
            self._precautions.read_others(self._config.runtime.silence_s)
        known = self._under_way | {request for _, request, _ in self._done}
        for source, partition, start, num_rows in asked["requests"]:
            request = (source, partition, start, num_rows)
            if request not in known:
                self._under_way.add(request)
                self._queue.append(request)
        self._feed()
        self._news.clear()
        if not self._done and self._error is None and not self._suspects.news(asked["told"])[1]:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), wait_s)
        if self._error is not None:
            raise self._error
        news_number, news = self._suspects.news(asked["told"])
        return pack({
            "number": self._num_done,
            "news_number": news_number,
            "news": [_told(one) for one in news],
            **tables_to_wire([table for _, _, table in self._done]),
        })  # fmt: skip

    async def fetch(self, term: int, wanted: Wire, pixels: bool = True) -> Wire:
        """Return samples of any partitions as one slab.

        Args:
            term: As in `advance`. The version of the placement does not matter: any host can make any row.
            wanted: Packed: (source, partition, [[ordinal, part], ...]) each.
            pixels: False sends images' geometry alone.
        """
        self._fence.admit(term)
        waiting: dict[_Key, list[SampleId]] = {}
        for source, partition, places in unpack(wanted):
            ids = [SampleId(source, ordinal, part) for ordinal, part in places]
            waiting.setdefault((source, partition), []).extend(ids)
        self._fetched.update(waiting.keys())
        slabs: list[SampleSlab] = []
        try:
            while waiting:
                free = [key for key in waiting if key not in self._busy]
                if free:
                    slabs += await self._fetch_from({key: waiting.pop(key) for key in free})
                else:
                    await self._left.wait()
        finally:
            self._fetched.subtract(waiting.keys())
        return slab_to_wire(SampleSlab.joined([slab if pixels else slab.without_pixels() for slab in slabs]))

    async def ping(self) -> Wire:
        """Answer: the process is there, whatever its threads are at."""
        return {"name": self.name, "pid": os.getpid(), "term": self._fence.term}

    async def standing(self, term: int) -> Wire | None:
        """Return the newest copy of where the run stands; a planner of a lower term is refused from now on."""
        self._fence.admit(term)
        return None if self._replica is None else self._replica[1]

    def _carry_out(self, term: int, order: Wire) -> None:
        if order["kind"] == "replica":
            age = (term, order["number"])
            if self._replica is None or age > self._replica[0]:
                self._replica = age, order["standing"]

    async def stats(self) -> dict[str, Any]:
        """Return counts by source, summed over the partitions held here."""
        counts: dict[str, dict[str, Any]] = {}
        for (source, _), loader in self._loaders.items():
            counts[source] = added(counts.get(source), loader.counts())
        return {"host": self.name, "pid": os.getpid(), "sources": counts}

    async def close(self) -> None:
        """Close files, threads and processes. Closing twice is fine."""
        _hosts.pop(self._run, None)
        self._queue.clear()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        self._is_closed = True
        self._processes.close()
        self._precautions.close()
        deadline = time.monotonic() + CLOSE_S
        for threads in (self._threads, self._fetching):
            threads.shutdown(timeout=max(0.0, deadline - time.monotonic()))
        for key, loader in self._loaders.items():
            # A transform cannot be cut short: what a thread is still in ends with the process.
            if key not in self._entered:
                loader.close()

    def _treat(self, rows: Sequence[Sequence[Any]]) -> None:
        """Take which rows are not run like others: `avoid` or `isolate`, and what `Suspects` wants to know."""
        for kind, *what in rows:
            if kind == "avoid":
                self._suspects.avoid(*what)
            else:
                self._suspects.isolate([(source, ordinal) for source, ordinal in what])
        if rows:
            self._queue.extend(self._parked)
            self._under_way.update(self._parked)
            self._parked = []

    # On the worker's loop. Crossing to a thread and back costs as much as preparing several small rows, so that
    # requests of many loaders go together, and each loader is in one thread at a time.

    def _feed(self) -> None:
        """Hand requests to idle threads."""
        while self._num_idle and (batch := self._next_batch()):
            self._num_idle -= 1
            self._busy.update(request[:2] for request in batch)
            task = asyncio.create_task(self._examine(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next_batch(self) -> list[_Request]:
        """Take requests for loaders that are free, in order: together no more rows than one large request has."""
        batch: list[_Request] = []
        later: list[_Request] = []
        num_rows = 0
        while self._queue and num_rows < BATCH_ROWS:
            request = self._queue.popleft()
            key = request[:2]
            if key in self._busy or self._fetched[key] > 0 or (batch and num_rows + request[3] > BATCH_ROWS):
                later.append(request)
            else:
                batch.append(request)
                num_rows += request[3]
        self._queue.extendleft(reversed(later))
        return batch

    async def _examine(self, batch: Sequence[_Request]) -> None:
        tables = await asyncio.get_running_loop().run_in_executor(self._threads, self._examined, batch)
        for request, table in zip(batch, tables, strict=False):
            if table is None:
                self._parked.append(request)
                continue
            self._num_done += 1
            self._done.append((self._num_done, request, table))
        self._under_way.difference_update(batch)
        self._num_idle += 1
        self._leave({request[:2] for request in batch})
        if self._news is not None:
            self._news.set()

    async def _fetch_from(self, wanted: dict[_Key, list[SampleId]]) -> list[SampleSlab]:
        """Return samples of loaders that are free, in as many threads as there are for it."""
        self._busy.update(wanted)
        entries = list(wanted.items())
        loop = asyncio.get_running_loop()
        try:
            shares = [entries[first :: self._num_fetching] for first in range(min(self._num_fetching, len(entries)))]
            slabs = await asyncio.gather(*(loop.run_in_executor(self._fetching, self._slabs, one) for one in shares))
            return [slab for of_share in slabs for slab in of_share]
        finally:
            self._fetched.subtract(wanted.keys())
            self._leave(wanted)

    def _leave(self, keys: Iterable[_Key]) -> None:
        """Note that no thread is in these loaders any more."""
        keys = list(keys)
        self._busy.difference_update(keys)
        for key in keys:
            self._release(key)
        self._left.set()
        self._left = asyncio.Event()
        self._feed()

    def _release(self, key: _Key) -> None:
        """Let payload go; only while no thread is in the loader."""
        if key not in self._busy and (before := self._release_due.pop(key, None)) is not None:
            self._loaders[key].release(before)

    # On threads.

    def _examined(self, batch: Sequence[_Request]) -> list[MetaTable | None]:
        """Return the tables of requests, fewer if one cannot be answered: that ends the run; None for one to park."""
        tables: list[MetaTable | None] = []
        for source, partition, start, num_rows in batch:
            try:
                with self._inside((source, partition)) as loader:
                    tables.append(loader.examine(start, num_rows))
            except RowsKilled:
                tables.append(None)
            except MsdError as error:
                self._error = error
                break
            except BaseException as error:
                # Also what would end a process: one host after the other would meet it, and nobody could say where.
                ends = "" if isinstance(error, Exception) else "; a transform must not end the process that it runs in"
                self._error = EngineError(
                    f"loader host {self.name} failed at rows {start} to {start + num_rows} of source {source!r}: "
                    f"{told(error)}{ends}"
                )
                break
        return tables

    def _slabs(self, entries: Sequence[tuple[_Key, list[SampleId]]]) -> list[SampleSlab]:
        try:
            slabs = []
            for key, ids in entries:
                with self._inside(key) as loader:
                    slabs.append(loader.fetch(ids))
            return slabs
        except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            raise EngineError(
                f"loader host {self.name} failed at samples of {', '.join(sorted({key[0] for key, _ in entries}))}: "
                f"{told(error)}; a transform must not end the process that it runs in"
            ) from None

    @contextlib.contextmanager
    def _inside(self, key: _Key) -> Iterator[SourceLoader]:
        """Yield a loader to the thread that it was given to."""
        self._entered.add(key)
        try:
            if self._is_closed:
                raise ClosedError(f"loader host {self.name} was closed")
            yield self.add(*key)
        finally:
            self._entered.discard(key)


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

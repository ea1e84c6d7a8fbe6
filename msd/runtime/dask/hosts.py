"""Loader hosts: processes that hold many source loaders, and one named actor for each of them.

What happens every step goes through two calls a host: `advance` (examine these rows, tell what is known) and `fetch`
(hand over these samples). The actors of single partitions are for state and for people: the scheduler shows them.
"""

import asyncio
import contextlib
import os
import resource
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from distributed import get_worker

from msd.build import build_chains, build_loader
from msd.config import PipelineConfig
from msd.core.order import SourceOrder
from msd.core.sample import MetaTable, SampleId, SampleSlab
from msd.errors import EngineError, MsdError
from msd.loader.loader import SourceLoader
from msd.runtime.dask.lifetime import close_when_released
from msd.runtime.dask.wire import Wire, slab_to_wire, tables_to_wire

_hosts: dict[str, "LoaderHost"] = {}
"""Hosts of this process by run, where the actors of partitions find theirs."""

_Request: TypeAlias = tuple[str, int, int, int]
"""(source, partition, start, num_rows)"""

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
        threads: int,
        buffer_bytes: int,
    ) -> None:
        """Get ready; partitions come with `SourceLoaderActor`.

        Args:
            run: Identity of the run.
            name: Of this host.
            config: The run's configuration.
            orders: The sequence of each source.
            threads: Rows are transformed by this many threads.
            buffer_bytes: Payload that all loaders of the host hold together.
        """
        self.name = name
        self._run = run
        self._config = config
        self._orders = orders
        self._chains = build_chains(config)
        self._buffer_bytes = buffer_bytes
        self._loaders: dict[tuple[str, int], SourceLoader] = {}
        self._locks: dict[tuple[str, int], asyncio.Lock] = {}
        self._partitions: dict[str, list[int]] = {}
        self._adding = threading.Lock()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="msd-loader")
        self._fetching = ThreadPoolExecutor(max(1, threads // 2), thread_name_prefix="msd-fetch")
        self._under_way: set[_Request] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_done = 0
        self._done: list[tuple[int, _Request, MetaTable]] = []
        """Numbered answers that the planner is not known to have."""
        self._release_due: dict[tuple[str, int], int] = {}
        self._error: Exception | None = None
        self._news: asyncio.Event | None = None
        self._term = 0
        _hosts[run] = self
        _allow_files()
        close_when_released(self)

    def add(self, source: str, partition: int) -> SourceLoader:
        """Return the loader of a partition, making it if need be."""
        key = (source, partition)
        with self._adding:
            if key not in self._loaders:
                num_sources = max(1, len(self._config.sources))
                self._locks[key] = asyncio.Lock()
                self._loaders[key] = build_loader(
                    self._config,
                    self._orders[source],
                    self._chains[source],
                    buffer_bytes=max(4 << 20, self._buffer_bytes // num_sources),
                    read_bytes=READ_BYTES // num_sources,
                )
                self._partitions.setdefault(source, []).append(partition)
            return self._loaders[key]

    async def advance(
        self, term: int, requests: Sequence[Sequence[Any]], releases: dict[str, int], seen: int, wait_s: float
    ) -> Wire:
        """Take requests and return the metadata that is there, waiting for some up to `wait_s`.

        The same call again gives the same answer: what was returned is kept until a later call says that it came.

        Args:
            term: Of the planner: lower ones are refused.
            requests: (source, partition, start, num_rows) each; one that is under way already is not begun twice.
            releases: By source, the ordinal before which payload may go.
            seen: `number` of the last answer that came.
            wait_s: Seconds to wait while there is nothing to tell.
        """
        self._check_term(term)
        if self._news is None:
            self._news = asyncio.Event()
        self._done = [entry for entry in self._done if entry[0] > seen]
        for source, before in releases.items():
            for partition in self._partitions.get(source, ()):
                self._release_due[source, partition] = before
                if not self._locks[source, partition].locked():
                    self._release(source, partition)
        known = self._under_way | {request for _, request, _ in self._done}
        for source, partition, start, num_rows in requests:
            request = (source, partition, start, num_rows)
            if request not in known:
                self._under_way.add(request)
                task = asyncio.create_task(self._examine(*request))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if not self._done and self._error is None:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), wait_s)
        if self._error is not None:
            raise self._error
        return {"number": self._num_done, **tables_to_wire([table for _, _, table in self._done])}

    async def fetch(self, term: int, wanted: Sequence[Sequence[Any]]) -> Wire:
        """Return samples of any partitions as one slab.

        Args:
            term: As in `advance`. The version of the placement does not matter: any host can make any row.
            wanted: (source, partition, [[ordinal, part], ...]) each.
        """
        self._check_term(term)
        slabs = await asyncio.gather(*(self._fetch(*entry) for entry in wanted))
        return slab_to_wire(SampleSlab.joined(slabs))

    async def stats(self) -> dict[str, Any]:
        """Return counts by source, summed over the partitions held here."""
        counts: dict[str, dict[str, Any]] = {}
        for (source, _), loader in self._loaders.items():
            counts[source] = added(counts.get(source), loader.counts())
        return {"host": self.name, "pid": os.getpid(), "sources": counts}

    async def close(self) -> None:
        """Close files and threads. Closing twice is fine."""
        _hosts.pop(self._run, None)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    def _close(self) -> None:
        # A transform cannot be cut short: its loader is closed when it is through.
        self._threads.shutdown(cancel_futures=True)
        self._fetching.shutdown(cancel_futures=True)
        for loader in self._loaders.values():
            loader.close()

    async def _examine(self, source: str, partition: int, start: int, num_rows: int) -> None:
        request = (source, partition, start, num_rows)
        try:
            loader = self.add(source, partition)
            async with self._locks[source, partition]:
                table = await asyncio.get_running_loop().run_in_executor(self._threads, loader.examine, start, num_rows)
                self._release(source, partition)
            self._num_done += 1
            self._done.append((self._num_done, request, table))
        except MsdError as error:
            self._error = error
        except Exception as error:
            self._error = EngineError(
                f"loader host {self.name} failed at rows {start} to {start + num_rows} of source {source!r}: "
                f"{type(error).__name__}: {error}"
            )
        finally:
            self._under_way.discard(request)
            if self._news is not None:
                self._news.set()

    async def _fetch(self, source: str, partition: int, places: Sequence[Sequence[int]]) -> SampleSlab:
        loader = self.add(source, partition)
        ids = [SampleId(source, ordinal, part) for ordinal, part in places]
        async with self._locks[source, partition]:
            slab = await asyncio.get_running_loop().run_in_executor(self._fetching, loader.fetch, ids)
            self._release(source, partition)
            return slab

    def _release(self, source: str, partition: int) -> None:
        """Let payload go; only while no thread is in the loader."""
        before = self._release_due.pop((source, partition), None)
        if before is not None:
            self._loaders[source, partition].release(before)

    def _check_term(self, term: int) -> None:
        if term < self._term:
            raise EngineError(
                f"loader host {self.name} follows the planner of term {self._term} and refuses one of term {term}, "
                "which was replaced"
            )
        self._term = term


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


def _allow_files() -> None:
    """Let this process open as many files as the system allows it: a reader holds a few, and sources are many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

"""The loaders of one process, and the threads that prepare rows with them.

Crossing to a thread and back costs as much as preparing several small rows, so that requests of many loaders go
together; those that take long go alone, so that each is answered when it is done. Several batches of a loader may be
under way: while the last rows of one are transformed, the next is begun.
"""

import asyncio
import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from msd.core.sample import MetaTable, SampleId, SampleSlab
from msd.errors import ClosedError, EngineError, MsdError, told
from msd.loader.admitted import RowsNotHere
from msd.loader.loader import BATCH_ROWS, SourceLoader
from msd.loader.poison.suspects import RowsKilled
from msd.loader.workers import Threads

Key: TypeAlias = tuple[str, int]
"""(source, partition)"""
Request: TypeAlias = tuple[str, int, int, int]
"""(source, partition, start, num_rows)"""

STANDBY = -1
"""Partition of what nobody has asked for yet: its rows are prepared ahead, and nothing is told of them."""

MOST_BATCHES = 4
"""Of one loader at once."""
BATCH_S = 0.02
"""What a batch of several requests may be expected to take: many times what it costs to hand it over."""
_SMOOTHING = 0.3
"""Weight of the newest request in what a row is expected to take."""
LOOK_S = 0.25
"""Requests for rows that are still to come are looked at again so often, or as often as their source says if that is
more: another host may have admitted them."""
CLOSE_S = 2.0
"""A transform that takes longer is left behind when its host closes."""


class Workshop:
    """Examines and fetches rows. On its worker's loop, except where it says otherwise."""

    def __init__(
        self, name: str, *, threads: int, make: Callable[[str], SourceLoader], holds_ahead: bool = False
    ) -> None:
        """Begin with no loader.

        Args:
            name: Of the host, for errors.
            threads: Loaders that may be at work at the same time.
            make: Returns a loader of a source.
            holds_ahead: Whether payload of rows that nobody has asked for yet is held.
        """
        self.error: Exception | None = None
        """What ended the work of this host."""
        self.on_news: Callable[[], None] = lambda: None
        """Called when there is something to tell."""
        self.on_idle: Callable[[], None] = lambda: None
        """Called when rows ahead of any request are prepared."""
        self._name = name
        self._make = make
        self._holds_ahead = holds_ahead
        self._loaders: dict[Key, SourceLoader] = {}
        self._partitions: dict[str, list[int]] = {}
        self._adding = threading.Lock()
        self._threads = Threads(threads, "msd-loader")
        self._num_threads = self._num_idle = threads
        self._kept: set[Key] | None = None
        """Loaders that have a seat here; None is all."""
        self._past: dict[str, list[dict[str, Any]]] = {}
        """Totals of loaders that are gone, by source."""
        self._num_fetching = max(1, threads // 2)
        self._fetching = Threads(self._num_fetching, "msd-fetch")
        self._queue: deque[Request] = deque()
        self._under_way: set[Request] = set()
        self._parked: list[Request] = []
        """Those with a row of which somebody has to decide what it is answered with."""
        self._lacking: dict[Request, str] = {}
        """Those of which no row is there yet, with what is waited for."""
        self._lacks: dict[str, tuple[int, str]] = {}
        """By source: the first row of those, as far as nothing has come since."""
        self._look: asyncio.TimerHandle | None = None
        """When they are looked at again."""
        self._num_decided = 0
        """How often such was decided: it may be while a thread is still at other rows of the same batch."""
        self._examining: Counter[Key] = Counter()
        """By loader, batches with requests for it that are under way."""
        self._given: Counter[Key] = Counter()
        """By loader, threads that it is given to, whatever for."""
        self._row_s: dict[str, float] = {}
        """By source: seconds from the beginning of a request to its end, over its rows, of late."""
        self._entered: Counter[Key] = Counter()
        """By loader, threads that are in it."""
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_done = 0
        self._done: list[tuple[int, Request, MetaTable]] = []
        """Numbered answers that the planner is not known to have."""

    def add(self, source: str, partition: int) -> SourceLoader:
        """Return the loader of a partition, made if need be, or taken from what stands by. On any thread."""
        key, standby = (source, partition), (source, STANDBY)
        with self._adding:
            if key not in self._loaders:
                if standby in self._loaders and not self._given[standby]:
                    self._loaders[key] = self._loaders.pop(standby)
                    self._partitions[source].remove(STANDBY)
                else:
                    self._loaders[key] = self._make(source)
                self._partitions.setdefault(source, []).append(partition)
            return self._loaders[key]

    def request(self, requests: Iterable[Request]) -> None:
        """Have rows examined; a request that is under way, or answered and not `seen`, is not begun twice."""
        known = self._under_way | {request for _, request, _ in self._done} | self._lacking.keys()
        new = [request for request in dict.fromkeys(requests) if request not in known]
        if any(request[1] != STANDBY for request in new):
            # What somebody waits for goes before what might be wanted.
            self._under_way.difference_update(request for request in self._queue if request[1] == STANDBY)
            self._queue = deque(request for request in self._queue if request[1] != STANDBY)
        self._under_way.update(new)
        self._queue.extend(new)
        self._feed()

    def abandon(self) -> None:
        """Forget requests that no thread has begun with: nobody waits for them."""
        waiting = {request for request in self._queue if request[1] != STANDBY}
        self._queue = deque(request for request in self._queue if request[1] == STANDBY)
        self._under_way -= waiting
        self._lacking.clear()
        self._lacks.clear()

    def unpark(self) -> None:
        """Begin again with requests of which a row was killed: it is known by now what it is answered with."""
        self._num_decided += 1
        parked, self._parked = self._parked, []
        self.request(parked)

    def release(self, source: str, before: int) -> None:
        """Let payload of rows before an ordinal go."""
        for partition in self._partitions.get(source, ()):
            if (loader := self._loaders.get((source, partition))) is not None:
                loader.release(before)

    def lacks(self) -> list[list[Any]]:
        """Return by source the first row that was asked for and is still to come, and what is waited for."""
        return [[source, ordinal, why] for source, (ordinal, why) in self._lacks.items()]

    def seen(self, through: int) -> None:
        """Forget answers that are known to have come: whoever asks for such rows from now on wants them once more.

        A planner does that moves to where it was before. Called before `request`, since it asks in the same breath.
        """
        self._done = [entry for entry in self._done if entry[0] > through]

    def answers(self) -> tuple[int, list[MetaTable]]:
        """Return the number of the newest answer, and the tables of all that are not known to have come."""
        return self._num_done, [table for _, _, table in self._done]

    async def fetch(self, wanted: dict[Key, list[SampleId]]) -> list[SampleSlab]:
        """Return samples, in any order, whatever their loaders are at besides."""
        self._given.update(wanted.keys())
        entries = list(wanted.items())
        loop = asyncio.get_running_loop()
        try:
            shares = [entries[first :: self._num_fetching] for first in range(min(self._num_fetching, len(entries)))]
            running = [loop.run_in_executor(self._fetching, self._slabs, one) for one in shares]
            # All of them, also where one fails: loaders are not free before their threads have left them.
            await asyncio.gather(*running, return_exceptions=True)
            return [slab for of_share in running for slab in of_share.result()]
        finally:
            self._leave(wanted)

    def resize(self, threads: int) -> None:
        """Have another number of loaders at work at the same time from now on."""
        self._num_idle += threads - self._num_threads
        self._num_threads = self._threads.count = threads
        self._feed()

    def keep_only(self, keys: set[Key]) -> None:
        """Close other loaders as soon as no thread is in them: nothing of theirs is needed."""
        self._kept = keys
        self._drop([key for key in self._loaders if not self._given[key]])

    def _drop(self, keys: Iterable[Key]) -> None:
        if self._kept is None:
            return
        for key in [key for key in keys if key not in self._kept and key[1] != STANDBY and key in self._loaders]:
            loader = self._loaders.pop(key)
            self._partitions[key[0]].remove(key[1])
            self._past.setdefault(key[0], []).append(loader.counts())
            loader.close()

    def counts(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the source and totals of each loader that prepares what was asked for."""
        for (source, partition), loader in list(self._loaders.items()):
            if partition != STANDBY:
                yield source, loader.counts()
        for source, past in list(self._past.items()):
            for counts in past:
                yield source, counts

    def stop(self) -> None:
        """Begin nothing new."""
        self._queue.clear()
        self._lacking.clear()
        if self._look is not None:
            self._look.cancel()
        for task in list(self._tasks):
            task.cancel()

    def close(self) -> None:
        """End threads and close files. On a thread that may wait; closing twice is fine."""
        self._is_closed = True
        deadline = time.monotonic() + CLOSE_S
        for threads in (self._threads, self._fetching):
            threads.shutdown(timeout_s=max(0.0, deadline - time.monotonic()))
        for key, loader in self._loaders.items():
            # A transform cannot be cut short: what a thread is still in ends with the process.
            if not self._entered[key]:
                loader.close()

    def _feed(self) -> None:
        """Hand requests to idle threads."""
        while self._num_idle and (batch := self._next_batch()):
            self._num_idle -= 1
            keys = {request[:2] for request in batch}
            self._examining.update(keys)
            self._given.update(keys)
            task = asyncio.create_task(self._examine(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next_batch(self) -> list[Request]:
        """Take requests for loaders that are free, in order: no more together than one large or long request."""
        batch: list[Request] = []
        later: list[Request] = []
        num_rows, seconds = 0, 0.0
        while self._queue and num_rows < BATCH_ROWS and seconds < BATCH_S:
            request = self._queue.popleft()
            takes_s = request[3] * self._row_s.get(request[0], 0.0)
            is_full = bool(batch) and (num_rows + request[3] > BATCH_ROWS or seconds + takes_s > BATCH_S)
            if is_full or self._examining[request[:2]] >= MOST_BATCHES:
                later.append(request)
            else:
                batch.append(request)
                num_rows += request[3]
                seconds += takes_s
        self._queue.extendleft(reversed(later))
        return batch

    async def _examine(self, batch: Sequence[Request]) -> None:
        num_decided = self._num_decided
        tables = await asyncio.get_running_loop().run_in_executor(self._threads, self._examined, batch)
        came: set[str] = set()
        for request, table in zip(batch, tables, strict=False):
            if request[1] == STANDBY:
                continue
            if isinstance(table, RowsNotHere):
                self._put_off(request, table)
                continue
            if table is None:
                self._parked.append(request)
                continue
            if request[0] in self._lacks and table.end > self._lacks[request[0]][0]:
                del self._lacks[request[0]]
                came.add(request[0])
            self._num_done += 1
            self._done.append((self._num_done, request, table))
        self._under_way.difference_update(batch)
        # Where the first rows have come others may have, too; until then nobody looks for those.
        self._ask_again([request for request in self._lacking if request[0] in came])
        if self._num_decided != num_decided:
            # Nobody may have anything more to say about rows that this batch met.
            self.unpark()
        self._num_idle += 1
        keys = {request[:2] for request in batch}
        self._examining.subtract(keys)
        self._leave(keys)
        self._feed()
        self.on_news()
        if not self._queue:
            self.on_idle()

    def _put_off(self, request: Request, lack: RowsNotHere) -> None:
        """Look later whether rows have come: no thread waits for them."""
        self._lacking[request] = lack.why
        self._lacks[request[0]] = min(self._lacks.get(request[0], (lack.ordinal, lack.why)), (lack.ordinal, lack.why))
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(min(LOOK_S, lack.poll_s), self._look_again)

    def _look_again(self) -> None:
        self._look = None
        firsts: dict[str, Request] = {}
        for request in sorted(self._lacking, key=lambda request: request[2]):
            firsts.setdefault(request[0], request)
        self._ask_again(firsts.values())

    def _ask_again(self, lacking: Iterable[Request]) -> None:
        """Look once more whether rows of these requests are there."""
        again = list(lacking)
        for request in again:
            del self._lacking[request]
        self.request(again)

    def _leave(self, keys: Iterable[Key]) -> None:
        """Note that a thread is in these loaders no more."""
        keys = list(keys)
        self._given.subtract(keys)
        self._drop([key for key in keys if not self._given[key]])

    # On threads.

    def _examined(self, batch: Sequence[Request]) -> list[MetaTable | RowsNotHere | None]:
        """Return the tables of requests, fewer if one cannot be answered: that ends the run; None for one to park.

        For one of which no row is there yet, what says so.
        """
        tables: list[MetaTable | RowsNotHere | None] = []
        for source, partition, start, num_rows in batch:
            try:
                with self._inside((source, partition)) as loader:
                    began_s = time.perf_counter()
                    tables.append(loader.examine(start, num_rows))
                    took_s = (time.perf_counter() - began_s) / max(1, num_rows)
                    self._row_s[source] = took_s * _SMOOTHING + self._row_s.get(source, took_s) * (1 - _SMOOTHING)
                    if partition == STANDBY and not self._holds_ahead:
                        loader.rest()
            except RowsKilled:
                tables.append(None)
            except RowsNotHere as lack:
                tables.append(lack)
            except BaseException as error:
                if partition == STANDBY:
                    # Whoever is asked for the row says what is wrong with it.
                    tables.append(None)
                    continue
                self.error = self._explained(error, source, start, num_rows)
                break
        return tables

    def _explained(self, error: BaseException, source: str, start: int, num_rows: int) -> Exception:
        """Return what to raise for rows that could not be examined."""
        if isinstance(error, MsdError):
            return error
        # Also what would end a process: one host after the other would meet it, and nobody could say where.
        ends = "" if isinstance(error, Exception) else "; a transform must not end the process that it runs in"
        return EngineError(
            f"loader host {self._name} failed at rows {start} to {start + num_rows} of source {source!r}: "
            f"{told(error)}{ends}"
        )

    def _slabs(self, entries: Sequence[tuple[Key, list[SampleId]]]) -> list[SampleSlab]:
        try:
            slabs = []
            for key, ids in entries:
                with self._inside(key) as loader:
                    slabs.append(loader.fetch(ids))
            return slabs
        except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            raise EngineError(
                f"loader host {self._name} failed at samples of {', '.join(sorted({key[0] for key, _ in entries}))}: "
                f"{told(error)}; a transform must not end the process that it runs in"
            ) from None

    @contextlib.contextmanager
    def _inside(self, key: Key) -> Iterator[SourceLoader]:
        """Yield a loader to the thread that it was given to."""
        with self._adding:
            self._entered[key] += 1
        try:
            if self._is_closed:
                raise ClosedError(f"loader host {self._name} was closed")
            yield self.add(*key)
        finally:
            with self._adding:
                self._entered[key] -= 1

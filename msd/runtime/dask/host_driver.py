"""The planner's side of one loader host: requests go out, metadata comes back, silence is noticed."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from msd.coordinator.commands import Examine
from msd.coordinator.events import (
    Event,
    HostJoined,
    HostLost,
    HostSilent,
    RowKilled,
    RowsEnded,
    RowsExamined,
    RowsLacking,
)
from msd.core.sample import MetaTable
from msd.errors import DeadlineError
from msd.runtime.dask.calls import ActorGone, HasRpc, Ref, call
from msd.runtime.dask.hosts import TICK_S
from msd.runtime.dask.wire import Wire, pack, tables_from_wire, unpack

BEATS = 3
"""A host that owes nothing is asked for a sign of life so often in the time after which its silence counts."""
TRIES = 2
"""In that time it is asked so often: an answer may be lost though the host is well."""


class HostDriver:
    """Drives one process of a loader host, from when it joins until it is gone."""

    def __init__(
        self,
        node: HasRpc,
        name: str,
        ref: Ref,
        *,
        term: int,
        silence_s: float,
        happened: Callable[[Event], None],
        came: Callable[[list[MetaTable]], None],
        carried: Callable[[], None],
        is_shadow: Callable[[], bool],
    ) -> None:
        """Get ready; `drive` starts.

        Args:
            node: That calls.
            name: Of the host.
            ref: Its actor.
            term: Of the planner.
            silence_s: A host that says nothing for so long is taken for lost; it may come back.
            happened: Takes events.
            came: Takes tables before they become an event.
            carried: Called when the host has carried out what it was told.
            is_shadow: Whether the host stands by for others, as far as is known now.
        """
        self.name, self.ref = name, ref
        self.replica = 0
        """Number of the newest copy of the journal that the host is known to hold."""
        self._node = node
        self._term = term
        self._silence_s = silence_s
        self._happened = happened
        self._came = came
        self._carried = carried
        self._is_shadow = is_shadow
        self._orders: dict[str, Wire] = {}
        """By what they are about: a later one takes the place of one that was not carried yet."""
        self._requests: list[list[Any]] = []
        self._releases: dict[str, int] = {}
        self._has_work = asyncio.Event()
        self._owed: set[tuple[str, int, int]] = set()
        self._is_doubted = False
        self._is_left = False
        self._rows: list[list[Any]] = []
        """Not carried yet: rows that are not run like others."""
        self._lacks: dict[str, tuple[int, str]] = {}
        """By source: the row that the host waits to be written, as it said last."""
        self._seen = 0
        """Number of the newest table that came; `_told` that of other news."""
        self._told = 0

    def examine(self, command: Examine) -> None:
        """Have rows examined."""
        self._requests.append([command.source, command.partition, command.start, command.num_rows])
        self._has_work.set()

    def abandon(self, generation: int) -> None:
        """Have what was asked before a generation left, as far as the host has not come to it."""
        self._requests.clear()
        self._owed.clear()
        self.tell("abandon", {"kind": "abandon", "generation": generation})

    def release(self, source: str, before: int) -> None:
        """Have payload let go, with whatever is said next."""
        self._releases[source] = before

    def treat(self, rows: list[Any]) -> None:
        """Tell the host of rows that are not run like others: `["avoid", ...]` or `["isolate", ...]`."""
        self._rows.append(rows)
        self._has_work.set()

    def doubt(self) -> None:
        """Take that somebody else cannot reach the host: it counts as lost until it has answered here."""
        self._is_doubted = True
        self._has_work.set()

    def tell(self, about: str, order: Wire) -> None:
        """Tell the host something; see `LoaderHost.advance`."""
        self._orders[about] = order
        self._has_work.set()

    def leave(self) -> None:
        """Have `drive` end: another process has the name. Cancelling it does not do, it may be lost.

        Until Python 3.12 `asyncio.wait_for` returns a result that came at the same moment, and is not cancelled.
        """
        self._is_left = True
        self._has_work.set()

    async def drive(self) -> None:
        """Carry what there is to carry, and notice when the host does not answer and when it does again."""
        while not self._is_left:
            with contextlib.suppress(ActorGone):
                await self._serve()
            was_shadow = self._is_shadow()
            self._say(HostLost(self.name))
            await self._answers()
            self._say(HostJoined(self.name, was_shadow))

    def _say(self, event: Event) -> None:
        if not self._is_left:
            self._happened(event)

    async def _serve(self) -> None:
        """Carry requests there and metadata back, until the host is gone, doubted, or silent for too long."""
        silences = 0
        while silences < TRIES and not self._is_doubted and not self._is_left:
            if not self._owed:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._has_work.wait(), self._silence_s / BEATS)
            requests, releases, rows, orders = self._drain()
            self._owed.update((source, start, num_rows) for source, _, start, num_rows in requests)
            asked = pack({
                "requests": requests,
                "releases": releases,
                "rows": rows,
                "orders": list(orders.values()),
                "told": self._told,
            })  # fmt: skip
            wait_s = TICK_S if self._owed else 0.0
            try:
                packed = await call(
                    self._node,
                    self.ref,
                    "advance",
                    self._term,
                    asked,
                    self._seen,
                    wait_s,
                    deadline_s=self._silence_s / TRIES,
                )
            except (DeadlineError, ActorGone) as error:
                self._releases = {**releases, **self._releases}
                self._orders = {**orders, **self._orders}
                self._rows = rows + self._rows
                if isinstance(error, ActorGone):
                    return
                silences += 1
                # What it owes is asked for once more: the request may be lost, or the answer.
                self._owed.clear()
                self._say(HostSilent(self.name))
                continue
            silences = 0
            if "replica" in orders:
                self.replica = orders["replica"]["number"]
                self._carried()
            self._take(unpack(packed))

    def _take(self, wire: Wire) -> None:
        self._seen, self._told = wire["number"], wire["news_number"]
        tables = tables_from_wire(wire)
        for table in tables:
            self._note_answered(table)
        lacks = {source: (ordinal, why) for source, ordinal, why in wire["lacks"]}
        if lacks != self._lacks:
            self._lacks = lacks
            self._happened(RowsLacking(self.name, lacks))
        for news in wire["news"]:
            self._happened(_event_of(news))
        if tables:
            self._came(tables)
            self._happened(RowsExamined(self.name, tuple(tables)))

    def _note_answered(self, table: MetaTable) -> None:
        if (exact := (table.source, table.start, table.num_rows)) in self._owed:
            self._owed.remove(exact)
            return
        # The first rows of a request, of which the others are still to come and are asked for as what they are.
        self._owed = {owed for owed in self._owed if owed[:2] != exact[:2] or owed[2] < table.num_rows}

    async def _answers(self) -> None:
        """Wait until a host that was silent answers again."""
        self._requests.clear()
        self._owed.clear()
        self._lacks = {}
        pause_s = self._silence_s / BEATS
        while not self._is_left:
            try:
                await call(self._node, self.ref, "ping", deadline_s=pause_s)
            except DeadlineError:
                continue
            except ActorGone:
                await asyncio.sleep(pause_s)
            else:
                self._is_doubted = False
                return

    def _drain(self) -> tuple[list[list[Any]], dict[str, int], list[list[Any]], dict[str, Wire]]:
        requests, self._requests = self._requests, []
        releases, self._releases = self._releases, {}
        rows, self._rows = self._rows, []
        orders, self._orders = self._orders, {}
        self._has_work.clear()
        return requests, releases, rows, orders


def _event_of(news: Wire) -> Event:
    """Return what a host has to tell of rows that ended a process."""
    if "killed" in news:
        source, ordinal = news["killed"]
        return RowKilled(source, ordinal, news["how"])
    return RowsEnded(tuple((source, ordinal) for source, ordinal in news["rows"]), news["how"])

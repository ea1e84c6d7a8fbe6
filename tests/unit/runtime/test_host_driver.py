"""The planner's side of a loader host, against one that answers, is silent, or goes."""

import asyncio
import contextlib
from typing import Any

import pytest
from fake_node import FakeNode, run

from msd.coordinator.commands import Examine
from msd.coordinator.events import HostJoined, HostLost, HostSilent, RowKilled, RowsEnded, RowsExamined, RowsLacking
from msd.runtime.dask.calls import Superseded
from msd.runtime.dask.host_driver import HostDriver
from msd.runtime.dask.wire import pack, tables_to_wire, unpack
from msd.testing.tables import row, table_of

SILENCE_S = 0.2


class Host:
    """Answers `advance` with what the test gave it; silent while it is told to be."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.seen: list[int] = []
        self.tables: list[Any] = []
        self.news: list[dict[str, Any]] = []
        self.lacks: list[list[Any]] = []
        self.speaks = asyncio.Event()
        self.speaks.set()
        self.error: Exception | None = None

    async def ping(self) -> None:
        await self.speaks.wait()

    async def advance(self, term: int, asked: Any, seen: int, wait_s: float) -> Any:
        await self.speaks.wait()
        if self.error is not None:
            raise self.error
        self.asked.append(unpack(asked))
        self.seen.append(seen)
        await asyncio.sleep(min(wait_s, 0.01))
        tables, self.tables = self.tables, []
        news, self.news = self.news, []
        told = {"number": len(self.asked), "news_number": len(news), "news": news, "lacks": self.lacks}
        return pack({**told, **tables_to_wire(tables)})


class Bench:
    """A host, its driver, and the events that came."""

    def __init__(self) -> None:
        self.node, self.host = FakeNode(), Host()
        self.ref = self.node.place(self.host, "host-e1")
        self.events: list[Any] = []
        self._changed = asyncio.Event()
        self.shadow = False
        self.driver = HostDriver(
            self.node, "h", self.ref, term=3, silence_s=SILENCE_S, happened=self._happened,
            came=lambda tables: None, carried=self._changed.set, is_shadow=lambda: self.shadow,
        )  # fmt: skip

    def _happened(self, event: Any) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, is_so: Any) -> None:
        while not is_so():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.01)
            self._changed.clear()

    @contextlib.asynccontextmanager
    async def driving(self) -> Any:
        task = asyncio.create_task(self.driver.drive())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def test_a_host_that_owes_nothing_is_asked_for_signs_of_life():
    async def work() -> None:
        bench = Bench()
        async with bench.driving():
            await bench.until(lambda: len(bench.host.asked) >= 3)
        assert bench.events == []
        assert all(asked["requests"] == [] for asked in bench.host.asked)

    run(work())


def test_requests_go_out_and_tables_and_news_come_back():
    async def work() -> None:
        bench = Bench()
        bench.driver.examine(Examine("h", "web", 1, 4, 2))
        bench.driver.release("web", 3)
        bench.driver.treat(["avoid", "web", 1, 1, "killed"])
        bench.host.tables = [table_of("web", 4, [row(3), row(5)])]
        bench.host.news = [{"rows": [["web", 9]], "how": "SIGSEGV"}, {"killed": ["web", 8], "how": "hung"}]
        async with bench.driving():
            await bench.until(lambda: len(bench.events) >= 3 and len(bench.host.seen) > 1)
        first = bench.host.asked[0]
        assert first["requests"] == [["web", 1, 4, 2]]
        assert (first["releases"], first["rows"]) == ({"web": 3}, [["avoid", "web", 1, 1, "killed"]])
        assert bench.events[:2] == [RowsEnded((("web", 9),), "SIGSEGV"), RowKilled("web", 8, "hung")]
        assert isinstance(bench.events[2], RowsExamined)
        assert bench.host.seen[:2] == [0, 1]
        assert bench.host.asked[1]["rows"] == []

    run(work())


def test_what_a_host_waits_for_is_told_once_and_again_when_it_changes():
    async def work() -> None:
        bench = Bench()
        bench.driver.examine(Examine("h", "web", 1, 4, 8))
        bench.host.lacks = [["web", 4, "files"]]
        async with bench.driving():
            await bench.until(lambda: len(bench.host.asked) >= 4)
            assert bench.events == [RowsLacking("h", {"web": (4, "files")})]
            bench.host.tables, bench.host.lacks = [table_of("web", 4, [row(3)])], []
            await bench.until(lambda: len(bench.events) >= 3)
        assert bench.events[1] == RowsLacking("h", {})
        assert isinstance(bench.events[2], RowsExamined)

    run(work())


def test_a_request_that_is_answered_in_part_is_owed_no_more():
    async def work() -> None:
        bench = Bench()
        bench.driver.examine(Examine("h", "web", 1, 4, 8))
        bench.driver.examine(Examine("h", "web", 1, 12, 8))
        bench.host.tables = [table_of("web", 4, [row(3)])]
        async with bench.driving():
            await bench.until(lambda: len(bench.events) >= 1)
        assert bench.driver._owed == {("web", 12, 8)}

    run(work())


def test_what_was_asked_before_a_generation_is_neither_sent_nor_owed():
    async def work() -> None:
        bench = Bench()
        bench.driver.examine(Examine("h", "web", 1, 4, 2))
        async with bench.driving():
            await bench.until(lambda: len(bench.host.asked) == 1)
            bench.driver.examine(Examine("h", "web", 1, 6, 2))
            bench.driver.abandon(1)
            bench.driver.examine(Examine("h", "web", 1, 90, 2))
            await bench.until(lambda: any(asked["orders"] for asked in bench.host.asked))
        (told,) = [asked for asked in bench.host.asked if asked["orders"]]
        assert told["orders"] == [{"kind": "abandon", "generation": 1}]
        assert told["requests"] == [["web", 1, 90, 2]]
        assert ["web", 1, 6, 2] not in [request for asked in bench.host.asked for request in asked["requests"]]

    run(work())


@pytest.mark.parametrize("is_shadow", [False, True])
def test_a_silent_host_is_lost_after_a_while_and_joins_again_as_what_it_was_when_it_answers(is_shadow):
    async def work() -> None:
        bench = Bench()
        bench.shadow = is_shadow
        async with bench.driving():
            await bench.until(lambda: bench.host.asked)
            bench.host.speaks.clear()
            await bench.until(lambda: HostLost("h") in bench.events)
            assert HostSilent("h") in bench.events
            bench.host.speaks.set()
            await bench.until(lambda: HostJoined("h", is_shadow) in bench.events)
            served = len(bench.host.asked)
            await bench.until(lambda: len(bench.host.asked) > served)

    run(work())


def test_what_a_silent_host_was_told_is_told_again_and_what_it_owed_is_not():
    async def work() -> None:
        bench = Bench()
        bench.host.speaks.clear()
        bench.driver.examine(Examine("h", "web", 1, 4, 2))
        bench.driver.release("web", 3)
        bench.driver.tell("replica", {"kind": "replica", "number": 7, "standing": {}})
        async with bench.driving():
            await bench.until(lambda: HostLost("h") in bench.events)
            assert bench.driver.replica == 0
            bench.host.asked.clear()
            bench.host.speaks.set()
            await bench.until(lambda: bench.driver.replica == 7)
        # Calls that were given up may still arrive; the last is what was told again.
        last = next(asked for asked in reversed(bench.host.asked) if asked["orders"])
        assert (last["requests"], last["releases"]) == ([], {"web": 3})

    run(work())


@pytest.mark.parametrize("is_silent", [False, True])
def test_who_drives_a_host_that_was_replaced_ends_and_says_nothing_of_it(is_silent):
    async def work() -> None:
        bench = Bench()
        driving = asyncio.create_task(bench.driver.drive())
        await bench.until(lambda: bench.host.asked)
        if is_silent:
            bench.host.speaks.clear()
            await bench.until(lambda: HostLost("h") in bench.events)
        told = list(bench.events)
        bench.driver.leave()
        bench.node.remove(bench.ref)
        await driving
        assert bench.events == told

    run(work())


def test_a_host_that_cannot_be_reached_is_lost_at_once_and_joins_when_it_can():
    async def work() -> None:
        bench = Bench()
        bench.node.remove(bench.ref)
        async with bench.driving():
            await bench.until(lambda: bench.events == [HostLost("h")])
            bench.node.place(bench.host, "host-e1")
            await bench.until(lambda: bench.events == [HostLost("h"), HostJoined("h")])

    run(work())


def test_a_host_that_somebody_else_cannot_reach_is_lost_until_it_has_answered():
    async def work() -> None:
        bench = Bench()
        async with bench.driving():
            await bench.until(lambda: bench.host.asked)
            bench.driver.doubt()
            await bench.until(lambda: bench.events == [HostLost("h"), HostJoined("h")])

    run(work())


def test_a_driver_ends_with_what_its_host_raises():
    async def work() -> None:
        bench = Bench()
        bench.host.error = Superseded("loader host h follows the planner of term 4")
        with pytest.raises(Superseded):
            await bench.driver.drive()

    run(work())

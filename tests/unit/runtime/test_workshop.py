"""The threads of a loader host and the loaders that they prepare rows with; and what a shadow prepares."""

import asyncio
import threading
from typing import Any

import pytest
from fake_node import run

from msd.core.order import SourceOrder
from msd.core.sample import MetaTable, SampleId
from msd.errors import EngineError, SourceError
from msd.loader.admitted import RowsNotHere
from msd.loader.poison.suspects import RowsKilled
from msd.runtime.dask.standby import MOST_FILLED, Standby
from msd.runtime.dask.workshop import MOST_BATCHES, STANDBY, Workshop
from msd.testing.fakes import list_source
from msd.testing.tables import row, table_of


class Loader:
    """Examines at once, unless the test holds it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.examined: list[tuple[int, int]] = []
        self.released: list[int] = []
        self.rested = 0
        self.gate = threading.Event()
        self.gate.set()
        self.error: BaseException | None = None
        self.missing_from: int | None = None

    def examine(self, start: int, num_rows: int) -> MetaTable:
        self.gate.wait(30)
        self.examined.append((start, num_rows))
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if self.missing_from is not None and start >= self.missing_from:
            raise lack(start)
        return table_of(self.source, start, [row(3)] * num_rows)

    def fetch(self, ids: Any) -> Any:
        return list(ids)

    def release(self, before: int) -> None:
        self.released.append(before)

    def rest(self) -> None:
        self.rested += 1

    def counts(self) -> dict[str, int]:
        return {"rows_examined": sum(count for _, count in self.examined)}

    def close(self) -> None: ...


class Bench:
    def __init__(self, **changes: Any) -> None:
        self.made: list[Loader] = []
        self.shop = Workshop("a", threads=2, make=self._make, **changes)

    def _make(self, source: str) -> Any:
        self.made.append(Loader(source))
        return self.made[-1]

    async def until(self, is_so: Any) -> None:
        while not is_so():
            await asyncio.sleep(0.002)

    @property
    def answered(self) -> list[tuple[str, int, int]]:
        return sorted((table.source, table.start, table.num_rows) for table in self.shop.answers()[1])


def on_bench(work: Any, **changes: Any) -> None:
    async def within() -> None:
        bench = Bench(**changes)
        try:
            await work(bench)
        finally:
            for loader in bench.made:
                loader.gate.set()
            bench.shop.stop()
            await asyncio.get_running_loop().run_in_executor(None, bench.shop.close)

    run(within())


def test_a_request_is_answered_once_however_often_it_comes_and_again_once_the_answer_was_seen():
    async def work(bench: Bench) -> None:
        for _ in range(3):
            bench.shop.request([("web", 0, 0, 4), ("web", 0, 0, 4)])
        await bench.until(lambda: bench.answered == [("web", 0, 4)])
        bench.shop.request([("web", 0, 0, 4)])
        assert bench.made[0].examined == [(0, 4)]
        number, _ = bench.shop.answers()
        bench.shop.seen(number)
        assert bench.shop.answers() == (number, [])
        bench.shop.request([("web", 0, 0, 4)])
        await bench.until(lambda: bench.made[0].examined == [(0, 4), (0, 4)])

    on_bench(work)


def lack(ordinal: int) -> RowsNotHere:
    return RowsNotHere("web", ordinal, 0, "files", poll_s=0.01)


def test_rows_that_are_still_to_come_are_looked_for_again_and_hold_no_thread():
    async def work(bench: Bench) -> None:
        bench.shop.add("web", 0)
        web = bench.made[0]
        web.missing_from = 4
        for _ in range(2):
            bench.shop.request([("web", 0, 0, 4), ("web", 0, 4, 4), ("web", 0, 8, 4), ("books", 0, 0, 4)])
        await bench.until(lambda: bench.answered == [("books", 0, 4), ("web", 0, 4)])
        await bench.until(lambda: web.examined.count((4, 4)) >= 3)
        assert web.examined.count((8, 4)) == 1
        assert bench.shop.lacks() == [["web", 4, "files"]]
        web.missing_from = None
        await bench.until(lambda: len(bench.answered) == 4)
        assert bench.shop.lacks() == []
        seen = len(web.examined)
        await asyncio.sleep(0.05)
        assert len(web.examined) == seen

    on_bench(work)


def test_rows_that_are_still_to_come_may_be_abandoned_and_are_no_error_to_a_shadow():
    async def work(bench: Bench) -> None:
        bench.shop.add("web", 0)
        web = bench.made[0]
        web.missing_from = 0
        bench.shop.request([("web", 0, 0, 4)])
        await bench.until(lambda: bench.shop.lacks() != [])
        bench.shop.abandon()
        assert bench.shop.lacks() == []
        seen = len(web.examined)
        await asyncio.sleep(0.05)
        assert len(web.examined) <= seen + 1
        bench.shop.request([("web", STANDBY, 0, 1)])
        await asyncio.sleep(0.05)
        assert bench.shop.error is None
        assert bench.answered == []

    on_bench(work)


def test_what_is_abandoned_is_not_begun_and_may_be_asked_again():
    async def work(bench: Bench) -> None:
        for name in ("web", "books"):
            bench.shop.add(name, 0)
        for loader in bench.made:
            loader.gate.clear()
        held = [("web", 0, 0, 64), ("books", 0, 0, 64)]
        bench.shop.request([*held, ("web", 0, 64, 8), ("web", 0, 72, 8)])
        bench.shop.abandon()
        bench.shop.request([("web", 0, 72, 8)])
        for loader in bench.made:
            loader.gate.set()
        await bench.until(lambda: len(bench.answered) == 3)
        assert bench.made[0].examined == [(0, 64), (72, 8)]

    on_bench(work)


def test_one_loader_at_work_holds_up_no_other_nor_that_its_payload_goes():
    async def work(bench: Bench) -> None:
        bench.shop.add("slow", 0)
        (slow,) = bench.made
        slow.gate.clear()
        bench.shop.request([("slow", 0, 0, 64), ("fast", 0, 0, 4)])
        await bench.until(lambda: bench.answered == [("fast", 0, 4)])
        bench.shop.release("slow", 9)
        assert slow.released == [9]

    on_bench(work)


def test_a_fetch_waits_for_nothing_that_is_examined():
    async def work(bench: Bench) -> None:
        bench.shop.add("web", 0)
        (loader,) = bench.made
        loader.gate.clear()
        bench.shop.request([("web", 0, 0, 4)])
        assert await bench.shop.fetch({("web", 0): [SampleId("web", 1, 0)]}) == [[SampleId("web", 1, 0)]]
        assert bench.answered == []
        loader.gate.set()
        await bench.until(lambda: bench.answered == [("web", 0, 4)])

    on_bench(work)


def test_the_next_batch_of_a_loader_begins_before_the_one_before_has_ended_and_not_all_at_once():
    async def work(bench: Bench) -> None:
        bench.shop.resize(8)
        bench.shop.add("web", 0)
        (loader,) = bench.made
        loader.gate.clear()
        bench.shop.request([("web", 0, 64 * number, 64) for number in range(8)])
        await bench.until(lambda: bench.shop._entered["web", 0] == MOST_BATCHES)
        await asyncio.sleep(0.02)
        assert bench.shop._entered["web", 0] == MOST_BATCHES
        loader.gate.set()
        await bench.until(lambda: len(bench.answered) == 8)

    on_bench(work)


@pytest.mark.parametrize(("raised", "kind", "text"), [
    (SourceError("the shard is damaged"), SourceError, "the shard is damaged"),
    (ValueError("odd"), EngineError, "loader host a failed at rows 0 to 4 of source 'web': ValueError: odd"),
    (SystemExit(3), EngineError, "a transform must not end the process that it runs in"),
])  # fmt: skip
def test_what_ends_the_work_of_a_host_says_where(raised, kind, text):
    async def work(bench: Bench) -> None:
        bench.shop.add("web", 0)
        bench.made[0].error = raised
        bench.shop.request([("web", 0, 0, 4)])
        await bench.until(lambda: bench.shop.error is not None)
        assert isinstance(bench.shop.error, kind)
        assert text in str(bench.shop.error)

    on_bench(work)


def test_a_request_with_a_row_that_was_killed_waits_until_it_is_known_what_it_is_answered_with():
    async def work(bench: Bench) -> None:
        bench.shop.add("web", 0)
        bench.made[0].error = RowsKilled([])
        bench.shop.request([("web", 0, 0, 4)])
        await bench.until(lambda: bench.made[0].examined)
        await asyncio.sleep(0.01)
        assert (bench.answered, bench.shop.error) == ([], None)
        bench.shop.unpark()
        await bench.until(lambda: bench.answered == [("web", 0, 4)])

    on_bench(work)


def test_what_is_decided_of_a_killed_row_before_its_batch_has_left_its_thread_is_not_missed():
    async def work(bench: Bench) -> None:
        bench.shop.add("web", 0)
        (loader,) = bench.made
        loader.error = RowsKilled([])
        loader.gate.clear()
        bench.shop.request([("web", 0, 0, 4)])
        await bench.until(lambda: bench.shop._entered)
        bench.shop.unpark()
        loader.gate.set()
        await bench.until(lambda: bench.answered == [("web", 0, 4)])

    on_bench(work)


@pytest.mark.parametrize("holds_ahead", [False, True])
def test_what_stands_by_is_told_of_by_nobody_and_becomes_the_loader_of_what_is_asked_first(holds_ahead):
    async def work(bench: Bench) -> None:
        bench.shop.request([("web", STANDBY, 7, 1)])
        await bench.until(lambda: bench.made and bench.made[0].examined == [(7, 1)])
        await bench.until(lambda: bench.made[0].rested == (0 if holds_ahead else 1))
        assert (bench.answered, list(bench.shop.counts())) == ([], [])
        await bench.until(lambda: not bench.shop._given.total())
        bench.shop.request([("web", 3, 8, 2), ("web", 4, 20, 2)])
        await bench.until(lambda: bench.answered == [("web", 8, 2), ("web", 20, 2)])
        assert [loader.examined for loader in bench.made] in (
            [[(7, 1), (8, 2)], [(20, 2)]],
            [[(7, 1), (20, 2)], [(8, 2)]],
        )

    on_bench(work, holds_ahead=holds_ahead)


def test_what_is_wrong_with_rows_that_nobody_asked_for_ends_nothing():
    async def work(bench: Bench) -> None:
        bench.shop.add("web", STANDBY)
        bench.made[0].error = SourceError("the shard is damaged")
        bench.shop.request([("web", STANDBY, 0, 1)])
        await bench.until(lambda: bench.made[0].examined)
        await bench.until(lambda: not bench.shop._given.total())
        assert bench.shop.error is None

    on_bench(work)


def order(name: str, num_rows: int) -> SourceOrder:
    blocks, _ = list_source([{"n": n} for n in range(num_rows)], rows_per_block=100)
    return SourceOrder(seed=1, source=name, blocks=blocks, shuffle=True, window_blocks=1)


ORDERS = {"web": order("web", 300), "books": order("books", 300), "none": order("none", 0)}


def prepared(standby: Standby) -> list[tuple[str, int, int]]:
    found = []
    while (ahead := standby.next()) is not None:
        found.append(ahead)
    return found


def test_a_shadow_tries_the_first_row_of_each_source_once():
    standby = Standby(ORDERS, fills=False)
    assert prepared(standby) == []
    standby.follow({"web": 5, "books": 0, "none": 0})
    assert sorted(prepared(standby)) == [("books", 0, 1), ("web", 5, 1)]
    standby.follow({"web": 50, "books": 30, "none": 0})
    assert prepared(standby) == []


def test_a_shadow_that_fills_prepares_rows_ahead_of_the_run_without_crossing_windows():
    standby = Standby(ORDERS, fills=True)
    standby.follow({"web": 90, "books": 0, "none": 0})
    found = [(start, count) for source, start, count in prepared(standby) if source == "web"]
    assert found[:4] == [(90, 1), (91, 9), (100, 64), (164, 36)]
    assert sum(count for _, count in found) >= MOST_FILLED
    standby.follow({"web": 250, "books": 0, "none": 0})
    assert sum(count for source, _, count in prepared(standby) if source == "web") >= 64


def test_a_shadow_that_was_left_behind_goes_on_where_the_run_stands():
    standby = Standby(ORDERS, fills=True)
    standby.follow({"web": 0})
    prepared(standby)
    standby.follow({"web": 2000})
    assert standby.next() == ("web", 2000, 64)


def test_a_host_that_owns_rows_stands_by_for_nothing():
    standby = Standby(ORDERS, fills=True)
    standby.follow({"web": 0})
    standby.follow({})
    assert standby.next() is None


def test_loaders_without_a_seat_are_closed_once_no_thread_is_in_them_and_their_totals_stay():
    async def work() -> None:
        bench = Bench()
        bench.shop.add("web", 0)
        bench.shop.add("web", 1)
        bench.made[1].gate.clear()
        bench.shop.request([("web", 0, 0, 2)])
        await bench.until(lambda: bench.answered == [("web", 0, 2)])
        bench.shop.request([("web", 1, 8, 3)])
        await bench.until(lambda: bench.shop._entered["web", 1] == 1)
        bench.shop.keep_only({("web", 2)})
        assert ("web", 0) not in bench.shop._loaders
        assert ("web", 1) in bench.shop._loaders, "a thread is in it"
        bench.made[1].gate.set()
        await bench.until(lambda: ("web", 1) not in bench.shop._loaders)
        totals = [counts["rows_examined"] for _, counts in bench.shop.counts()]
        assert sorted(totals) == [2, 3]

    run(work())


def test_more_threads_begin_with_what_waits():
    async def work() -> None:
        bench = Bench()
        for partition in range(3):
            bench.shop.add("web", partition)
            bench.made[partition].gate.clear()
        bench.shop.request([("web", partition, 64 * partition, 64) for partition in range(3)])
        await bench.until(lambda: bench.shop._entered.total() == 2)
        bench.shop.resize(3)
        await bench.until(lambda: bench.shop._entered.total() == 3)
        for loader in bench.made:
            loader.gate.set()
        await bench.until(lambda: len(bench.answered) == 3)

    run(work())

"""Hosts and constructors that come and go while one planner drives them."""

import asyncio
from typing import Any

import pytest
from fake_node import FakeNode, run

from msd.coordinator.commands import Journal
from msd.coordinator.events import (
    ConstructorJoined,
    ConstructorLost,
    HostJoined,
    HostLost,
    Journalled,
    NotJournalled,
)
from msd.core.journal import Suspend
from msd.errors import DeadlineError, EngineError
from msd.runtime.dask.calls import Ref
from msd.runtime.dask.crew import Crew
from msd.runtime.dask.journalling import Journalling
from msd.runtime.dask.tasks import Tasks
from msd.runtime.dask.wire import pack, tables_to_wire, unpack

EDIT = Suspend(at_step=4, source="web")


class Host:
    def __init__(self) -> None:
        self.told: list[Any] = []
        self.rows: list[Any] = []

    async def ping(self) -> None: ...

    async def advance(self, term: int, asked: Any, seen: int, wait_s: float) -> Any:
        plain = unpack(asked)
        self.told += plain["orders"]
        self.rows += plain["rows"]
        return pack({"number": 0, "news_number": 0, "news": [], "lacks": [], **tables_to_wire([])})


class Constructor:
    def __init__(self) -> None:
        self.done: list[Any] = []
        self.calls: list[tuple[int, int]] = []
        self.lose_answers = 0

    async def perform(self, term: int, first: int, orders: Any) -> None:
        self.calls.append((term, first))
        self.done += unpack(orders)[len(self.done) - first :]
        if self.lose_answers:
            self.lose_answers -= 1
            await asyncio.sleep(60)


class Bench:
    def __init__(self) -> None:
        self.node = FakeNode()
        self.events: list[Any] = []
        self.tasks = Tasks(self.events.append)
        self.crew = Crew(
            self.node, self.tasks, term=2, silence_s=0.2, happened=self.events.append, came=lambda tables: None,
            is_shadow=lambda name: False,
        )  # fmt: skip

    async def until(self, is_so: Any) -> None:
        while not is_so():
            await asyncio.sleep(0.005)

    def host(self, key: str = "host-e1", address: str = "a") -> tuple[Host, Ref]:
        host = Host()
        return host, self.node.place(host, key, address)

    def constructor(self, key: str = "constructor-e1", address: str = "c") -> tuple[Constructor, Ref]:
        constructor = Constructor()
        return constructor, self.node.place(constructor, key, address)


def on_bench(work: Any) -> None:
    async def within() -> None:
        bench = Bench()
        try:
            await work(bench)
        finally:
            bench.tasks.cancel()

    run(within())


def test_a_host_joins_once_and_another_process_of_it_takes_its_place():
    async def work(bench: Bench) -> None:
        _, first = bench.host()
        _, second = bench.host("host-e2", "b")
        bench.crew.host_joined("h", first, False)
        bench.crew.host_joined("h", first, False)
        assert bench.events == [HostJoined("h", False)]
        bench.crew.host_joined("h", second, True)
        bench.crew.host_gone("h", first.key)
        assert bench.events[1:] == [HostLost("h"), HostJoined("h", True)]
        assert bench.crew.hosts["h"].ref == second

    on_bench(work)


def test_word_of_a_process_that_was_replaced_comes_too_late():
    async def work(bench: Bench) -> None:
        older, newer = bench.host()[1], bench.host("host-e2", "b")[1]
        bench.crew.host_joined("h", newer, False)
        bench.crew.host_joined("h", older, False)
        assert bench.crew.hosts["h"].ref == newer
        bench.crew.host_gone("h", newer.key)
        bench.crew.host_joined("h", older, False)
        bench.crew.host_joined("h", newer, False)
        assert bench.events == [HostJoined("h", False), HostLost("h")]
        assert bench.crew.keys == []

    on_bench(work)


def test_a_process_of_which_it_is_heard_first_that_it_is_gone_and_then_that_it_came_does_not_come():
    async def work(bench: Bench) -> None:
        first, second = bench.constructor()[1], bench.constructor("constructor-e2")[1]
        bench.crew.constructor_gone("c", first.key)
        bench.crew.constructor_joined("c", first)
        assert bench.events == []
        bench.crew.constructor_joined("c", second)
        assert bench.crew.keys == [second.key]

    on_bench(work)


def test_a_lost_worker_takes_everybody_in_it_along_and_nobody_else():
    async def work(bench: Bench) -> None:
        bench.crew.add_host("h", bench.host()[1])
        bench.crew.add_constructor("near", bench.constructor("near-e1", "a")[1])
        bench.crew.add_constructor("far", bench.constructor("far-e1", "b")[1])
        bench.crew.worker_gone("a")
        assert bench.events == [HostLost("h"), ConstructorLost("near")]
        assert list(bench.crew.constructors) == ["far"]

    on_bench(work)


def test_a_constructor_in_the_place_of_another_begins_with_nothing_told():
    async def work(bench: Bench) -> None:
        first, ref = bench.constructor()
        bench.crew.add_constructor("c", ref)
        bench.crew.tell_constructor("c", {"kind": "one"})
        await bench.until(lambda: first.done)
        bench.crew.constructor_gone("c", ref.key)
        bench.crew.tell_constructor("c", {"kind": "two"})
        second, ref = bench.constructor("constructor-e2")
        bench.crew.constructor_joined("c", ref)
        bench.crew.tell_constructor("c", {"kind": "three"})
        await bench.until(lambda: second.done)
        assert bench.events == [ConstructorLost("c"), ConstructorJoined("c")]
        assert (second.done, second.calls[0]) == ([{"kind": "three"}], (2, 0))

    on_bench(work)


def test_orders_whose_answer_was_lost_are_carried_again_under_the_same_numbers():
    async def work(bench: Bench) -> None:
        constructor, ref = bench.constructor()
        constructor.lose_answers = 1
        bench.crew.add_constructor("c", ref)
        for kind in ("one", "two"):
            bench.crew.tell_constructor("c", {"kind": kind})
        await bench.crew.settled()
        assert constructor.done == [{"kind": "one"}, {"kind": "two"}]
        assert constructor.calls == [(2, 0), (2, 0)]

    on_bench(work)


def test_a_host_that_joins_hears_what_the_others_were_told():
    async def work(bench: Bench) -> None:
        bench.crew.replicate({"generation": 0})
        bench.crew.treat(["avoid", "web", 1, 2, "killed"])
        bench.crew.treat(["avoid", "web", 1, 2, "killed"])
        host, ref = bench.host()
        bench.crew.host_joined("h", ref, False)
        await bench.until(lambda: host.told and host.rows)
        assert [order["standing"] for order in host.told] == [{"generation": 0}]
        assert host.rows == [["avoid", "web", 1, 2, "killed"]]

    on_bench(work)


def test_whoever_asks_from_a_constructor_is_known_once_it_has_joined_and_not_once_it_was_replaced():
    async def work(bench: Bench) -> None:
        _, first = bench.constructor()
        knowing = asyncio.create_task(bench.crew.knows("c", first.key, deadline_s=30))
        await asyncio.sleep(0)
        bench.crew.constructor_joined("c", first)
        await knowing
        bench.crew.constructor_joined("c", bench.constructor("constructor-e2")[1])
        with pytest.raises(EngineError, match="c was replaced; ask where the rank is served now"):
            await bench.crew.knows("c", first.key, deadline_s=0.05)

    on_bench(work)


def test_an_edit_is_durable_when_a_host_holds_the_copy_that_tells_of_it():
    async def work(bench: Bench) -> None:
        written: list[Any] = []
        journalling = Journalling(bench.crew, keep=written.append, happened=bench.events.append, deadline_s=30)
        bench.tasks.spawn(journalling.run())
        bench.crew.replicate({"edits": []})
        bench.crew.add_host("h", bench.host()[1])
        await bench.crew.replicated()
        bench.crew.worker_gone("a")
        journalling.put(Journal(1, EDIT))
        bench.crew.replicate({"edits": ["it"]})
        await asyncio.sleep(0.05)
        assert bench.events == [HostLost("h")]
        host, ref = bench.host("host-e2", "b")
        bench.crew.host_joined("h", ref, False)
        await journalling.settled(1)
        assert bench.events[-1] == Journalled(1)
        assert host.told[-1]["standing"] == {"edits": ["it"]}
        assert (journalling.num_done, written) == (1, [EDIT])

    on_bench(work)


def test_an_edit_that_reaches_no_host_in_time_is_refused():
    async def work(bench: Bench) -> None:
        journalling = Journalling(bench.crew, keep=None, happened=bench.events.append, deadline_s=0.05)
        bench.tasks.spawn(journalling.run())
        journalling.put(Journal(1, EDIT))
        bench.crew.replicate({"edits": ["it"]})
        with pytest.raises(DeadlineError, match=r"the edit of step 4 reached no loader host within 0\.05 s"):
            await journalling.settled(1)
        (event,) = bench.events
        assert isinstance(event, NotJournalled)
        assert event.number == 1

    on_bench(work)


def test_an_edit_that_cannot_be_written_is_refused_and_the_next_one_is_not():
    async def work(bench: Bench) -> None:
        def keep(edit: Any) -> None:
            if edit == EDIT:
                raise EngineError("no space is left at ckpt")

        journalling = Journalling(bench.crew, keep=keep, happened=bench.events.append, deadline_s=30)
        bench.tasks.spawn(journalling.run())
        bench.crew.add_host("h", bench.host()[1])
        journalling.put(Journal(1, EDIT))
        journalling.put(Journal(2, Suspend(at_step=5, source="web")))
        bench.crew.replicate({"edits": ["both"]})
        with pytest.raises(EngineError, match="no space is left at ckpt"):
            await journalling.settled(1)
        await journalling.settled(2)
        assert [type(event) for event in bench.events] == [NotJournalled, Journalled]

    on_bench(work)

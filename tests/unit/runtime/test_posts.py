"""Who missed what the supervisor told is told once more."""

import asyncio
from types import SimpleNamespace
from typing import Any

from fake_node import FakeNode, run

from msd.coordinator.staff import Fill, Kind, Worker
from msd.coordinator.standing import Standing
from msd.runtime.dask.calls import Ref
from msd.runtime.dask.posts import Posts
from msd.runtime.dask.tasks import Tasks

STANDING = Standing(generation=0, first_step=0, start={"step": 0}, digest="d")


class Holder:
    """Of any post: remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    async def begin(self, planner: Ref, epoch: int, hosts: dict[str, Ref]) -> str:
        self.told.append(("begin", planner.key, epoch))
        return "here"

    async def standing(self, term: int) -> None: ...

    async def host_joined(self, name: str, ref: Ref, is_shadow: bool) -> None:
        self.told.append(("host_joined", name, ref.key, is_shadow))

    async def constructor_joined(self, name: str, ref: Ref) -> None:
        self.told.append(("constructor_joined", name, ref.key))


class Bench:
    def __init__(self) -> None:
        self.node, self.errors, self.happened = FakeNode(), [], []
        self.published: list[Any] = []
        registry: Any = SimpleNamespace(publish=lambda ranks, place: self.published.append((ranks, place)))
        run_: Any = SimpleNamespace(standing=None)
        pinging: Any = None
        self.posts = Posts(
            run_,
            registry,
            pinging,
            Tasks(self.errors.append),
            happened=self.happened.append,
            stands_by=lambda post: False,
            folder=None,
            listen=None,
            silence_s=0.5,
        )
        self.posts._client = self.node
        self.posts.served = {"constructor-0": (0, 1)}
        self.planner = self.holds("planner", "planner", epoch=2)
        self.constructor = self.holds("constructor-0", "constructor")
        self.host = self.holds("a", "host")

    def holds(self, post: str, kind: Kind, epoch: int = 1) -> Holder:
        holder, worker = Holder(), Worker(post, f"tcp://{post}", "h")
        fill = Fill(post, kind, epoch, worker)
        self.posts._held[post] = fill, self.node.place(holder, f"{post}-e{epoch}", worker.address)
        return holder

    async def settled(self) -> None:
        while self.posts._tasks._tasks:
            await asyncio.sleep(0.005)


def answer_of(planner: str, *hosts: str) -> dict[str, Any]:
    return {"follows": planner, "hosts": list(hosts)}


def test_a_constructor_that_follows_a_planner_that_was_replaced_hears_of_the_present_one():
    async def work() -> None:
        bench = Bench()
        fill = bench.posts._held["constructor-0"][0]
        bench.posts._heard_of(fill, answer_of("planner-e1", "a-e1"))
        await bench.settled()
        assert bench.constructor.told == [], "it may be on its way"
        bench.posts._heard_of(fill, answer_of("planner-e1", "a-e1"))
        await bench.settled()
        assert bench.constructor.told == [("begin", "planner-e2", 2)]
        assert bench.published == [((0, 1), "here")]
        for _ in range(2):
            bench.posts._heard_of(fill, answer_of("planner-e2", "a-e1", "gone-e1"))
        await bench.settled()
        assert len(bench.constructor.told) == 1

    run(work())


def test_a_constructor_that_missed_that_another_process_of_a_host_came_hears_of_it():
    async def work() -> None:
        bench = Bench()
        fill = bench.posts._held["constructor-0"][0]
        bench.holds("a", "host", epoch=2)
        for _ in range(2):
            bench.posts._heard_of(fill, answer_of("planner-e2", "a-e1"))
        await bench.settled()
        assert bench.constructor.told == [("begin", "planner-e2", 2)]

    run(work())


def test_whoever_plans_next_hears_how_long_the_planner_before_it_had_waited():
    async def work() -> None:
        bench = Bench()
        bench.posts._copy, bench.posts._journal = STANDING, (2, [0, 0])
        told = {"drained": [], "term": 2, "news": [], "journal": [0, 0], "crew": []}
        bench.posts._heard({**told, "stall": ["web", 31, 4.5]})
        standing = await bench.posts.standing(3)
        assert (standing.stall.source, standing.stall.ordinal) == ("web", 31)
        assert standing.stall.waited_s >= 4.5
        bench.posts._heard({**told, "stall": None, "drained": []})
        assert (await bench.posts.standing(4)).stall is None

    run(work())


def test_a_planner_that_missed_who_joined_hears_of_it():
    async def work() -> None:
        bench = Bench()
        bench.posts._tell_missed({"a-e1"})
        await bench.settled()
        assert bench.planner.told == []
        bench.posts._tell_missed({"a-e1"})
        await bench.settled()
        assert bench.planner.told == [("constructor_joined", "constructor-0", "constructor-0-e1")]
        for _ in range(2):
            bench.posts._tell_missed({"constructor-0-e1"})
        await bench.settled()
        assert bench.planner.told[1:] == [("host_joined", "a", "a-e1", False)]

    run(work())

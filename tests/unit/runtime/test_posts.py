"""Who missed what the supervisor told is told once more."""

import asyncio
from types import SimpleNamespace
from typing import Any

from fake_node import FakeNode, run

from msd.coordinator.roster import Fill, Kind, Worker
from msd.runtime.dask.calls import Ref
from msd.runtime.dask.posts import Posts
from msd.runtime.dask.tasks import Tasks


class Holder:
    """Of any post: remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    async def begin(self, planner: Ref, epoch: int, hosts: dict[str, Ref]) -> str:
        self.told.append(("begin", planner.key, epoch))
        return "here"

    async def host_joined(self, name: str, ref: Ref, is_shadow: bool) -> None:
        self.told.append(("host_joined", name, ref.key, is_shadow))

    async def constructor_joined(self, name: str, ref: Ref) -> None:
        self.told.append(("constructor_joined", name, ref.key))


class Bench:
    def __init__(self) -> None:
        self.node, self.errors = FakeNode(), []
        self.published: list[Any] = []
        registry: Any = SimpleNamespace(publish=lambda ranks, place: self.published.append((ranks, place)))
        run_: Any = SimpleNamespace(standing=None)
        pinging: Any = None
        self.posts = Posts(run_, registry, pinging, Tasks(self.errors.append), listen=None, silence_s=0.5)
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


def test_a_constructor_that_follows_a_planner_that_was_replaced_hears_of_the_present_one():
    async def work() -> None:
        bench = Bench()
        fill = bench.posts._held["constructor-0"][0]
        bench.posts._heard_of(fill, {"follows": "planner-e1"})
        await bench.settled()
        assert bench.constructor.told == [], "it may be on its way"
        bench.posts._heard_of(fill, {"follows": "planner-e1"})
        await bench.settled()
        assert bench.constructor.told == [("begin", "planner-e2", 2)]
        assert bench.published == [((0, 1), "here")]
        bench.posts._heard_of(fill, {"follows": "planner-e2"})
        bench.posts._heard_of(fill, {"follows": "planner-e2"})
        await bench.settled()
        assert len(bench.constructor.told) == 1

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

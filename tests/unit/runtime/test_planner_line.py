"""A constructor's way to a planner that is lost, frozen or replaced."""

import asyncio
from typing import Any

import pytest
from fake_node import FakeNode, run

from msd.errors import ConfigError
from msd.runtime.dask.calls import Superseded
from msd.runtime.dask.planner_line import PlannerAway, PlannerLine


class Planner:
    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name = name
        self.error = error
        self.asked = asyncio.Event()
        self.speaks = asyncio.Event()
        self.speaks.set()

    async def which(self, what: str) -> str:
        self.asked.set()
        await self.speaks.wait()
        if self.error is not None:
            raise self.error
        return f"{self.name} {what}"


def line_to(node: FakeNode, planner: Any, key: str = "planner-e1", address: str = "a") -> PlannerLine:
    line = PlannerLine(node)
    line.follow(node.place(planner, key, address))
    return line


def test_who_asks_before_there_is_a_planner_waits_for_one():
    async def work() -> None:
        node = FakeNode()
        line = PlannerLine(node)
        assert line.is_away
        asking = asyncio.create_task(line.ask("which", "step"))
        await asyncio.sleep(0)
        line.follow(node.place(Planner("first"), "planner-e1"))
        assert await asking == "first step"
        assert not line.is_away

    run(work())


@pytest.mark.parametrize("how", ["frozen", "gone", "superseded"])
def test_what_was_asked_of_a_planner_that_went_is_asked_of_the_next(how):
    async def work() -> None:
        node, first = FakeNode(), Planner("first", Superseded("replaced") if how == "superseded" else None)
        if how == "frozen":
            first.speaks.clear()
        line = line_to(node, first)
        if how == "gone":
            node.actors.clear()
        asking = asyncio.create_task(line.ask("which", "step"))
        if how != "gone":
            await first.asked.wait()
        line.follow(node.place(Planner("second"), "planner-e2", "b"))
        assert await asking == "second step"

    run(work())


def test_a_planner_that_could_not_be_reached_for_a_moment_is_asked_again():
    async def work() -> None:
        node = FakeNode()
        line = line_to(node, Planner("first"))
        (at,) = node.actors
        actor = node.actors.pop(at)
        asking = asyncio.create_task(line.ask("which", "step"))
        while not line.is_away:
            await asyncio.sleep(0)
        node.actors[at] = actor
        assert await asking == "first step"
        assert not line.is_away

    run(work())


def test_what_the_planner_raises_is_raised():
    async def work() -> None:
        line = line_to(FakeNode(), Planner("first", ConfigError("no such step")))
        with pytest.raises(ConfigError, match="no such step"):
            await line.ask("which", "step")

    run(work())


@pytest.mark.parametrize("how", ["frozen", "gone"])
def test_a_limit_ends_the_wait_for_a_planner_and_says_why(how):
    async def work() -> None:
        node, planner = FakeNode(), Planner("first")
        planner.speaks.clear()
        line = line_to(node, planner)
        if how == "gone":
            node.actors.clear()
        why = "has not answered 'which'" if how == "frozen" else "cannot be reached"
        with pytest.raises(PlannerAway, match=f"no planner has answered 'which' within 0.1 s: planner-e1 at a {why}"):
            await line.ask("which", "step", limit_s=0.1)

    run(work())


def test_a_lost_worker_is_told_only_if_it_is_the_planners():
    async def work() -> None:
        line = line_to(FakeNode(), Planner("first"))
        line.worker_gone("b")
        assert not line.is_away
        line.worker_gone("a")
        assert line.is_away

    run(work())


def test_a_thread_of_a_process_that_is_ending_hears_that_no_planner_can_be_asked():
    loop = asyncio.new_event_loop()
    line = line_to(FakeNode(), Planner("first"))
    loop.close()
    with pytest.raises(PlannerAway, match="'which' was not asked: this process is ending"):
        line.ask_from_thread(loop, "which", "step", limit_s=0.1)

"""What a constructor says of itself, to the planner that it follows."""

import asyncio
import threading
from typing import Any

from fake_node import run

from msd.runtime.dask.attendance import Attendance
from msd.runtime.dask.calls import Fence, Ref
from msd.runtime.dask.reporting import Reporting


class Shelf:
    generation, nbytes, held_steps = 0, 10, [4, 5]

    def positions(self) -> dict[int, Any]:
        return {}


class Line:
    """To a planner that hears everything."""

    def __init__(self) -> None:
        self.ref = Ref("planner-e1", "p", "planner")
        self.heard: list[tuple[Any, ...]] = []

    async def ask(self, method: str, *args: Any) -> None:
        self.heard.append((method, *args))


class Bench:
    """A constructor with rank 0 in session 3, which has taken steps up to 2."""

    def __init__(self) -> None:
        self.shelf, self.line, self.attendance, self.fence = Shelf(), Line(), Attendance(), Fence("c")
        self.fence.admit(1)
        shelf: Any = self.shelf
        line: Any = self.line
        condition = threading.Condition()
        self.reporting = Reporting("c", line, shelf, self.attendance, condition, self.fence)
        self.attendance.arrive(0, "loop", session=3, generation=0, first_step=3, num_loads=0, stated=None)

    async def reported(self) -> list[Any]:
        """Return what is said next: the term, and of each rank its session, the step it asks for, what it lacks."""
        self.reporting.anew()
        for _ in range(5):
            await asyncio.sleep(0)
        method, _, _, term, _, asked, *_ = self.line.heard[-1]
        assert method == "report"
        return [term, *asked]


def on_bench(work: Any) -> None:
    async def within() -> None:
        bench = Bench()
        task = asyncio.create_task(bench.reporting.run("c-e1"))
        try:
            await work(bench)
        finally:
            task.cancel()

    run(within())


def test_what_a_rank_lacks_is_said_once_it_fetches_and_counts_what_is_held_for_it():
    async def work(bench: Bench) -> None:
        assert await bench.reported() == [1, [0, 3, 3, None]]
        bench.attendance.fetches(0, 0, 5)
        assert await bench.reported() == [1, [0, 3, 3, 6]]

    on_bench(work)


def test_what_comes_under_a_planner_changes_nothing_in_what_came_before_it():
    async def work(bench: Bench) -> None:
        bench.attendance.fetches(0, 0, 5)
        await bench.reported()
        bench.shelf.held_steps = [5, 6, 7]
        bench.attendance.asks(0, 0, 5)
        assert await bench.reported() == [1, [0, 3, 5, 6]]
        bench.fence.admit(2)
        assert await bench.reported() == [2, [0, 3, 5, 8]]
        bench.shelf.generation = 1
        assert await bench.reported() == [2], "it has not come to the new generation"

    on_bench(work)

"""How a constructor fetches what its steps lack while hosts move, fail and come back."""

import asyncio
import threading
from typing import Any

import numpy as np
from fake_node import FakeNode, run

from msd.constructor.constructor import DataConstructor
from msd.constructor.shelf import Shelf
from msd.core.mesh import Mesh
from msd.core.sample import Sample, SampleId, SampleSlab
from msd.errors import SourceError
from msd.planner.planner import Planner
from msd.runtime.dask.calls import Fence, Ref, Superseded
from msd.runtime.dask.gathering import Gathering
from msd.runtime.dask.tasks import Tasks
from msd.runtime.dask.wire import slab_to_wire, unpack
from msd.testing.tables import feed_of, row, settings_of, steps_of

ROWS = {"web": [row(20), row(31), row(5)] * 30}


def _plan() -> Any:
    settings = settings_of(ROWS, mesh=Mesh.of(dp=1), num_microbatches=1)
    return next(steps_of(Planner(settings), feed_of(ROWS, settings)))


PLAN = _plan()


class Host:
    def __init__(self, errors: Any = ()) -> None:
        self.fetches: list[int] = []
        self.errors = list(errors)
        self.speaks = asyncio.Event()
        self.speaks.set()

    async def fetch(self, term: int, wanted: Any, pixels: bool) -> Any:
        self.fetches.append(term)
        await self.speaks.wait()
        if self.errors:
            raise self.errors.pop(0)
        ids = [SampleId(source, *place) for source, _, places in unpack(wanted) for place in places]
        lengths = {i: ROWS["web"][i.ordinal % 90].parts[0].num_tokens for i in ids}
        return slab_to_wire(SampleSlab.of([Sample(id=i, tokens_T=np.zeros(lengths[i], dtype=np.int32)) for i in ids]))


class Bench:
    def __init__(self) -> None:
        self.node, self.fence = FakeNode(), Fence("constructor")
        self.fence.admit(1)
        self.shelf = Shelf(DataConstructor(pad_token_id=0), (0,))
        self.tasks = Tasks(self.problem)
        self.problems: list[Any] = []
        self.gathering = Gathering(
            self.node, self.shelf, threading.Condition(), self.tasks, self.fence, deadline_s=30, doubt_s=0.05,
            doubt=lambda host, ref: self.problems.append((host, ref)), failed=self.problem,
        )  # fmt: skip

    def problem(self, error: Exception) -> None:
        self.problems.append(error)

    def assign(self, host: str, version: int) -> None:
        owners = {"web": {i.ordinal: (host, 0) for i in PLAN.sample_ids()}}
        assert self.shelf.assign(0, PLAN, owners, version)
        self.gathering.gather(0, PLAN.step)

    async def until(self, is_so: Any) -> None:
        while not is_so():
            await asyncio.sleep(0.005)

    @property
    def is_whole(self) -> bool:
        return self.shelf.is_ready(PLAN.step, 0)


def on_bench(work: Any) -> None:
    async def within() -> None:
        bench = Bench()
        try:
            await work(bench)
        finally:
            bench.tasks.cancel()

    run(within())


def test_a_step_is_fetched_from_its_owner_in_one_call():
    async def work(bench: Bench) -> None:
        host = Host()
        bench.gathering.hosts_are({"a": bench.node.place(host, "a-e1")})
        bench.assign("a", 1)
        await bench.until(lambda: bench.is_whole)
        assert host.fetches == [1]

    on_bench(work)


def test_rows_that_moved_are_fetched_from_their_new_owner_and_the_old_one_is_not_waited_for():
    async def work(bench: Bench) -> None:
        frozen, other = Host(), Host()
        frozen.speaks.clear()
        bench.gathering.hosts_are({"a": bench.node.place(frozen, "a-e1"), "b": bench.node.place(other, "b-e1")})
        bench.assign("a", 1)
        await bench.until(lambda: frozen.fetches)
        bench.assign("b", 2)
        await bench.until(lambda: bench.is_whole)
        assert bench.problems == []

    on_bench(work)


def test_a_host_in_a_new_process_is_asked_for_what_the_old_one_owed():
    async def work(bench: Bench) -> None:
        frozen, again = Host(), Host()
        frozen.speaks.clear()
        bench.gathering.hosts_are({"a": bench.node.place(frozen, "a-e1")})
        bench.assign("a", 1)
        await bench.until(lambda: frozen.fetches)
        bench.gathering.hosts_are({"a": bench.node.place(again, "a-e2")})
        await bench.until(lambda: bench.is_whole)

    on_bench(work)


def test_a_host_that_is_not_known_yet_is_asked_when_it_is():
    async def work(bench: Bench) -> None:
        bench.assign("a", 1)
        await asyncio.sleep(0)
        bench.gathering.hosts_are({"a": bench.node.place(Host(), "a-e1")})
        await bench.until(lambda: bench.is_whole)

    on_bench(work)


def test_a_host_that_cannot_be_reached_for_some_time_is_told_of_and_asked_again():
    async def work(bench: Bench) -> None:
        host = Host()
        ref: Ref = bench.node.place(host, "a-e1")
        bench.node.remove(ref)
        bench.gathering.hosts_are({"a": ref})
        bench.assign("a", 1)
        await bench.until(lambda: bench.problems)
        assert bench.problems[0] == ("a", ref)
        bench.node.place(host, "a-e1")
        await bench.until(lambda: bench.is_whole)

    on_bench(work)


def test_a_host_that_follows_a_newer_planner_is_asked_again_under_its_term():
    async def work(bench: Bench) -> None:
        host = Host([Superseded("loader host a follows the planner of term 2")])
        bench.gathering.hosts_are({"a": bench.node.place(host, "a-e1")})
        bench.assign("a", 1)
        await bench.until(lambda: host.fetches)
        bench.fence.admit(2)
        await bench.until(lambda: bench.is_whole)
        assert host.fetches == [1, 2]
        assert bench.problems == []

    on_bench(work)


def test_what_a_host_raises_is_told_only_while_it_owes_something():
    async def work(bench: Bench) -> None:
        error = SourceError("the shard is damaged")
        late, other = Host([error]), Host()
        late.speaks.clear()
        bench.gathering.hosts_are({"a": bench.node.place(late, "a-e1"), "b": bench.node.place(other, "b-e1")})
        bench.assign("a", 1)
        await bench.until(lambda: late.fetches)
        bench.assign("b", 2)
        await bench.until(lambda: bench.is_whole)
        late.speaks.set()
        await asyncio.sleep(0.02)
        assert bench.problems == []

    on_bench(work)


def test_what_a_host_raises_that_owes_something_is_told():
    async def work(bench: Bench) -> None:
        error = SourceError("the shard is damaged")
        bench.gathering.hosts_are({"a": bench.node.place(Host([error]), "a-e1")})
        bench.assign("a", 1)
        await bench.until(lambda: bench.problems)
        assert bench.problems == [error]

    on_bench(work)

"""A loader host, asked by its planner: what was asked is answered, however often and in whatever order."""

import asyncio
from typing import Any

import pytest
from fake_node import run

from msd.build import build_orders, index_all
from msd.config import Config
from msd.runtime.dask import hosts
from msd.runtime.dask.wire import pack, tables_from_wire, unpack

ROWS = [{"ids": [number] * (number % 5 + 1)} for number in range(96)]


@pytest.fixture
def config(monkeypatch) -> Config:
    monkeypatch.setattr(hosts, "close_when_released", lambda actor: None)
    return Config(
        sources={"web": {"rows": ROWS, "transforms": [{"kind": "tokens", "field": "ids"}], "shuffle": False}},
        batch={"sequence_length": 16, "global_batch_size": 2},
        mesh={"dp": 1},
        num_microbatches=1,
    )


class Asking:
    """Asks a host as a planner does, answer by answer."""

    def __init__(self, host: hosts.LoaderHost) -> None:
        self.host = host
        self.seen = 0

    async def ask(self, *requests: tuple[str, int, int, int]) -> list[tuple[int, int]]:
        asked = {"requests": list(requests), "releases": {}, "rows": [], "orders": [], "told": 0}
        answer: Any = unpack(await self.host.advance(1, pack(asked), self.seen, 0.05))
        self.seen = answer["number"]
        return [(table.start, table.num_rows) for table in tables_from_wire(answer)]

    async def until_told(self, *requests: tuple[str, int, int, int]) -> list[tuple[int, int]]:
        found = await self.ask(*requests)
        while not found:
            found = await self.ask()
        return found


def on_host(config: Config, work: Any) -> None:
    async def within() -> None:
        host = hosts.LoaderHost("a-run-of-this-test", "h", config, build_orders(config, index_all(config)), 1, 1 << 20)
        try:
            await work(Asking(host))
        finally:
            await host.close()

    run(within())


def test_rows_that_are_asked_for_again_in_the_call_that_says_that_they_came_are_answered_again(config):
    async def work(planner: Asking) -> None:
        assert await planner.until_told(("web", 0, 80, 8)) == [(80, 8)]
        # The run moved to where it had been, say, so that a new planner wants just these rows.
        assert await asyncio.wait_for(planner.until_told(("web", 0, 80, 8)), 10) == [(80, 8)]

    on_host(config, work)

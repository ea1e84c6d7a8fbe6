"""What a loader host carries out, and what it does not because it comes too late."""

import asyncio
from typing import Any

from msd.build import build_orders, index_all
from msd.runtime.dask.hosts import LoaderHost
from msd.runtime.dask.wire import pack, tables_from_wire, unpack
from msd.runtime.dask.workshop import Workshop
from msd.testing import scenarios


def asked(generation: int, *requests: list[Any]) -> Any:
    orders = [{"kind": "abandon", "generation": generation}]
    return pack({"requests": list(requests), "releases": {}, "rows": [], "orders": orders, "told": 0})


def test_what_was_asked_before_a_generation_is_left_once_however_often_it_is_told(monkeypatch):
    # No worker is here to be released by.
    monkeypatch.setattr("msd.runtime.dask.hosts.close_when_released", lambda host: None)
    config = scenarios.text()
    host = LoaderHost("a-run", "a", config, build_orders(config, index_all(config)), 1, 1 << 20)
    host.add("web", 0)
    left: list[int] = []
    monkeypatch.setattr(Workshop, "abandon", lambda self: left.append(1))

    async def work() -> None:
        try:
            answer = unpack(await host.advance(1, asked(1, ["web", 0, 0, 8]), 0, 30.0))
            assert [(table.start, table.num_rows) for table in tables_from_wire(answer)] == [(0, 8)]
            for generation in (1, 2, 1):
                await host.advance(1, asked(generation), 0, 0.0)
        finally:
            await host.close()

    asyncio.run(work())
    assert len(left) == 2

"""A loop on a thread of its own ends whatever runs on it."""

import asyncio
import threading
from contextlib import suppress

import pytest

from msd.runtime.dask import loop as module
from msd.runtime.dask.loop import OwnLoop


async def begun(work, running: list) -> None:
    running.append(asyncio.ensure_future(work))
    await asyncio.sleep(0)


async def loses_a_cancellation() -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(3600)
    await asyncio.sleep(3600)


async def fails_when_it_is_cancelled() -> None:
    try:
        await asyncio.sleep(3600)
    finally:
        raise RuntimeError("on the way out")


@pytest.mark.parametrize("work", [loses_a_cancellation, fails_when_it_is_cancelled])
def test_closing_ends_every_task(monkeypatch, caplog, work):
    monkeypatch.setattr(module, "AGAIN_S", 0.02)
    loop, running = OwnLoop("of-this-test"), []
    loop.run(begun(work(), running))
    loop.close()
    loop.close()
    assert running[0].done()
    running.clear()
    assert "never retrieved" not in caplog.text
    assert "of-this-test" not in {thread.name for thread in threading.enumerate()}


def test_what_a_coroutine_raises_is_raised():
    loop = OwnLoop("of-this-test")
    try:
        with pytest.raises(RuntimeError, match="on the way out"):
            loop.run(failing())
    finally:
        loop.close()


async def failing() -> None:
    raise RuntimeError("on the way out")

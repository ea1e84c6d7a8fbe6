"""How actors hear of the end of others, and come to their own."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from distributed import get_client, get_worker

from msd.runtime.dask.plugin import LOST_TOPIC

GRACE_S = 10.0
"""An actor that was made is known to its worker within this."""
CHECK_S = 0.5

_listeners: dict[object, Callable[[str], None]] = {}
"""Of this process: Dask keeps one handler a topic and process, and several runs may share both."""


class Closes(Protocol):
    """An actor with threads, files or sockets of its own."""

    async def close(self) -> None:
        """End them. Closing twice is fine."""
        ...


def close_when_released(actor: Closes, close: Callable[[], Awaitable[None]] | None = None) -> None:
    """Have an actor closed once its worker holds it no longer: whoever started the run is gone, in whatever way.

    Called while the actor is made.

    Args:
        actor: That is being made.
        close: What closes it then; None is its own `close`.
    """
    worker = get_worker()
    worker.loop.add_callback(_close_when_released, worker, actor, close or actor.close)


def listen_for_losses(on_lost: Callable[[str], None]) -> Callable[[], None]:
    """Have `on_lost` called with the address of each worker that is gone; return what ends that. In an actor only."""
    key = object()
    _listeners[key] = on_lost
    dask_client = get_client()
    dask_client.subscribe_topic(LOST_TOPIC, _tell)

    def end() -> None:
        if _listeners.pop(key, None) is not None and not _listeners:
            # The client may be closed already: then there is nothing to unsubscribe from.
            with contextlib.suppress(ValueError, OSError):
                dask_client.unsubscribe_topic(LOST_TOPIC)

    return end


def key_of(actor: object) -> str:
    """Return the key under which this process's worker holds an actor: no two lives of an actor have the same."""
    return next(str(key) for key, held in get_worker().state.actors.items() if held is actor)


def _tell(event: tuple[float, dict[str, Any]]) -> None:
    for on_lost in list(_listeners.values()):
        on_lost(event[1]["worker"])


async def _close_when_released(worker: Any, actor: Closes, close: Callable[[], Awaitable[None]]) -> None:
    made_at = time.monotonic()
    while not _is_held(worker, actor) and time.monotonic() < made_at + GRACE_S:
        await asyncio.sleep(0.02)
    while _is_held(worker, actor):
        await asyncio.sleep(CHECK_S)
    await close()


def _is_held(worker: Any, actor: Closes) -> bool:
    return any(held is actor for held in worker.state.actors.values())

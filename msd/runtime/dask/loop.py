"""An event loop on a thread of its own: the engine's process belongs to the user, who may block or run loops in it."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")
AGAIN_S = 1.0
"""A task that does not end within this is cancelled once more."""
CANCELLED_TIMES = 10


class OwnLoop:
    """Runs coroutines for other threads."""

    def __init__(self, name: str) -> None:
        """Begin to run; `close` ends."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what a coroutine returns; if the caller is interrupted, so is the coroutine."""
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def close(self) -> None:
        """End what still runs, and the thread. Closing twice is fine."""
        if self._loop.is_closed():
            return
        self.run(self._cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        # `asyncio.wait_for` of Python 3.11 loses a cancellation that comes together with what it waits for.
        for _ in range(CANCELLED_TIMES):
            if not others:
                break
            for task in others:
                task.cancel()
            ended, others = await asyncio.wait(others, timeout=AGAIN_S)
            for task in ended:
                # Asked for, so that nothing is logged: whoever waited for it has heard.
                _ = task.cancelled() or task.exception()
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

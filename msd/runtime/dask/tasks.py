"""Tasks of an actor that must not end unnoticed."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """Background work of one actor, on its worker's loop."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        """Have `on_error` called with what ends a task that was not cancelled: nobody else would notice."""
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin work and keep hold of it; whoever wants to may cancel it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """End all of it."""
        for task in list(self._tasks):
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._on_error(error)

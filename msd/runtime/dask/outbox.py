"""What waits to be carried to one process: numbered, in order, and kept until it was carried out there."""

import asyncio
from typing import Any


class Outbox:
    """Items for one receiver, who counts them: one that comes twice is carried out once."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._items: list[Any] = []
        self._num_done = 0
        self._has_items = asyncio.Event()
        self._progress = asyncio.Event()

    def put(self, item: Any) -> None:
        """Have an item carried."""
        self._items.append(item)
        self._has_items.set()

    def head(self) -> tuple[int, list[Any]]:
        """Return the number of the first item that is not known to be carried out, and it with all that follow."""
        return self._num_done, list(self._items)

    def done(self, through: int) -> None:
        """Note that all items before a number were carried out."""
        del self._items[: max(0, through - self._num_done)]
        self._num_done = max(self._num_done, through)
        if not self._items:
            self._has_items.clear()
        self._progress.set()

    async def wait(self) -> None:
        """Wait until there are items."""
        await self._has_items.wait()

    async def settled(self) -> None:
        """Wait until all that was put so far is carried out."""
        wanted = self._num_done + len(self._items)
        while self._num_done < wanted:
            self._progress.clear()
            await self._progress.wait()

"""Asks every actor now and then whether it is there: a frozen process, or a vanished machine, closes no connection."""

import asyncio
from collections.abc import Callable
from typing import Any

from msd.coordinator.staff import Event, Fill, PostAnswered, PostLost, PostSilent
from msd.errors import DeadlineError, MsdError, told
from msd.runtime.dask.calls import HasRpc, Ref, call

PINGS = 6
"""In as many seconds as patience lasts."""
GONE_S = 0.3
"""An actor that cannot be reached is mostly one whose process is gone: the scheduler says so, and how, within this."""


class Pinging:
    """One task for each post that is held."""

    def __init__(self, *, silence_s: float, happened: Callable[[Event], None]) -> None:
        """Watch nobody yet.

        Args:
            silence_s: After so long without an answer a post is silent.
            happened: Takes events.
        """
        self._silence_s = silence_s
        self._happened = happened
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, node: HasRpc, held: Fill, ref: Ref, heard: Callable[[dict[str, Any]], None] | None = None) -> None:
        """Watch a post; whoever held it before is not watched any more.

        Args:
            node: That calls.
            held: The post, and under which epoch.
            ref: What holds it.
            heard: Takes each answer.
        """
        self.end(held.post)
        self._tasks[held.post] = asyncio.get_running_loop().create_task(self._watch(node, held, ref, heard))

    def end(self, post: str) -> None:
        """Watch a post no longer."""
        task = self._tasks.pop(post, None)
        if task is not None:
            task.cancel()

    def end_all(self) -> None:
        """Watch nobody any more."""
        for post in list(self._tasks):
            self.end(post)

    async def _watch(self, node: HasRpc, held: Fill, ref: Ref, heard: Callable[[dict[str, Any]], None] | None) -> None:
        is_silent = False
        while True:
            await asyncio.sleep(self._silence_s / PINGS)
            try:
                answer = await self._ping(node, ref)
            except DeadlineError:
                if not is_silent:
                    is_silent = True
                    self._happened(PostSilent(held.post, held.epoch))
                continue
            except Exception as error:
                await asyncio.sleep(GONE_S)
                how = str(error) if isinstance(error, MsdError) else told(error)
                self._happened(PostLost(held.post, held.epoch, how))
                return
            if is_silent:
                is_silent = False
                self._happened(PostAnswered(held.post, held.epoch))
            if heard is not None:
                heard(answer)

    async def _ping(self, node: HasRpc, ref: Ref) -> dict[str, Any]:
        """Return the answer; a first one that does not come may be lost, and is asked for again."""
        try:
            answer: dict[str, Any] = await call(node, ref, "ping", deadline_s=self._silence_s * 2 / 3)
        except DeadlineError:
            answer = await call(node, ref, "ping", deadline_s=self._silence_s / 3)
        return answer

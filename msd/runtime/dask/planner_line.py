"""A constructor's way to the planner, which may be replaced at any moment."""

import asyncio
import contextlib
from typing import Any

from msd.errors import EngineError
from msd.runtime.dask.calls import ActorGone, HasRpc, Ref, Superseded, call

PAUSE_S = 0.2
"""Until a planner that could not be reached is tried again, unless another one comes sooner."""
FOR_EVER_S = 1e8


class PlannerAway(EngineError):
    """No planner has answered in time."""


class PlannerLine:
    """Asks whoever plans at the moment; what was asked of a planner that went is asked of the next. On one loop."""

    def __init__(self, node: HasRpc) -> None:
        """Know no planner yet."""
        self.is_away = True
        """Whether the planner is known to be gone, and no other is known."""
        self._node = node
        self.ref: Ref | None = None
        """Who plans, as far as is known."""
        self._replaced = asyncio.Event()

    def follow(self, ref: Ref) -> None:
        """Take who plans from now on."""
        if ref != self.ref:
            self.ref, self.is_away = ref, False
            self._replaced.set()
            self._replaced = asyncio.Event()

    def worker_gone(self, address: str) -> None:
        """Take that the scheduler has lost a worker."""
        if self.ref is not None and self.ref.address == address:
            self.is_away = True

    async def ask(self, method: str, *args: Any, limit_s: float = FOR_EVER_S) -> Any:
        """Return what a method of the planner returns. It may be carried out more than once.

        Raises:
            PlannerAway: If no planner has answered within `limit_s`.
            Exception: What the method raised.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_s
        why = "none is there yet"
        while (left_s := until - loop.time()) > 0:
            ref, replaced = self.ref, self._replaced
            if ref is not None:
                try:
                    answered, answer = await self._ask_once(ref, replaced, left_s, method, *args)
                except (ActorGone, Superseded) as error:
                    self.is_away, why, left_s = ref == self.ref, str(error), PAUSE_S
                else:
                    if answered:
                        self.is_away = False
                        return answer
                    why = f"{ref.name} at {ref.address} has not answered {method!r}"
                    continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(replaced.wait(), min(left_s, until - loop.time()))
        raise PlannerAway(f"no planner has answered {method!r} within {limit_s:g} s: {why}")

    def ask_from_thread(
        self, loop: asyncio.AbstractEventLoop, method: str, *args: Any, limit_s: float = FOR_EVER_S
    ) -> Any:
        """Return what a method of the planner returns, on another thread than that of the line's loop.

        Raises:
            PlannerAway: If no planner has answered in time, or this process is about to end: its loop is closed.
            Exception: What the method raised.
        """
        asking = self.ask(method, *args, limit_s=limit_s)
        try:
            return asyncio.run_coroutine_threadsafe(asking, loop).result()
        except RuntimeError:
            if not loop.is_closed():
                raise
            asking.close()
            raise PlannerAway(f"{method!r} was not asked: this process is ending") from None

    async def _ask_once(
        self, ref: Ref, replaced: asyncio.Event, limit_s: float, method: str, *args: Any
    ) -> tuple[bool, Any]:
        """Return whether one planner has answered, and what, before it was replaced or the time was up."""
        asking = asyncio.ensure_future(call(self._node, ref, method, *args, deadline_s=FOR_EVER_S))
        waiting = asyncio.ensure_future(replaced.wait())
        try:
            await asyncio.wait({asking, waiting}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            return (True, asking.result()) if asking.done() else (False, None)
        finally:
            for task in (asking, waiting):
                task.cancel()

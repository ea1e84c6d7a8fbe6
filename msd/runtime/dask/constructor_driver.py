"""The planner's side of one constructor: orders go out, numbered and in order."""

import asyncio

from msd.errors import DeadlineError
from msd.runtime.dask.calls import ActorGone, HasRpc, Ref, call
from msd.runtime.dask.outbox import Outbox
from msd.runtime.dask.wire import Wire, pack

PAUSE_S = 0.5


class ConstructorDriver:
    """Drives one process of a constructor. Whether it is gone is for the supervisor to say."""

    def __init__(self, node: HasRpc, ref: Ref, *, term: int, silence_s: float) -> None:
        """Get ready; `drive` starts.

        Args:
            node: That calls.
            ref: Its actor.
            term: Of the planner.
            silence_s: Seconds to wait for an answer before the same is said again.
        """
        self.ref = ref
        self._node = node
        self._term = term
        self._silence_s = silence_s
        self._outbox = Outbox()

    def tell(self, order: Wire) -> None:
        """Have an order carried out after those before it."""
        self._outbox.put(order)

    async def settled(self) -> None:
        """Wait until all that it was told so far is carried out."""
        await self._outbox.settled()

    async def drive(self) -> None:
        """Carry orders for ever. One that was carried and not answered is carried again: it counts once there."""
        while True:
            await self._outbox.wait()
            first, orders = self._outbox.head()
            try:
                await call(self._node, self.ref, "perform", self._term, first, pack(orders), deadline_s=self._silence_s)
            except DeadlineError:
                continue
            except ActorGone:
                await asyncio.sleep(PAUSE_S)
                continue
            self._outbox.done(first + len(orders))

"""A Dask worker or client whose calls end at objects of the test."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from msd.runtime.dask.calls import Ref


class FakeNode:
    """Calls reach the actors in `actors`, by (key, address); others are gone."""

    def __init__(self) -> None:
        self.actors: dict[tuple[str, str], Any] = {}

    def place(self, actor: Any, key: str, address: str = "a") -> Ref:
        self.actors[key, address] = actor
        return Ref(key, address, key)

    def remove(self, ref: Ref) -> None:
        del self.actors[ref.key, ref.address]

    def rpc(self, address: str) -> "_Connection":
        return _Connection(self, address)


class _Connection:
    def __init__(self, node: FakeNode, address: str) -> None:
        self._node = node
        self._address = address

    async def actor_execute(
        self, *, function: str, actor: str, args: list[Any], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        if (actor, self._address) not in self._node.actors:
            raise OSError("connection refused")
        plain = [arg.data if type(arg).__name__ == "Serialize" else arg for arg in args]
        try:
            result = await getattr(self._node.actors[actor, self._address], function)(*plain)
        except Exception as error:
            return {"status": "error", "exception": error}
        return {"status": "OK", "result": result}


def run(work: Coroutine[Any, Any, None], limit_s: float = 30.0) -> None:
    """Run what a test does on a loop, not for ever."""
    asyncio.run(asyncio.wait_for(work, limit_s))

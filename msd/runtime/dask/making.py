"""Actors of a run are made where they are wanted, and kept alive by the process that wants them."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distributed import Client

from msd.config import PipelineConfig
from msd.coordinator.staff import Worker
from msd.coordinator.standing import Standing
from msd.core.demand import SourceDemand
from msd.core.order import SourceOrder
from msd.core.state import StateDict
from msd.cost.linear import LinearModel
from msd.errors import ConfigError, DeadlineError, EngineError, MsdError, told
from msd.runtime.dask.calls import Ref
from msd.runtime.dask.wire import Wire

POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Run:
    """What the actors of a run are made from."""

    name: str
    """Identity of the run."""
    config: PipelineConfig
    orders: dict[str, SourceOrder]
    identity: StateDict
    token: str = field(repr=False)
    """That ranks must show."""
    demands: tuple[SourceDemand, ...] = ()
    """What sources are asked for and cost, where a profile that fits says so."""
    models: Mapping[str, LinearModel] = field(default_factory=dict)
    """Seconds of their rows from bytes, by the same profile."""
    standing: Standing | None = None
    """Where the run goes on; None is the beginning."""
    kept: Wire | None = None
    """Of a run with a checkpoint: `run`, the `lineage` of the snapshot that it resumed from, its `origin` in words."""


class Maker:
    """Makes actors through one client, on the client's loop."""

    def __init__(self, client: Client, run: str) -> None:
        """Have made none yet."""
        self._client = client
        self._run = run
        self._futures: dict[str, Any] = {}
        """By key. An actor that nobody's client holds is destroyed."""
        self._shared: dict[str, tuple[Any, ...]] = {}
        """By address: what was sent to a worker once, however many actors take it."""
        self._lost: set[str] = set()

    async def share(self, values: Sequence[Any], addresses: Iterable[str], *, deadline_s: float) -> None:
        """Send values to the workers that were not sent any: once a process, however many actors take them.

        A worker that cannot be reached has none: what is made there fails.
        """
        lacking = [one for one in dict.fromkeys(addresses) if one not in self._shared and one not in self._lost]
        if not lacking:
            return
        futures = await self._sent(values, lacking, deadline_s)
        if futures is not None:
            self._shared.update(dict.fromkeys(lacking, futures))
        elif len(lacking) > 1:
            # One of them is gone: the others are sent to one by one.
            for address in lacking:
                await self.share(values, [address], deadline_s=deadline_s)

    async def _sent(self, values: Sequence[Any], addresses: list[str], deadline_s: float) -> tuple[Any, ...] | None:
        """Return futures of values that all of some workers have, None if one of them cannot be reached.

        Dask waits long for a worker that leaves in good order: that it has left is heard sooner.
        """
        sending = asyncio.ensure_future(
            self._client.scatter(list(values), workers=addresses, broadcast=True, hash=False)
        )
        deadline = asyncio.get_running_loop().time() + deadline_s
        try:
            while not sending.done():
                if self._lost.intersection(addresses) or asyncio.get_running_loop().time() > deadline:
                    return None
                await asyncio.wait({sending}, timeout=POLL_S)
            return tuple(sending.result())
        except (OSError, RuntimeError, ValueError, KeyError, TimeoutError):
            return None
        finally:
            sending.cancel()

    def shared(self, address: str) -> tuple[Any, ...]:
        """Return futures of what a worker was sent.

        Raises:
            EngineError: If it could not be reached.
        """
        if address not in self._shared:
            raise EngineError(f"the Dask worker at {address} cannot be reached")
        return self._shared[address]

    def forget_shared(self) -> None:
        """Have what is shared sent anew: it has changed."""
        self._shared.clear()

    def submit(self, kind: type, name: str, epoch: int, worker: Worker, *args: Any) -> Ref:
        """Begin to make an actor; `finish` waits for it."""
        key = f"msd-{self._run}-{name.replace(' ', '-')}-e{epoch}"
        self._futures[key] = self._client.submit(
            kind, *args, actor=True, key=key, workers=[worker.address], allow_other_workers=False, pure=False
        )
        return Ref(key, worker.address, name)

    async def finish(self, refs: Iterable[Ref], *, deadline_s: float) -> dict[str, Exception]:
        """Wait until actors are made; return by key why others were not.

        Args:
            refs: From `submit`.
            deadline_s: Seconds to wait.
        """
        failed: dict[str, Exception] = {}
        waiting = list(refs)
        deadline = asyncio.get_running_loop().time() + deadline_s
        while waiting:
            late = [ref for ref in waiting if self._is_pending(ref)]
            for ref in waiting:
                if ref not in late and (error := await self._error_of(ref)) is not None:
                    failed[ref.key] = error
            waiting = late
            if waiting and asyncio.get_running_loop().time() > deadline:
                return failed | {
                    ref.key: DeadlineError(
                        f"{len(waiting)} actors were not made within {deadline_s:g} s, {waiting[0].key} first; is a "
                        "host overloaded, or runtime.deadline_s too short to start in?"
                    )
                    for ref in waiting
                }
            if waiting:
                await asyncio.sleep(POLL_S)
        return failed

    def note_lost(self, address: str) -> None:
        """Take that a worker is gone: what was to be made there will not be."""
        self._lost.add(address)
        self._shared.pop(address, None)

    def note_came(self, address: str) -> None:
        """Take that a worker is there, perhaps where another one was lost: it has nothing yet."""
        self._lost.discard(address)
        self._shared.pop(address, None)

    def release(self, refs: Iterable[Ref]) -> None:
        """Let actors go; each closes by itself where its process still is."""
        for ref in refs:
            future = self._futures.pop(ref.key, None)
            if future is not None:
                future.release()

    def release_all(self) -> None:
        """Let every actor go."""
        for future in self._futures.values():
            future.release()
        self._futures.clear()
        self._shared.clear()

    def _is_pending(self, ref: Ref) -> bool:
        return self._futures[ref.key].status == "pending" and ref.address not in self._lost

    async def _error_of(self, ref: Ref) -> Exception | None:
        future = self._futures[ref.key]
        if future.status == "finished" and ref.address not in self._lost:
            return None
        if future.status == "error":
            return _explained(ref.key, await future.exception())
        return EngineError(f"{ref.key} could not be made: its worker is gone ({future.status})")


def _explained(key: str, error: Exception) -> Exception:
    """Return what to raise for an actor that could not be made."""
    if isinstance(error, MsdError):
        return error
    if isinstance(error, ModuleNotFoundError):
        return ConfigError(
            f"a Dask worker has no module {error.name!r}, which the configuration's functions need ({key}); put it on "
            "the PYTHONPATH of scheduler and workers, or install it there"
        )
    return EngineError(f"{key} could not be made: {told(error)}")

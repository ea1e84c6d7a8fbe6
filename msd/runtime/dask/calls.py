"""Calls to actors with a deadline and typed errors.

Dask's own actor proxies wait for ever when their target dies or was released. This goes over the same wire operation,
`actor_execute`, which is not a documented interface: `tests/integration/dask` checks it against the installed release.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from distributed.protocol import to_serialize

from msd.errors import DeadlineError, EngineError


class ActorGone(EngineError):
    """The process that held an actor is gone, or holds it no longer."""


class Superseded(EngineError):
    """A planner that was replaced spoke to somebody who follows the one in its place: it ends, quietly."""


class HasRpc(Protocol):
    """A Dask worker or client: whatever can open connections."""

    rpc: Any


@dataclass(frozen=True, slots=True)
class Ref:
    """Where an actor is: plain, and safe to send anywhere; it keeps nothing alive."""

    key: str
    """Never used again after a loss: a key carries the epoch of its actor."""
    address: str
    """Of the worker."""
    name: str
    """For people."""

    @property
    def epoch(self) -> int:
        """Of the actor: of two that held one post the later has the greater one; -1 if its key has none."""
        return epoch_of(self.key)


def epoch_of(key: str) -> int:
    """Return the epoch of an actor, -1 if its key has none."""
    number = key.rpartition("-e")[2]
    return int(number) if number.isdecimal() else -1


class Fence:
    """Remembers the highest planner term that an actor was shown, and refuses lower ones."""

    def __init__(self, who: str) -> None:
        """Admit any term; `who` names the actor in errors."""
        self._who = who
        self.term = 0

    def admit(self, term: int) -> None:
        """Follow a planner.

        Raises:
            Superseded: If one of a higher term was here before.
        """
        if term < self.term:
            raise Superseded(
                f"{self._who} follows the planner of term {self.term} and refuses one of term {term}, which was "
                "replaced"
            )
        self.term = term


async def call(node: HasRpc, ref: Ref, method: str, *args: Any, deadline_s: float) -> Any:
    """Return what an actor's method returns.

    Args:
        node: The worker or client that calls.
        ref: The actor.
        method: Of the actor; an async one, since a worker has a single thread for the others.
        args: Sent as they are; numpy arrays in flat dictionaries without a copy.
        deadline_s: Seconds to wait at most.

    Raises:
        ActorGone: If the process or the actor is not there.
        DeadlineError: If no answer came in time.
        Exception: What the method raised.
    """
    try:
        answer = await asyncio.wait_for(
            node.rpc(ref.address).actor_execute(
                function=method, actor=ref.key, args=[to_serialize(arg) for arg in args], kwargs={}
            ),
            deadline_s,
        )
    except TimeoutError:
        # A TimeoutError is an OSError too: it must be caught first.
        raise DeadlineError(
            f"{ref.name} at {ref.address} did not answer {method!r} within {deadline_s:g} s; is its host overloaded?"
        ) from None
    except KeyError:
        raise ActorGone(f"{ref.name} is no longer at {ref.address}") from None
    except OSError as error:
        raise ActorGone(f"{ref.name} at {ref.address} cannot be reached: {error}") from None
    except RuntimeError:
        # So Dask refuses to connect once its node is closing.
        raise ActorGone(f"{ref.name} at {ref.address} cannot be reached: this process is ending") from None
    if answer["status"] == "OK":
        return answer["result"]
    raise answer["exception"]

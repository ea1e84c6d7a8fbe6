"""What is said over the link, as values, and how errors cross it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import msd.errors
from msd.core.state import StateDict
from msd.errors import EngineError, MsdError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank may be served."""

    host: str
    """Name of the host, as `socket.gethostname` gives it there."""
    addresses: tuple[str, ...]
    """`unix:///path` and `tcp://host:port`, without a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """Where a client that was connected before stands. A run that does not know it may continue from there."""

    run: str
    """That it was connected to last."""
    generation: int
    """Of that run."""
    next_step: int
    """That its loop asks for next: what was fetched ahead is not counted."""
    num_loads: int
    """How many loads of the rank the run has answered."""
    position: str
    """The run's position before `next_step`, as the JSON of a state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """A rank is connected."""

    session: int
    """Of this connection; an older session of the rank has ended."""
    mesh: dict[str, int]
    """Axis sizes of the trainer mesh, outermost first."""
    generation: int
    """The rank goes on at the step it stated if that was of this generation, else at `first_step`."""
    first_step: int
    """Of the generation: where a rank starts that has taken nothing of it."""
    position: str
    """The run's position before `first_step`, as the JSON of a state."""
    deadline_s: float
    """How long a rank of this run waits for anything, unless it was told otherwise."""
    num_loads: int = 0
    """How many loads of the rank the run has answered."""
    origin: str = ""
    """What the run's position comes from, for people, such as the checkpoint it resumed from; empty if it began new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A client wants the run at a saved position."""

    load_id: str
    """One load keeps it, however often it is said."""
    number: int
    """It is the n-th load of the rank, from 1: one that was answered already opens nothing."""
    state: StateDict
    force: bool = False
    """Take the state also where it differs in something that the run would refuse, as far as that has a meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The run goes on in another generation: what was fetched of an older one is void."""

    generation: int
    first_step: int
    position: str
    """The run's position before `first_step`, as the JSON of a state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """There is no such step: the run has ended before it."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotYet:
    """Not now; ask again."""

    waits_for: str
    """Whom or what, for the error of a wait that runs out."""


class WrongRun(EngineError):
    """Another run than ours answers. Where the address comes from a file, that may be written anew any moment."""


def places_to_header(places: list[Place]) -> dict[str, Any]:
    """Return places as a header."""
    return {"places": [asdict(place) for place in places]}


def places_of(header: Mapping[str, Any]) -> list[Place]:
    """Return the places in a header."""
    return [
        Place(host=value(place, "host", str), addresses=tuple(map(str, value(place, "addresses", list))))
        for place in value(header, "places", list)
    ]


def welcome_of(header: Mapping[str, Any]) -> Welcome:
    """Return the welcome in a header."""
    return Welcome(
        session=value(header, "session", int),
        mesh={axis: value(value(header, "mesh", dict), axis, int) for axis in value(header, "mesh", dict)},
        generation=value(header, "generation", int),
        first_step=value(header, "first_step", int),
        position=value(header, "position", str),
        deadline_s=value(header, "deadline_s", float),
        num_loads=value(header, "num_loads", int),
        origin=value(header, "origin", str),
    )


def stated_of(header: Mapping[str, Any]) -> Stated | None:
    """Return where the client of a header stands, or None for one that starts."""
    if optional(header, "stated", dict) is None:
        return None
    stated = value(header, "stated", dict)
    return Stated(
        run=value(stated, "run", str),
        generation=value(stated, "generation", int),
        next_step=value(stated, "next_step", int),
        num_loads=value(stated, "num_loads", int),
        position=value(stated, "position", str),
    )


def load_of(header: Mapping[str, Any]) -> Load:
    """Return the load in a header."""
    return Load(
        load_id=value(header, "load_id", str),
        number=value(header, "number", int),
        state=value(header, "state", dict),
        force=value(header, "force", bool),
    )


def moved_of(header: Mapping[str, Any]) -> Moved:
    """Return the move in a header."""
    return Moved(
        generation=value(header, "generation", int),
        first_step=value(header, "first_step", int),
        position=value(header, "position", str),
    )


def value(header: Any, key: str, kind: type[_T]) -> _T:
    """Return an entry of a header.

    Raises:
        EngineError: If it is missing or of another type.
    """
    found = header.get(key) if isinstance(header, dict) else None
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise EngineError(f"the other side sent a message whose {key!r} should be {kind.__name__}, got {found!r:.100}")
    return found


def optional(header: Any, key: str, kind: type[_T]) -> _T | None:
    """Return an entry of a header that may be null or absent."""
    return None if isinstance(header, dict) and header.get(key) is None else value(header, key, kind)


def error_to_header(error: Exception) -> dict[str, Any]:
    """Return an error as a header. What was not raised on purpose arrives as an `EngineError` that names its type."""
    if isinstance(error, WrongRun):
        return {"error": "EngineError", "message": str(error), "is_wrong_run": True}
    if isinstance(error, MsdError):
        return {"error": type(error).__name__, "message": str(error)}
    return {"error": "EngineError", "message": f"the run failed with {type(error).__name__}: {error}"}


def error_of(header: Mapping[str, Any]) -> MsdError:
    """Return the error in a header, of the class it was raised as."""
    message = str(header.get("message"))
    if header.get("is_wrong_run") is True:
        return WrongRun(message)
    kind = getattr(msd.errors, str(header.get("error")), None)
    return kind(message) if isinstance(kind, type) and issubclass(kind, MsdError) else EngineError(message)

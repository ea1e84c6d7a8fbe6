"""What happened: the coordinator eats these, in any order, perhaps twice."""

from collections.abc import Mapping
from dataclasses import dataclass

from msd.coordinator.standing import RankStanding
from msd.core.sample import MetaTable


@dataclass(frozen=True, slots=True, eq=False)
class RowsExamined:
    """Metadata came from a loader host: one table for each `Examine`, of exactly its rows.

    Of a source without an end a table may have the first of them alone, if the others are still to come.
    """

    host: str
    tables: tuple[MetaTable, ...]


@dataclass(frozen=True, slots=True)
class RowsLacking:
    """What a loader host waits for which nobody has written yet: all of it, each time that changes."""

    host: str
    rows: Mapping[str, tuple[int, str]]
    """By source without an end: the first ordinal, and where it is looked for."""


@dataclass(frozen=True, slots=True)
class HostLost:
    """A loader host is gone."""

    host: str


@dataclass(frozen=True, slots=True)
class HostSilent:
    """An answer of a loader host did not come, and may be lost: what it owes is asked for once more."""

    host: str


@dataclass(frozen=True, slots=True)
class HostJoined:
    """A loader host is there: a new one, a new process of one that was lost, or one that was only slow."""

    host: str
    is_shadow: bool = False


@dataclass(frozen=True, slots=True)
class ConstructorLost:
    """A constructor is gone; its ranks come again elsewhere."""

    constructor: str


@dataclass(frozen=True, slots=True)
class ConstructorJoined:
    """A constructor is there that holds nothing: a first one, or one in the place of one that was lost."""

    constructor: str


@dataclass(frozen=True, slots=True)
class RowsEnded:
    """Rows that were in hand when a process ended or hung: one of them may be why. Told once a process."""

    rows: tuple[tuple[str, int], ...]
    """(source, ordinal)"""
    how: str
    """For people: `SIGSEGV`, `no answer for 120 s`, ..."""


@dataclass(frozen=True, slots=True)
class RowKilled:
    """A row ended or hung a process that had nothing else in hand: it is never tried again."""

    source: str
    ordinal: int
    how: str


@dataclass(frozen=True, slots=True)
class Journalled:
    """Edits are durable up to a number; see `commands.Journal`."""

    through: int


@dataclass(frozen=True, slots=True)
class NotJournalled:
    """An edit could not be made durable: it takes no effect. One that the run itself wanted ends the run."""

    number: int
    error: Exception


@dataclass(frozen=True, slots=True)
class TimePassed:
    """A clock that all waits are measured with has come to a time."""

    now_s: float


@dataclass(frozen=True, slots=True)
class RanksStand:
    """A constructor says which ranks are connected to it and in which sessions, to a planner that may not know."""

    ranks: tuple[RankStanding, ...]


@dataclass(frozen=True, slots=True)
class StepAsked:
    """A connected rank asks for a step, and so has taken the one before."""

    rank: int
    session: int
    generation: int
    step: int
    lacking: int | None = None
    """The first step that neither the rank nor its constructor had when that came to follow this planner, if known."""


@dataclass(frozen=True, slots=True)
class BytesHeld:
    """A constructor's payload, assembled or waiting."""

    constructor: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class RunFailed:
    """Something that no other host can do better: the run cannot go on."""

    error: Exception


Event = (
    RowsExamined
    | RowsLacking
    | HostLost
    | HostSilent
    | HostJoined
    | ConstructorLost
    | ConstructorJoined
    | RowsEnded
    | RowKilled
    | Journalled
    | NotJournalled
    | TimePassed
    | RanksStand
    | StepAsked
    | BytesHeld
    | RunFailed
)

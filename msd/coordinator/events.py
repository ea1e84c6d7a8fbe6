"""What happened: the coordinator eats these, in any order, perhaps twice."""

from dataclasses import dataclass

from msd.core.sample import MetaTable


@dataclass(frozen=True, slots=True, eq=False)
class RowsExamined:
    """Metadata came from a loader host: one table for each `Examine`, of exactly its rows."""

    host: str
    tables: tuple[MetaTable, ...]


@dataclass(frozen=True, slots=True)
class HostLost:
    """A loader host is gone."""

    host: str


@dataclass(frozen=True, slots=True)
class HostSilent:
    """An answer of a loader host did not come, and may be lost: what it owes is asked for once more."""

    host: str


@dataclass(frozen=True, slots=True)
class StepAsked:
    """A connected rank asks for a step, and so has taken the one before."""

    rank: int
    session: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class BytesHeld:
    """A constructor's payload, assembled or waiting."""

    constructor: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class RunFailed:
    """Something that no other host can do better: the run cannot go on."""

    error: Exception


Event = RowsExamined | HostLost | HostSilent | StepAsked | BytesHeld | RunFailed

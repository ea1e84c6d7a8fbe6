"""What the scaler looks at and what it decides: values that a timer carries between a run and a pure function."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from msd.core.allocation import Allocation, Seating
from msd.core.demand import HostBudget, SourceDemand

HostState: TypeAlias = Literal["up", "coming", "draining"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReading:
    """Of one source, at one look."""

    seating: Seating
    """Its loaders that own rows to come."""
    now: SourceDemand
    """Its share of the last interval, and what its next rows are predicted to cost."""
    ahead: SourceDemand
    """Its peak share within the look-ahead, by the schedule, and what the rows until then are predicted to cost."""
    occupancy: float
    """Rows that are ready over rows that are wanted ahead, 0 to 1."""
    starved_s: float = 0.0
    """Seconds of the interval in which planning waited for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """Of one loader host, at one look."""

    budget: HostBudget
    memory_bytes: int
    """That it holds now."""
    state: HostState = "up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look at a run."""

    now_s: float
    """Of any clock that only goes forward."""
    rate: float
    """Samples/s that ranks ask for: what they would take if they never waited for data."""
    sources: Mapping[str, SourceReading]
    hosts: Mapping[str, HostReading]
    can_add_hosts: bool = True
    """Whether hosts can be started; where not, it is said what to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why something is done, or is not though it would be needed."""

    about: str
    """A source, or a host."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now: nothing, mostly."""

    seatings: Allocation = field(default_factory=dict)
    """Of the sources that change."""
    add_hosts: int = 0
    drain: tuple[str, ...] = ()
    """Hosts that are to be asked for nothing new, and closed when nothing of theirs is needed: `seatings` has nothing
    on them any more."""
    reasons: tuple[Reason, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        return not (self.seatings or self.add_hosts or self.drain)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMemory:
    """What is remembered of a source from look to look."""

    need: float
    """Moving average of the workers that it keeps busy, without head-room."""
    looks_up: int = 0
    """In a row that asked for more."""
    looks_down: int = 0
    changed_at_s: float = float("-inf")
    next_partition: int = 0
    """The first number that no loader of it ever had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerMemory:
    """What is remembered from look to look."""

    sources: Mapping[str, SourceMemory] = field(default_factory=dict)
    looks_down: int = 0
    """In a row at which a host could have gone."""
    hosts_changed_at_s: float = float("-inf")
    """When hosts came or went last."""

"""What to do: the coordinator returns these, and the shells (local, simulated, Dask) carry them out."""

from collections.abc import Mapping
from dataclasses import dataclass

from msd.coordinator.placement import Owners
from msd.coordinator.standing import Standing
from msd.core.allocation import Seat
from msd.core.journal import Edit
from msd.core.plan import StepPlan


@dataclass(frozen=True, slots=True)
class Examine:
    """Have a host examine rows of one window and report what is known of them, in one table of all of them."""

    host: str
    source: str
    partition: int
    start: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Take note that no `Examine` of before is waited for: a generation begins elsewhere. Hosts may do without them."""

    generation: int


@dataclass(frozen=True, slots=True)
class Seats:
    """Tell a host which loaders it has now, and how many workers each: others may go once nothing of theirs is owed."""

    host: str
    seats: Mapping[str, tuple[Seat, ...]]
    """By source."""


@dataclass(frozen=True, slots=True)
class Drained:
    """Take note that nothing of a host that was to be drained is needed any more: it may be closed."""

    host: str


@dataclass(frozen=True, slots=True)
class Release:
    """Tell every host of a source that rows before an ordinal will not be asked for again, as far as is known."""

    source: str
    before: int


@dataclass(frozen=True, slots=True, eq=False)
class Assign:
    """Give a constructor a step to assemble."""

    constructor: str
    generation: int
    plan: StepPlan
    owners: Owners
    placement_version: int
    number: int
    """Counts what constructors are told: of two messages about one step, the larger number speaks."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Tell a constructor that steps up to one were taken by all its ranks; not those assigned after this."""

    constructor: str
    generation: int
    through: int
    number: int
    """See `Assign.number`."""


@dataclass(frozen=True, slots=True)
class Rewind:
    """Tell a constructor that a new generation begins: what it holds is void."""

    constructor: str
    generation: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Tell a constructor where the run ends: `step` does not exist."""

    constructor: str
    generation: int
    step: int


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """Take note of a step that was planned for the first time in its generation."""

    plan: StepPlan


@dataclass(frozen=True, slots=True)
class Refuse:
    """Have a constructor answer a rank that asks for a step of a generation with an error; a load is still taken."""

    constructor: str
    generation: int
    rank: int
    session: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Journal:
    """Make an edit durable, then say `Journalled(number)`: it takes effect only after that.

    The `Replicate` that follows it holds the edit: one copy in another process is enough where there is no store.
    """

    number: int
    edit: Edit


@dataclass(frozen=True, slots=True)
class Avoid:
    """Tell every host rows of a source that no transform may touch: they are answered as killed, or as skipped."""

    source: str
    first: int
    last: int
    reason: str
    """As in `core.journal.SkipRows`."""


@dataclass(frozen=True, slots=True)
class Isolate:
    """Tell every host rows that may end their process: their transforms run in a process of their own, singly."""

    rows: tuple[tuple[str, int], ...]
    """(source, ordinal)"""


@dataclass(frozen=True, slots=True)
class Follow:
    """Tell a shadow where the rows of the next steps begin, by source; it gets ready to be asked for them."""

    host: str
    cursors: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Replicate:
    """Give every loader host a copy of how the generation began and of its journal: a new planner asks for it."""

    standing: Standing


@dataclass(frozen=True, slots=True)
class Warn:
    """Tell people something that the run goes on in spite of; at most once each."""

    text: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Tell every rank why the run cannot go on."""

    error: Exception


Command = (
    Examine
    | Abandon
    | Seats
    | Drained
    | Release
    | Assign
    | Drop
    | Rewind
    | Finish
    | Refuse
    | Planned
    | Journal
    | Avoid
    | Isolate
    | Follow
    | Replicate
    | Warn
    | Fail
)

"""Who may hold the posts of a run, what happens to them, and what is to be done about it: values that the roster uses.

Posts are the planner, the constructors, and one loader host a loading process.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["planner", "constructor", "host"]

PLANNER: Kind = "planner"
OWN_LOADER = "msd-loader-"
"""What the names of loader hosts of a cluster of the run's own begin with; a number follows."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A process of the cluster."""

    name: str
    address: str
    host: str
    """Of the machine."""
    incarnation: int = field(default=0, compare=False)
    """Processes that were lost at this address before."""


@dataclass(frozen=True, slots=True)
class WorkerCame:
    """A process is there."""

    worker: Worker


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A process is gone, or left."""

    address: str
    how: str
    """For people: `SIGKILL`, `exit status 1`, ..."""
    is_counted: bool = True
    """False: it ended itself for a reason that does not come again, such as a row that is left out from then on."""
    incarnation: int = 0
    """Of the process: another one may be at the same address by the time that this is heard."""


@dataclass(frozen=True, slots=True)
class WorkerAnswered:
    """A process that was given nothing, because what it held did not answer, answers again."""

    address: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A process that was started ended before it was there."""

    name: str
    how: str


@dataclass(frozen=True, slots=True)
class PostLost:
    """What held a post is gone though its process is there, or could not be made."""

    post: str
    epoch: int
    how: str


@dataclass(frozen=True, slots=True)
class PostSilent:
    """What holds a post has said nothing for as long as patience lasts."""

    post: str
    epoch: int


@dataclass(frozen=True, slots=True)
class PostAnswered:
    """What was silent has answered."""

    post: str
    epoch: int


@dataclass(frozen=True, slots=True)
class HostsWanted:
    """Somebody wants another number of loader hosts, besides those that stand by. Fewer come of `HostDrained` alone."""

    count: int


@dataclass(frozen=True, slots=True)
class HostDrained:
    """Nothing of a loader host is needed any more, and nobody wants it to have anything."""

    post: str
    epoch: int


Event: TypeAlias = (
    WorkerCame
    | WorkerLost
    | WorkerAnswered
    | WorkerEnded
    | PostLost
    | PostSilent
    | PostAnswered
    | HostsWanted
    | HostDrained
)


@dataclass(frozen=True, slots=True)
class Vacate:
    """Tell the others that a post is held no longer."""

    post: str
    kind: Kind
    epoch: int
    worker: str
    """Name of the process."""
    how: str


@dataclass(frozen=True, slots=True)
class Fill:
    """Have a worker hold a post."""

    post: str
    kind: Kind
    epoch: int
    """Greater than any under which the post was held before; the planner's is its term."""
    worker: Worker
    is_shadow: bool = False


@dataclass(frozen=True, slots=True)
class Dismiss:
    """Have a loader host close in order, and its process end if it is ours to end."""

    post: str
    worker: Worker


@dataclass(frozen=True, slots=True)
class AddWorkers:
    """Have whoever can start processes of the cluster see to it that there are so many."""

    count: int
    """In all."""


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a process of our own, again or for the first time."""

    name: str


@dataclass(frozen=True, slots=True)
class KillWorker:
    """End a process of our own that does not answer."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask a process that is given nothing until it answers, or is lost."""

    worker: Worker


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run cannot go on."""

    why: str


Command: TypeAlias = Vacate | Fill | Dismiss | AddWorkers | StartWorker | KillWorker | Probe | GiveUp


def in_order(workers: Iterable[Worker]) -> list[Worker]:
    """Return workers by name, `msd-control-2` before `msd-control-10`."""
    return sorted(workers, key=lambda worker: _numbered(worker.name))


def split(found: Sequence[Worker]) -> tuple[list[Worker], Worker, list[Worker]]:
    """Return who constructs, who plans, and who may load.

    Workers that are named `msd-control*` construct and `msd-planner*` plan; on a cluster where none is, the first
    worker does both and the others load.
    """
    control = [worker for worker in found if worker.name.startswith("msd-control")] or list(found[:1])
    planner = next((worker for worker in found if worker.name.startswith("msd-planner")), control[0])
    return control, planner, [worker for worker in found if worker not in control and may_load(worker.name)]


def may_load(name: str) -> bool:
    """Return whether a worker of that name may hold a loader host."""
    return not name.startswith(("msd-control", "msd-planner"))


def _numbered(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]

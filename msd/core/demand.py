"""What sources ask of machines, and what machines have: what sizing decides from. Values, no decisions."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

RunsIn: TypeAlias = Literal["threads", "processes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCost:
    """What one row of a source costs on its way to a rank, on average: preparation, transfer, memory."""

    prepare_s: float
    """Of one worker that nothing disturbs: reading and transforms, CPU and waiting."""
    cpu_s: float
    """CPU within `prepare_s`. The rest is waiting, in which a core may serve another worker."""
    transfer_s: float
    """CPU of both ends to carry its payload to a constructor."""
    payload_bytes: float
    """Of the samples that it gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDemand:
    """What a run asks of one source, and what serving it takes."""

    source: str
    share: float
    """Of the samples that the run takes, at its peak; all together need not be 1."""
    rows_per_sample: float
    """Rows to prepare for one sample that is delivered: above 1 where rows are filtered, below where they are cut."""
    cost: RowCost
    loader_bytes: int
    """Memory of each loader of it: open files, a block, rows read ahead, payload held."""
    runs_in: RunsIn = "threads"
    """Where its transforms run: in processes if they hold the interpreter's lock."""
    worker_bytes: int = 0
    """Memory of each worker beyond the first: much where it is a process."""
    most_loaders: int = 1 << 16
    """Loaders that find work: windows of an epoch, or stripes of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBudget:
    """What a loader host may take of its machine. Hard bounds: beyond them a trainer beside it would be ended."""

    host: str
    cpus: float
    memory_bytes: int
    is_training: bool = False
    """Ranks train on the same machine: such hosts are filled first, since nothing has to cross a network."""
    most_workers: int = 1 << 16
    """Threads and processes that run transforms, whatever they wait for."""

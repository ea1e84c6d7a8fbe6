"""What a loader met so far: nothing is left out without being counted here."""

import threading
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from msd.core.sample import Outcome
from msd.loader.transforms.chain import RowResult


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderCounts:
    """Totals of one loader since it was made. A row that is examined twice counts twice, unless it was kept."""

    rows_examined: int = 0
    parts: int = 0
    """Samples that the rows gave."""
    payload_bytes: int = 0
    """Of those samples."""
    failed_rows: int = 0
    failed_by_reason: dict[str, int] = field(default_factory=dict)
    """Failed rows by the type of the exception."""
    killed_rows: int = 0
    """Rows passed over because they ended or hung their process twice."""
    skipped_rows: int = 0
    """Rows that somebody asked to be passed over."""
    filtered_rows: int = 0
    """Rows of which a transform chose to keep nothing."""
    empty_parts: int = 0
    """Samples left out because they had no token."""
    overflowed_rows: int = 0
    """Rows of which nothing is left because of `overflow: drop`."""
    dropped_parts: int = 0
    """Samples left out by `overflow: drop`."""
    unlabelled_parts: int = 0
    """Pieces of conversations left out because nothing in them is learned."""
    split_pieces: int = 0
    """Pieces beyond the first that `overflow: split` made."""
    truncated_tokens: int = 0
    """Tokens that `overflow: truncate` cut off."""
    rows_read: int = 0
    block_reads: int = 0
    rows_kept: int = 0
    """Rows that were examined again while their payload was held, so that nothing was done."""
    rows_remade: int = 0
    """Rows that were made again because their payload had been dropped."""

    def as_dict(self) -> dict[str, Any]:
        """Return the totals as a JSON-able dictionary."""
        return asdict(self)


class Spent:
    """What the workers of one source took on one host. For any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_rows = 0
        self._worker_s = self._cpu_s = 0.0

    def add(self, num_rows: int, worker_s: float, cpu_s: float) -> None:
        """Note rows that went through the transforms."""
        with self._lock:
            self._num_rows += num_rows
            self._worker_s += worker_s
            self._cpu_s += cpu_s

    def as_dict(self) -> dict[str, float]:
        """Return the totals: rows, seconds of workers but for waiting for a core, and those in which they used one."""
        with self._lock:
            return {"rows_transformed": self._num_rows, "transform_s": self._worker_s, "transform_cpu_s": self._cpu_s}


class Tally:
    """Counts while a loader runs."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def add(self, result: RowResult) -> None:
        """Count an examined row."""
        totals = self._totals
        totals["rows_examined"] += 1
        totals["parts"] += len(result.samples)
        totals["payload_bytes"] += sum(sample.nbytes for sample in result.samples)
        if result.num_empty:
            totals["empty_parts"] += result.num_empty
        if result.num_dropped:
            totals["dropped_parts"] += result.num_dropped
        if result.num_unlabelled:
            totals["unlabelled_parts"] += result.num_unlabelled
        if result.num_split:
            totals["split_pieces"] += result.num_split
        if result.num_truncated_tokens:
            totals["truncated_tokens"] += result.num_truncated_tokens
        if result.outcome is Outcome.FAILED:
            totals["failed_rows"] += 1
            self._reasons[reason_class(result.reason)] += 1
        elif result.outcome is Outcome.KILLED:
            totals["killed_rows"] += 1
        elif result.outcome is Outcome.SKIPPED:
            totals["skipped_rows"] += 1
        elif result.outcome is Outcome.FILTERED:
            totals["filtered_rows"] += 1
        elif result.outcome is Outcome.OVERFLOWED:
            totals["overflowed_rows"] += 1

    def add_kept(self, num_rows: int) -> None:
        """Count rows that were examined again and still held."""
        self._totals["rows_kept"] += num_rows

    def add_remade(self, num_rows: int) -> None:
        """Count rows that were made again."""
        self._totals["rows_remade"] += num_rows

    def counts(self, *, rows_read: int, block_reads: int) -> LoaderCounts:
        """Return the totals so far."""
        return LoaderCounts(
            **self._totals,
            failed_by_reason=dict(sorted(self._reasons.items())),
            rows_read=rows_read,
            block_reads=block_reads,
        )


def reason_class(reason: str) -> str:
    """Return the type of exception that a failed row's reason begins with."""
    return reason.split(" (in ", 1)[0].split(":", 1)[0]

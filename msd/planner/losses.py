"""Rows of one source that gave nothing: why, how often, and whether that is too often."""

from collections import Counter, deque
from collections.abc import Iterable

from msd.core.sample import Failure, Outcome
from msd.core.state import StateDict
from msd.errors import BadSampleRateError, SourceError
from msd.planner.saved import NUM_BARREN, SavedSource
from msd.planner.settings import SourceTerms

BUCKET_ROWS = 100
"""Failures are counted by buckets of this many ordinals; a rate needs at least one bucket's worth ..."""
RATE_BUCKETS = 100
"""... and looks back over this many buckets: 10,000 ordinals."""
FAILURES_SHOWN = 10
REASONS_SHOWN = 3
"""Of the newest failures; equal reasons are told once."""
BAD = (Outcome.FAILED, Outcome.KILLED)
"""What counts towards `on_error.max_rate`."""
_KINDS = {
    Outcome.OK: "gave no part",
    Outcome.FILTERED: "filtered",
    Outcome.FAILED: "failed",
    Outcome.OVERFLOWED: "too large for a sequence",
    Outcome.KILLED: "killed",
    Outcome.SKIPPED: "skipped",
}
_REMEDIES = {
    Outcome.OK: "have its transforms return samples",
    Outcome.FILTERED: "loosen its filters (samples without a token and chats without a turn to learn are filtered too)",
    Outcome.FAILED: "repair its rows or transforms",
    Outcome.OVERFLOWED: "raise batch.sequence_length or batch.limits, or cut its samples (overflow: split, chunk)",
    Outcome.KILLED: "repair the rows that end or hang their process, or the transform that does it there",
    Outcome.SKIPPED: "skip fewer rows",
}
_NOTES = {
    Outcome.KILLED: "left out: {they} ended or hung {their} process twice (killed)",
    Outcome.SKIPPED: "left out, as was asked for (skipped)",
}


class Losses:
    """Counts rows that gave nothing, in order of ordinal."""

    def __init__(self, terms: SourceTerms) -> None:
        """Stand before the first row."""
        self.survivor_epoch = -1
        """The last epoch in which a row gave a sample."""
        self._terms = terms
        self._bad: dict[int, int] = {}
        self._barren_epoch = 0
        self._barren = [0] * len(Outcome)
        self._reasons: dict[int, Failure] = {}
        self._newest: deque[Failure] = deque(maxlen=FAILURES_SHOWN)
        self._passed: Counter[Outcome] = Counter()

    def tell(self, failures: Iterable[Failure]) -> None:
        """Take the reasons of rows that are counted later."""
        self._reasons.update({failure.ordinal: failure for failure in failures})

    def count(self, ordinal: int, outcome: Outcome, num_parts: int) -> None:
        """Count a row that gave nothing, or failed.

        Raises:
            BadSampleRateError: If rows fail too often, or at all under `policy: raise`.
            SourceError: If its epoch ends with it and gave no sample.
        """
        epoch, place = divmod(ordinal, self._terms.rows_per_epoch)
        self._count_barren(ordinal, outcome)
        failure = self._reasons.pop(ordinal, None)
        if failure is not None:
            self._newest.append(failure)
        if outcome in _NOTES:
            self._passed[outcome] += 1
        if outcome in BAD:
            self._count_failure(ordinal, outcome)
        else:
            self.check_first_rate(ordinal)
        if place == self._terms.rows_per_epoch - 1 and self.survivor_epoch != epoch and not num_parts:
            self._refuse_barren(f"epoch {epoch}")

    def left_out(self, ordinal: int) -> None:
        """Count a row of which the last sample fits no sequence, if the epoch has had nothing so far.

        Raises:
            SourceError: If the epoch ends with it.
        """
        epoch, place = divmod(ordinal, self._terms.rows_per_epoch)
        if self.survivor_epoch != epoch:
            self._count_barren(ordinal, Outcome.OVERFLOWED)
            if place == self._terms.rows_per_epoch - 1:
                self._refuse_barren(f"epoch {epoch}")

    def check_first_rate(self, ordinal: int) -> None:
        """Look at the rate when the first bucket is complete, whatever became of its last row."""
        if ordinal == BUCKET_ROWS - 1 and self._bad:
            self._check_rate(ordinal)

    def check_end(self, num_rows: int) -> None:
        """Raise `SourceError` for a source that has ended without one sample."""
        self._refuse_barren(f"all {num_rows} rows")

    def take_notes(self) -> list[str]:
        """Return what was passed over since the last call, one line for each reason."""
        notes = [
            f"source {self._terms.name!r}: {count} row{'s' * (count > 1)} "
            + _NOTES[outcome].format(they="they" if count > 1 else "it", their="their" if count > 1 else "its")
            for outcome, count in sorted(self._passed.items())
        ]
        self._passed.clear()
        return notes

    def state_dict(self) -> StateDict:
        """Return the counts; outcomes that are rare are left out where there are none."""
        barren = list(self._barren)
        while len(barren) > NUM_BARREN - 1 and not barren[-1]:
            barren.pop()
        return {
            "bad": [[bucket, count] for bucket, count in sorted(self._bad.items())],
            "survivor_epoch": self.survivor_epoch,
            "barren": [self._barren_epoch, *barren],
        }

    def load(self, saved: SavedSource) -> None:
        """Stand where `saved` was; what was told of rows after it is forgotten."""
        self._bad = dict(saved.bad)
        self.survivor_epoch = saved.survivor_epoch
        self._barren_epoch, *counts = saved.barren
        self._barren = [*counts, *[0] * (len(Outcome) - len(counts))]
        self.forget_from(saved.ordinal)

    def forget_from(self, ordinal: int) -> None:
        """Forget what was told of rows from an ordinal on."""
        self._reasons.clear()
        self._newest = deque((one for one in self._newest if one.ordinal < ordinal), maxlen=FAILURES_SHOWN)
        self._passed.clear()

    def _count_barren(self, ordinal: int, outcome: Outcome) -> None:
        epoch = ordinal // self._terms.rows_per_epoch
        if epoch != self._barren_epoch:
            self._barren_epoch, self._barren = epoch, [0] * len(Outcome)
        self._barren[outcome] += 1

    def _count_failure(self, ordinal: int, outcome: Outcome) -> None:
        bucket = ordinal // BUCKET_ROWS
        self._bad = {kept: count for kept, count in self._bad.items() if kept > bucket - RATE_BUCKETS}
        self._bad[bucket] = self._bad.get(bucket, 0) + 1
        if self._terms.raises:
            found = next((failure for failure in reversed(self._newest) if failure.ordinal == ordinal), None)
            row, reason = (None, "the loader lists why") if found is None else (_row(found), found.reason)
            ended = "was killed" if outcome == Outcome.KILLED else "failed"
            raise BadSampleRateError(
                f"source {self._terms.name!r}: {row or f'ordinal {ordinal}'} {ended} and on_error.policy is raise: "
                f"{reason}; repair the row, or set policy: skip"
            )
        if ordinal >= BUCKET_ROWS - 1:
            self._check_rate(ordinal)

    def _check_rate(self, ordinal: int) -> None:
        first = max(0, ordinal // BUCKET_ROWS - RATE_BUCKETS + 1)
        num_bad = sum(count for bucket, count in self._bad.items() if bucket >= first)
        num_rows = ordinal + 1 - first * BUCKET_ROWS
        if num_bad > self._terms.max_rate * num_rows:
            raise BadSampleRateError(
                f"source {self._terms.name!r}: {num_bad} of the last {num_rows} rows failed, "
                f"{num_bad / num_rows:.3g} > on_error.max_rate {self._terms.max_rate:g}; the newest are "
                f"{self._newest_failures()}; repair the data or its transforms, or raise max_rate"
            )

    def _refuse_barren(self, span: str) -> None:
        """Raise `SourceError` for rows that gave no sample, unless somebody asked for some of them to be skipped."""
        if self._barren[Outcome.SKIPPED]:
            return
        counts = ", ".join(f"{self._barren[kind]} {word}" for kind, word in _KINDS.items() if self._barren[kind])
        remedies = [_REMEDIES[kind] for kind in _KINDS if self._barren[kind]]
        failures = f"; the newest failures are {self._newest_failures()}" if self._newest else ""
        raise SourceError(
            f"source {self._terms.name!r}: {span} of {self._terms.rows_per_epoch} rows gave no sample ({counts})"
            f"{failures}; {', '.join([*remedies, 'or leave it out with weight 0'])}"
        )

    def _newest_failures(self) -> str:
        by_reason: dict[str, list[Failure]] = {}
        for failure in self._newest:
            by_reason.setdefault(failure.reason, []).append(failure)
        shown = [
            f"{_row(alike[0])}: {reason}" + (f" ({len(alike)} times)" if len(alike) > 1 else "")
            for reason, alike in list(by_reason.items())[-REASONS_SHOWN:]
        ]
        if len(by_reason) > len(shown):
            shown.append(f"and {len(by_reason) - len(shown)} other reasons")
        return " | ".join(shown) if shown else "listed by the loader"


def _row(failure: Failure) -> str:
    """Return where a row lies; what passed it over may know no more than its ordinal."""
    return (
        f"{failure.shard} row {failure.row} (ordinal {failure.ordinal})"
        if failure.shard
        else (f"ordinal {failure.ordinal}")
    )

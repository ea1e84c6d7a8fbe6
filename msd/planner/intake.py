"""One source as the planner sees it: rows come in by ordinal, samples go out in order, failures are counted."""

# R = rows of a table. S = samples (parts) of a table. L = runs of labelled positions.

from collections import Counter, deque
from itertools import repeat
from typing import Any

import numpy as np

from msd.core.sample import Failure, MetaTable, Outcome
from msd.core.state import StateDict
from msd.errors import BadSampleRateError, SourceError, StateError
from msd.planner.fitting import fit, notes_of
from msd.planner.piece import Piece
from msd.planner.primitives.pack import Pack
from msd.planner.saved import SavedSource, damaged
from msd.planner.settings import SourceTerms

BUCKET_ROWS = 100
"""Failures are counted by buckets of this many ordinals; a rate needs at least one bucket's worth ..."""
RATE_BUCKETS = 100
"""... and looks back over this many buckets: 10,000 ordinals."""
FAILURES_SHOWN = 10
REASONS_SHOWN = 3
"""Of the newest failures; equal reasons are told once."""
_KINDS = {
    Outcome.OK: "gave no part",
    Outcome.FILTERED: "filtered",
    Outcome.FAILED: "failed",
    Outcome.OVERFLOWED: "too large for a sequence",
}
_REMEDIES = {
    Outcome.OK: "have its transforms return samples",
    Outcome.FILTERED: "loosen its filters (samples without a token and chats without a turn to learn are filtered too)",
    Outcome.FAILED: "repair its rows or transforms",
    Outcome.OVERFLOWED: "raise batch.sequence_length or batch.limits, or cut its samples (overflow: split, chunk)",
}


class SourceIntake:
    """Observed rows of one source and how far they are drawn."""

    def __init__(self, terms: SourceTerms, index: int, *, keep_runs: bool, keep_images: bool = False) -> None:
        """Stand before the first row.

        Args:
            terms: What is known of the source.
            index: Its place among the sources.
            keep_runs: Whether samples may be cut, so that label runs must be kept.
            keep_images: Whether images are told apart.
        """
        self.terms = terms
        self.index = index
        self.ordinal = 0
        """Row of the next sample to draw; rows before it are consumed."""
        self.part = 0
        self.start = 0
        """First token of that sample that was not drawn; above 0 where a step's sequences are shorter than it."""
        self.num_tokens = 0
        self.num_samples = 0
        self.is_ended = terms.rows_per_epoch == 0 or terms.total_ordinals == 0
        self._observed_end = 0
        self._keep_runs = keep_runs
        self._keep_images = keep_images
        self._bad: dict[int, int] = {}
        self._survivor_epoch = -1
        self._barren_epoch = 0
        self._barren = [0] * len(Outcome)
        self._clear_observed()

    @property
    def needs(self) -> int:
        """Ordinal of the next row that was not observed yet."""
        return self._observed_end

    @property
    def is_empty(self) -> bool:
        """Whether the source never had a row to give."""
        return self.terms.rows_per_epoch == 0 or self.terms.total_ordinals == 0

    @property
    def stops_the_run(self) -> bool:
        """Whether the source has ended and nothing is drawn after it."""
        return self.is_ended and not self.is_empty and self.terms.end in ("stop", "repeat")

    def observe(self, table: MetaTable, *, max_tokens: int) -> None:
        """Take metadata of the rows that follow the ones observed.

        Raises:
            ValueError: If the table does not start where the last one ended, runs past the source's end, or holds a
                sample without tokens or longer than a sequence.
        """
        self._check(table, max_tokens)
        ordinal_R = np.arange(table.start, table.end, dtype=np.int64)
        num_parts_R = table.num_parts_R.astype(np.int64)
        ordinal_S = np.repeat(ordinal_R, num_parts_R)
        part_S = np.arange(len(ordinal_S)) - np.repeat(np.cumsum(num_parts_R) - num_parts_R, num_parts_R)
        run_end_S = np.cumsum(table.num_runs_S, dtype=np.int64)
        labels_L = np.concatenate([[0], np.cumsum(table.runs_L2[:, 1] - table.runs_L2[:, 0], dtype=np.int64)])
        num_valid_S = labels_L[run_end_S] - labels_L[run_end_S - table.num_runs_S]
        first, start = (self.part, self.start) if self._observed_end == self.ordinal else (0, 0)
        columns: list[list[Any]] = [
            column[first:].tolist()
            for column in (
                ordinal_S, part_S, table.num_tokens_S, num_valid_S, table.num_image_tokens_S, table.num_images_S,
                table.num_patches_S,
            )
        ]  # fmt: skip
        runs = _runs(table, run_end_S)[first:] if self._keep_runs else repeat(())
        images = _image_patches(table)[first:] if self._keep_images else repeat(())
        ordinals, parts, *rest = columns
        self._queue.extend(map(Piece, repeat(self.index), ordinals, parts, repeat(0), *rest, runs, images))
        if start and self._queue:
            self._queue[0] = self._cut_off(self._queue[0], start)
        odd_R = np.flatnonzero((num_parts_R == 0) | (table.outcome_R == Outcome.FAILED))
        for row in odd_R.tolist():
            if not (row == 0 and first):
                self._odd.append((table.start + row, Outcome(int(table.outcome_R[row])), int(num_parts_R[row])))
        self._reasons.update({failure.ordinal: failure for failure in table.failures})
        self._observed_end = table.end

    def draw(self, pack: Pack) -> Piece | None:
        """Return the next sample, or None: then the source either is ended or needs the row `needs`.

        Of a sample longer than the step's sequences it is what one of them takes; the rest comes next.

        Args:
            pack: With the sizes of the step.

        Raises:
            InputError: If the sample fits no sequence and `oversize` is error.
            BadSampleRateError: If the rows consumed on the way fail too often, or at all under `policy: raise`.
            SourceError: If a whole epoch, or all there is of the source, gives no sample.
        """
        while self._queue:
            piece = self._queue.popleft()
            drawn: Piece | None = piece
            if piece.length > pack.sequence_length or pack.limits.caps:
                drawn = self._fitted(piece, pack)
            ordinal = piece.ordinal
            if self._odd and self._odd[0][0] <= ordinal:
                self._pass_rows(ordinal + 1)
            if drawn is not None:
                self._survivor_epoch = ordinal // self.terms.rows_per_epoch
            if ordinal == BUCKET_ROWS - 1 and piece.part == 0 and self._bad:
                self._check_rate(ordinal)
            following = self._queue[0] if self._queue else None
            if following is not None and following.ordinal == ordinal:
                self.ordinal, self.part, self.start = ordinal, following.part, following.start
            else:
                self.ordinal, self.part, self.start = ordinal + 1, 0, 0
                if drawn is None:
                    self._pass_without_survivor(ordinal)
            if drawn is not None:
                self.num_tokens += drawn.length
                self.num_samples += drawn.start == 0
                return drawn
        self._pass_rows(self._observed_end)
        # After a resume inside a row nothing is observed yet, and the part must stay.
        if self._observed_end > self.ordinal:
            self.ordinal, self.part, self.start = self._observed_end, 0, 0
        self._end_if_exhausted()
        return None

    def take_notes(self) -> list[str]:
        """Return what was lost since the last call of samples that fit no sequence of their step, one line a reason."""
        notes = notes_of(self.terms.name, self._lost)
        self._lost.clear()
        return notes

    def state_dict(self) -> StateDict:
        """Return position and counts."""
        return {
            "rows": self.terms.rows_per_epoch,
            "ordinal": self.ordinal,
            "part": self.part,
            **({"start": self.start} if self.start else {}),
            "tokens": self.num_tokens,
            "samples": self.num_samples,
            "ended": self.is_ended,
            "bad": [[bucket, count] for bucket, count in sorted(self._bad.items())],
            "survivor_epoch": self._survivor_epoch,
            "barren": [self._barren_epoch, *self._barren],
        }

    def load(self, saved: SavedSource) -> None:
        """Stand where `saved` was; rows are to be observed from its ordinal on.

        Raises:
            StateError: If the source has another number of rows, or ends before that ordinal.
        """
        name, total = self.terms.name, self.terms.total_ordinals
        if saved.rows != self.terms.rows_per_epoch:
            raise StateError(
                f"cannot resume: source {name!r} had {saved.rows} rows an epoch, now it has "
                f"{self.terms.rows_per_epoch}; resume with the data that the state was saved with"
            )
        if total is not None and saved.ordinal > total:
            raise StateError(
                f"cannot resume: source {name!r} stands at ordinal {saved.ordinal}, and ends at {total} now; "
                "resume with the max_epochs that the state was saved with"
            )
        if saved.ended and not self.is_empty and (total is None or saved.ordinal < total):
            raise damaged(f"sources.{name}.ended cannot be true at ordinal {saved.ordinal} of {total or 'many'}")
        self.ordinal, self.part, self.start = saved.ordinal, saved.part, saved.start
        self.num_tokens, self.num_samples = saved.tokens, saved.samples
        self.is_ended = saved.ended or self.is_empty
        self._bad = dict(saved.bad)
        self._survivor_epoch = saved.survivor_epoch
        self._barren_epoch, *self._barren = saved.barren
        self._clear_observed()

    def _clear_observed(self) -> None:
        self._queue: deque[Piece] = deque()
        self._odd: deque[tuple[int, Outcome, int]] = deque()
        self._reasons: dict[int, Failure] = {}
        self._newest: deque[Failure] = deque(maxlen=FAILURES_SHOWN)
        self._lost: Counter[str] = Counter()
        self._observed_end = self.ordinal

    def _check(self, table: MetaTable, max_tokens: int) -> None:
        name, total = self.terms.name, self.terms.total_ordinals
        if table.start != self._observed_end:
            raise ValueError(
                f"source {name!r}: the planner needs rows from ordinal {self._observed_end}, got a table from "
                f"{table.start}; observe tables without gaps"
            )
        if total is not None and table.end > total:
            raise ValueError(f"source {name!r}: ends at ordinal {total}, got rows up to {table.end}")
        if self.is_empty and table.num_rows:
            raise ValueError(f"source {name!r}: has no rows, got {table.num_rows}")
        if self._keep_images and len(table.num_patches_I) != table.num_images_S.sum():
            raise ValueError(
                f"source {name!r}: the table has {table.num_images_S.sum()} images and the patches of "
                f"{len(table.num_patches_I)}"
            )
        if len(table.num_tokens_S) and not 1 <= table.num_tokens_S.min() <= table.num_tokens_S.max() <= max_tokens:
            raise ValueError(
                f"source {name!r}: samples have {table.num_tokens_S.min()} to {table.num_tokens_S.max()} tokens; every "
                f"sample needs 1 to sequence_length {max_tokens}, so a loader splits, truncates or drops the others"
            )

    def _cut_off(self, piece: Piece, start: int) -> Piece:
        """Return a sample from a token on: what the run stood at when it was saved."""
        if not max(1, piece.num_image_tokens) <= start < piece.length:
            raise damaged(f"sources.{self.terms.name}.start cannot be {start} in a sample of {piece.length} tokens")
        return piece.cut(start)[1]

    def _fitted(self, piece: Piece, pack: Pack) -> Piece | None:
        """Return what a sequence takes of a sample, or None for nothing; the rest is what comes next."""
        found = fit(piece, pack, self.terms)
        if found.rest is not None:
            self._queue.appendleft(found.rest)
        if found.lost:
            self._lost[found.lost] += 1
        return found.head

    def _pass_without_survivor(self, ordinal: int) -> None:
        """Count a row of which the last sample was left out, if the epoch has had nothing so far."""
        epoch, place = divmod(ordinal, self.terms.rows_per_epoch)
        if self._survivor_epoch != epoch:
            self._count_barren(ordinal, Outcome.OVERFLOWED)
            if place == self.terms.rows_per_epoch - 1:
                raise SourceError(self._barren_message(f"epoch {epoch}"))

    def _count_barren(self, ordinal: int, outcome: Outcome) -> None:
        epoch = ordinal // self.terms.rows_per_epoch
        if epoch != self._barren_epoch:
            self._barren_epoch, self._barren = epoch, [0] * len(Outcome)
        self._barren[outcome] += 1

    def _pass_rows(self, end: int) -> None:
        """Consume the barren and failed rows before ordinal `end`."""
        while self._odd and self._odd[0][0] < end:
            ordinal, outcome, num_parts = self._odd.popleft()
            epoch, place = divmod(ordinal, self.terms.rows_per_epoch)
            self._count_barren(ordinal, outcome)
            failure = self._reasons.pop(ordinal, None)
            if failure is not None:
                self._newest.append(failure)
            if outcome == Outcome.FAILED:
                self._count_failure(ordinal)
            elif ordinal == BUCKET_ROWS - 1 and self._bad:
                self._check_rate(ordinal)
            if place == self.terms.rows_per_epoch - 1 and self._survivor_epoch != epoch and not num_parts:
                raise SourceError(self._barren_message(f"epoch {epoch}"))

    def _count_failure(self, ordinal: int) -> None:
        bucket = ordinal // BUCKET_ROWS
        self._bad = {kept: count for kept, count in self._bad.items() if kept > bucket - RATE_BUCKETS}
        self._bad[bucket] = self._bad.get(bucket, 0) + 1
        if self.terms.raises:
            found = next((failure for failure in reversed(self._newest) if failure.ordinal == ordinal), None)
            row, reason = (None, "the loader lists why") if found is None else (_row(found), found.reason)
            raise BadSampleRateError(
                f"source {self.terms.name!r}: {row or f'ordinal {ordinal}'} failed and on_error.policy is raise: "
                f"{reason}; repair the row, or set policy: skip"
            )
        if ordinal >= BUCKET_ROWS - 1:
            self._check_rate(ordinal)

    def _check_rate(self, ordinal: int) -> None:
        first = max(0, ordinal // BUCKET_ROWS - RATE_BUCKETS + 1)
        num_bad = sum(count for bucket, count in self._bad.items() if bucket >= first)
        num_rows = ordinal + 1 - first * BUCKET_ROWS
        if num_bad > self.terms.max_rate * num_rows:
            raise BadSampleRateError(
                f"source {self.terms.name!r}: {num_bad} of the last {num_rows} rows failed, "
                f"{num_bad / num_rows:.3g} > on_error.max_rate {self.terms.max_rate:g}; the newest are "
                f"{self._newest_failures()}; repair the data or its transforms, or raise max_rate"
            )

    def _end_if_exhausted(self) -> None:
        total = self.terms.total_ordinals
        if total is None or self.ordinal < total:
            return
        if not self.num_samples and not self.is_ended:
            raise SourceError(self._barren_message(f"all {total} rows"))
        self.is_ended = True

    def _barren_message(self, span: str) -> str:
        counts = ", ".join(f"{self._barren[kind]} {word}" for kind, word in _KINDS.items() if self._barren[kind])
        remedies = [_REMEDIES[kind] for kind in _KINDS if self._barren[kind]]
        failures = f"; the newest failures are {self._newest_failures()}" if self._newest else ""
        return (
            f"source {self.terms.name!r}: {span} of {self.terms.rows_per_epoch} rows gave no sample ({counts})"
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
    return f"{failure.shard} row {failure.row} (ordinal {failure.ordinal})"


def _image_patches(table: MetaTable) -> list[tuple[int, ...]]:
    """Return for each sample with several images the patches of each."""
    patches, counts = table.num_patches_I.tolist(), table.num_images_S.tolist()
    ends = np.cumsum(table.num_images_S, dtype=np.int64).tolist()
    return [tuple(patches[end - n : end]) if n > 1 else () for end, n in zip(ends, counts, strict=True)]


def _runs(table: MetaTable, run_end_S: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[tuple[int, int], ...]]:
    pairs = [(first, last) for first, last in table.runs_L2.tolist()]
    ends = run_end_S.tolist()
    return [tuple(pairs[end - count : end]) for end, count in zip(ends, table.num_runs_S.tolist(), strict=True)]

"""One source as the planner sees it: rows come in by ordinal, samples go out in order, failures are counted."""

# R = rows of a table. S = samples (parts) of a table. L = runs of labelled positions.

from collections import Counter, deque
from collections.abc import Sequence
from itertools import groupby, repeat
from typing import Any

import numpy as np

from msd.core.journal import SkipRows
from msd.core.sample import AdmittedFrom, MetaTable, Outcome
from msd.core.state import StateDict
from msd.errors import StateError
from msd.planner.fitting import fit, notes_of
from msd.planner.losses import BAD, BUCKET_ROWS, Losses
from msd.planner.piece import Piece
from msd.planner.primitives.pack import Pack
from msd.planner.saved import SavedSource, damaged
from msd.planner.settings import SourceTerms
from msd.planner.tables import passed_over, rows_from

FIRST_CHECK = BUCKET_ROWS - 1
"""The ordinal at which a rate of failures is known first."""


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
        self._ledger: tuple[int, str] | None = None
        """Of a source without an end: the number of admissions up to the row last consumed, and their digest."""
        self.is_ended = terms.rows_per_epoch == 0 or terms.total_ordinals == 0
        self._keep_runs = keep_runs
        self._keep_images = keep_images
        self._losses = Losses(terms)
        self._skips: tuple[SkipRows, ...] = ()
        self._tables: deque[MetaTable] = deque()
        """Observed, and not forgotten: what is needed to stand at the last boundary once more."""
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
        self._tables.append(table)
        self._take(table)

    def pass_over(self, skips: Sequence[SkipRows]) -> None:
        """Give no sample of these rows from now on; call it at a boundary between steps."""
        self._skips = tuple(skips)
        self._take_again()

    def forget_observed(self) -> None:
        """Stand at a boundary between steps: what was observed before it is not needed once more."""
        while self._tables and self._tables[0].end <= self.ordinal:
            self._tables.popleft()
        self._ledger = self._stands_in()
        while self._admissions and self._admissions[0].first < self.ordinal:
            self._admissions.popleft()

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
                self._losses.survivor_epoch = ordinal // self.terms.rows_per_epoch
            if ordinal == FIRST_CHECK and piece.part == 0:
                self._losses.check_first_rate(ordinal)
            following = self._queue[0] if self._queue else None
            if following is not None and following.ordinal == ordinal:
                self.ordinal, self.part, self.start = ordinal, following.part, following.start
            else:
                self.ordinal, self.part, self.start = ordinal + 1, 0, 0
                if drawn is None:
                    self._losses.left_out(ordinal)
            if drawn is not None:
                self.num_tokens += drawn.num_tokens if drawn.inner else drawn.length
                self.num_samples += len(drawn.inner) if drawn.inner else drawn.start == 0
                return drawn
        self._pass_rows(self._observed_end)
        # After a resume inside a row nothing is observed yet, and the part must stay.
        if self._observed_end > self.ordinal:
            self.ordinal, self.part, self.start = self._observed_end, 0, 0
        self._end_if_exhausted()
        return None

    def take_notes(self) -> list[str]:
        """Return what was lost since the last call: rows passed over, samples that fit no sequence of their step."""
        notes = [*self._losses.take_notes(), *notes_of(self.terms.name, self._lost)]
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
            **({} if (ledger := self._stands_in()) is None else {"ledger": list(ledger)}),
            **self._losses.state_dict(),
        }

    def stands_at(self, saved: SavedSource) -> bool:
        """Return whether nothing was drawn since `saved`."""
        here = (self.ordinal, self.part, self.start, self.num_tokens, self.num_samples, self.is_ended)
        return here == (saved.ordinal, saved.part, saved.start, saved.tokens, saved.samples, saved.ended)

    def load(self, saved: SavedSource) -> None:
        """Stand where `saved` was. Rows that were observed from its ordinal on, without a gap, stay so.

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
        self._ledger = saved.ledger
        self._admissions.clear()
        self._losses.load(saved)
        self._take_again()

    def _take_again(self) -> None:
        """Take what was observed as if it came only now."""
        self._ledger = self._stands_in()
        self._clear_observed()
        for table in self._tables:
            if table.end > self.ordinal:
                self._take(rows_from(table, self.ordinal))

    def _clear_observed(self) -> None:
        self._queue: deque[Piece] = deque()
        self._odd: deque[tuple[int, Outcome, int]] = deque()
        self._admissions: deque[AdmittedFrom] = deque()
        self._lost: Counter[str] = Counter()
        self._losses.forget_from(self.ordinal)
        self._observed_end = self.ordinal

    def _take(self, table: MetaTable) -> None:
        """Make pieces of a table of rows that follow those taken."""
        table = passed_over(table, self._skips) if self._skips else table
        ordinal_R = np.arange(table.start, table.end, dtype=np.int64)
        num_parts_R = table.num_parts_R.astype(np.int64)
        ordinal_S = np.repeat(ordinal_R, num_parts_R)
        part_S = np.arange(len(ordinal_S)) - np.repeat(np.cumsum(num_parts_R) - num_parts_R, num_parts_R)
        run_end_S = np.cumsum(table.num_runs_S, dtype=np.int64)
        labels_L = np.concatenate([[0], np.cumsum(table.runs_L2[:, 1] - table.runs_L2[:, 0], dtype=np.int64)])
        num_valid_S = labels_L[run_end_S] - labels_L[run_end_S - table.num_runs_S]
        first, start = (self.part, self.start) if self._observed_end == self.ordinal else (0, 0)
        if (first or start) and table.num_rows and not num_parts_R[0]:
            # What was left of a row that was drawn in part is passed over.
            first = start = 0
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
        pieces = map(Piece, repeat(self.index), ordinals, parts, repeat(0), *rest, runs, images)
        written = self.terms.written
        if written is None:
            self._queue.extend(pieces)
        else:
            rows = groupby(pieces, key=lambda piece: piece.ordinal)
            self._queue.extend(Piece.whole(list(held), written.sequence_length) for _, held in rows)
        if start and self._queue:
            self._queue[0] = self._cut_off(self._queue[0], start)
        odd_R = np.flatnonzero((num_parts_R == 0) | np.isin(table.outcome_R, BAD))
        for row in odd_R.tolist():
            if not (row == 0 and first):
                self._odd.append((table.start + row, Outcome(int(table.outcome_R[row])), int(num_parts_R[row])))
        self._losses.tell(table.failures)
        self._admissions.extend(table.admissions)
        self._observed_end = table.end

    def _stands_in(self) -> tuple[int, str] | None:
        """Return where in its ledger the row stands that was consumed last; a function of the ordinal alone."""
        found = self._ledger
        for admitted in self._admissions:
            if admitted.first >= self.ordinal:
                break
            found = admitted.through, admitted.chain
        return found

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

    def _pass_rows(self, end: int) -> None:
        """Consume the barren and failed rows before ordinal `end`."""
        while self._odd and self._odd[0][0] < end:
            self._losses.count(*self._odd.popleft())

    def _end_if_exhausted(self) -> None:
        total = self.terms.total_ordinals
        if total is None or self.ordinal < total:
            return
        if not self.num_samples and not self.is_ended:
            self._losses.check_end(total)
        self.is_ended = True


def _image_patches(table: MetaTable) -> list[tuple[int, ...]]:
    """Return for each sample with several images the patches of each."""
    patches, counts = table.num_patches_I.tolist(), table.num_images_S.tolist()
    ends = np.cumsum(table.num_images_S, dtype=np.int64).tolist()
    return [tuple(patches[end - n : end]) if n > 1 else () for end, n in zip(ends, counts, strict=True)]


def _runs(table: MetaTable, run_end_S: np.ndarray[Any, np.dtype[np.int64]]) -> list[tuple[tuple[int, int], ...]]:
    pairs = [(first, last) for first, last in table.runs_L2.tolist()]
    ends = run_end_S.tolist()
    return [tuple(pairs[end - count : end]) for end, count in zip(ends, table.num_runs_S.tolist(), strict=True)]

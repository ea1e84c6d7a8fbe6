"""Samples one after another, cut where a sequence ends."""

from msd.planner.piece import Piece, extent
from msd.planner.primitives.pack.op import Pack


class Concat:
    """Samples follow one another; one that does not fit is cut at the end of the sequence.

    Image placeholders and packed rows are never cut: where they do not fit, or a limit would be passed, the rest of the
    sequence stays empty.
    """

    def __init__(self, op: Pack) -> None:
        """Start at the beginning of the first sequence."""
        self.sequences: list[list[Piece]] = [[] for _ in range(op.num_sequences)]
        self.carry: list[Piece] = []
        self._op = op
        self._place = 0
        self._room = op.sequence_length
        self._loads = [0] * len(op.limits.caps)

    @property
    def is_closed(self) -> bool:
        """Whether the last sequence is full."""
        return self._place == self._op.num_sequences

    @property
    def num_empty(self) -> int:
        """Sequences without a document."""
        return sum(not sequence for sequence in self.sequences)

    def offer(self, piece: Piece) -> None:
        """Take one more sample, in as many pieces as it needs; what is left over is carried."""
        rest: Piece | None = piece
        while rest is not None and not self.is_closed:
            if rest.num_uncut > self._room:
                self._next_sequence()
                continue
            fits = extent(rest.length, self._op.document_multiple) <= self._room
            head, tail = (rest, None) if fits else rest.cut(self._room)
            if self._is_within_limits(head):
                self._put(head)
                rest = tail
            else:
                self._next_sequence()
        if rest is not None:
            self.carry.append(rest)

    def finish(self, *, drop: bool) -> bool:
        """Return whether the step may go out: with `drop`, when no sequence is empty."""
        return not (drop and self.num_empty)

    def _put(self, piece: Piece) -> None:
        self.sequences[self._place].append(piece)
        self._room -= extent(piece.length, self._op.document_multiple)
        self._loads = [held + more for held, more in zip(self._loads, self._op.limits.loads(piece), strict=True)]
        if self._room < self._op.document_multiple:
            self._next_sequence()

    def _is_within_limits(self, piece: Piece) -> bool:
        limits = self._op.limits
        triples = zip(self._loads, limits.loads(piece), limits.caps, strict=True)
        return all(held + more <= cap for held, more, cap in triples)

    def _next_sequence(self) -> None:
        self._place += 1
        self._room = self._op.sequence_length
        self._loads = [0] * len(self._loads)

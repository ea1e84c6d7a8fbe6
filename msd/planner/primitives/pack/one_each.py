"""Every sample in a sequence of its own."""

from collections.abc import Sequence

from msd.planner.piece import Piece
from msd.planner.primitives.pack.op import Pack


class OnePerSequence:
    """Every sample has a sequence of its own, padded; the step has a given number of them."""

    def __init__(self, op: Pack) -> None:
        """Start with every sequence empty."""
        self.sequences: list[list[Piece]] = [[] for _ in range(op.num_sequences)]
        self.carry: list[Piece] = []
        self._num_started = 0

    @property
    def is_closed(self) -> bool:
        """Whether every sequence has its sample."""
        return self._num_started == len(self.sequences)

    @property
    def num_empty(self) -> int:
        """Sequences without a document."""
        return len(self.sequences) - self._num_started

    def offer(self, piece: Piece) -> None:
        """Take one more sample."""
        if self.is_closed:
            self.carry.append(piece)
            return
        self.sequences[self._num_started].append(piece)
        self._num_started += 1

    def finish(self, *, drop: bool) -> bool:
        """Return whether the step may go out: with `drop`, when no sequence is empty."""
        return not (drop and self.num_empty)


class ByTokens:
    """Every sample has a sequence of its own, and the step takes samples while they have at most `max_tokens` tokens.

    The number of sequences is a multiple of `multiple_of`, and at least that: samples over the multiple wait, so less
    than `multiple_of` and one wait for one step. When no more comes, sequences may be left that hold nothing.
    """

    def __init__(self, op: Pack, max_tokens: int) -> None:
        """Start without a sequence."""
        self._multiple = op.multiple_of
        self._max_tokens = max_tokens
        self._taken: list[Piece] = []
        self._waits: list[Piece] = []
        self._num_tokens = 0
        self._is_finished = False

    @property
    def sequences(self) -> Sequence[Sequence[Piece]]:
        """The sample of each sequence; when the step closed, as many as the multiple allows."""
        return [[piece] for piece in self._taken] + [[] for _ in range(self.num_empty)]

    @property
    def carry(self) -> Sequence[Piece]:
        """Samples over the multiple, then the one that passed `max_tokens`."""
        return tuple(self._waits)

    @property
    def is_closed(self) -> bool:
        """Whether the next sample would have passed `max_tokens`."""
        return bool(self._waits)

    @property
    def num_empty(self) -> int:
        """Sequences that the multiple still lacks."""
        return -len(self._taken) % self._multiple if self._taken else self._multiple

    def offer(self, piece: Piece) -> None:
        """Take one more sample, or close the step."""
        if self.is_closed:
            self._waits.append(piece)
        elif self._takes(piece):
            self._taken.append(piece)
            self._num_tokens += piece.num_tokens
        else:
            self._waits.append(piece)
            self._round_down()

    def finish(self, *, drop: bool) -> bool:
        """Return whether the step may go out: with `drop`, when a sequence is left without those over the multiple.

        What is offered from now on fills up the multiple, whatever it has of tokens.
        """
        self._is_finished = True
        if drop:
            self._round_down()
        return bool(self._taken)

    def _takes(self, piece: Piece) -> bool:
        is_below = self._is_finished or len(self._taken) < self._multiple
        return is_below or self._num_tokens + piece.num_tokens <= self._max_tokens

    def _round_down(self) -> None:
        """Let the samples over the multiple wait."""
        whole = len(self._taken) // self._multiple * self._multiple
        self._waits[:0] = self._taken[whole:]
        del self._taken[whole:]

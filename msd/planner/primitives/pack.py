"""Samples to sequences. Knows no mesh: what a step holds is the same for every layout."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from msd.core.checks import whole_number
from msd.errors import ConfigError
from msd.planner.piece import Piece

METHODS = ("best_fit", "concat", "none")
_PLACE_BITS = 32


@dataclass(frozen=True, slots=True)
class Pack:
    """Op of a graph: how a step's sequences are filled."""

    method: Literal["best_fit", "concat", "none"]
    num_sequences: int
    sequence_length: int
    document_multiple: int
    lookahead: int

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"pack has no method {self.method!r}; the methods are {', '.join(METHODS)}")
        for name in ("num_sequences", "sequence_length", "document_multiple", "lookahead"):
            value = whole_number(getattr(self, name), name=f"pack: {name}")
            if value < 1:
                raise ConfigError(f"pack: {name} must be at least 1, got {value}")

    @property
    def cuts(self) -> bool:
        """Whether a part may be cut at the end of a sequence."""
        return self.method == "concat"

    @property
    def most_carried(self) -> int:
        """Largest number of samples that can wait between two steps."""
        return {"best_fit": self.lookahead, "concat": 1}.get(self.method, 0)

    def new(self) -> "Packer":
        """Return the empty sequences of a step."""
        if self.method == "best_fit":
            return BestFit(self)
        return Concat(self) if self.method == "concat" else OnePerSequence(self)

    def __str__(self) -> str:
        return f"pack({self.method!r}, {self.num_sequences} x {self.sequence_length}, lookahead={self.lookahead})"


class Packer(Protocol):
    """The sequences of one step, being filled."""

    @property
    def sequences(self) -> Sequence[Sequence[Piece]]:
        """Documents of each sequence, in order of offset; empty sequences last."""
        ...

    @property
    def carry(self) -> Sequence[Piece]:
        """Samples drawn that the next step begins with."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether the step takes no more."""
        ...

    @property
    def num_empty(self) -> int:
        """Sequences without a document."""
        ...

    def offer(self, piece: Piece) -> None:
        """Take one more sample: into a sequence, or to the carry."""
        ...


def extent(length: int, multiple: int) -> int:
    """Return the room that a document takes: its length rounded up to the document multiple."""
    return -(-length // multiple) * multiple


class BestFit:
    """Each sample goes to the fullest sequence with room, else waits for the next step.

    The step closes when every sequence is full, when `lookahead` samples wait, or when one more might make them more
    than a step holds: extents of all that waits never exceed its sequences, whatever `lookahead` says. A sample only
    waits when no sequence is empty, so a step that closes has no empty sequence.

    A step that cannot place a sample is more than half full, as any two of its sequences together exceed one. So of a
    full step's worth that waited, less than half waits once more, and is placed first in the step after: nothing waits
    for more than two steps. With a lookahead of at most the sequences of a step, each that waits finds one in the next.
    """

    def __init__(self, op: Pack) -> None:
        """Start with every sequence empty."""
        self.sequences: list[list[Piece]] = [[] for _ in range(op.num_sequences)]
        self.carry: list[Piece] = []
        self._op = op
        # Sequences with room, as room << _PLACE_BITS | place, in increasing order: the first that fits is the fullest.
        self._open: list[int] = []
        self._num_started = 0
        self._waiting = 0
        """Extents of all that waits."""
        # Not reached before `lookahead` samples wait where there are as many sequences.
        self._may_wait = (op.num_sequences - 1) * op.sequence_length

    @property
    def is_closed(self) -> bool:
        """Whether every sequence is full, or as much waits as may."""
        if self.carry and (len(self.carry) >= self._op.lookahead or self._waiting > self._may_wait):
            return True
        return self.num_empty == 0 and not self._open

    @property
    def num_empty(self) -> int:
        """Sequences without a document."""
        return self._op.num_sequences - self._num_started

    def offer(self, piece: Piece) -> None:
        """Take one more sample."""
        taken = extent(piece.length, self._op.document_multiple)
        at = bisect_left(self._open, taken << _PLACE_BITS)
        if at < len(self._open):
            room, place = divmod(self._open.pop(at), 1 << _PLACE_BITS)
        elif self._num_started < self._op.num_sequences:
            room, place = self._op.sequence_length, self._num_started
            self._num_started += 1
        else:
            self.carry.append(piece)
            self._waiting += taken
            return
        self.sequences[place].append(piece)
        if room - taken >= self._op.document_multiple:
            insort(self._open, (room - taken) << _PLACE_BITS | place)


class Concat:
    """Samples follow one another; one that does not fit is cut at the end of the sequence.

    Image placeholders are never cut: where they do not fit, the rest of the sequence stays empty.
    """

    def __init__(self, op: Pack) -> None:
        """Start at the beginning of the first sequence."""
        self.sequences: list[list[Piece]] = [[] for _ in range(op.num_sequences)]
        self.carry: list[Piece] = []
        self._op = op
        self._place = 0
        self._room = op.sequence_length

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
            if rest.num_image_tokens > self._room:
                self._next_sequence()
            elif extent(rest.length, self._op.document_multiple) <= self._room:
                self._put(rest)
                rest = None
            else:
                head, rest = rest.cut(self._room)
                self._put(head)
        if rest is not None:
            self.carry.append(rest)

    def _put(self, piece: Piece) -> None:
        self.sequences[self._place].append(piece)
        self._room -= extent(piece.length, self._op.document_multiple)
        if self._room < self._op.document_multiple:
            self._next_sequence()

    def _next_sequence(self) -> None:
        self._place += 1
        self._room = self._op.sequence_length


class OnePerSequence:
    """Every sample has a sequence of its own, padded."""

    carry: Sequence[Piece] = ()

    def __init__(self, op: Pack) -> None:
        """Start with every sequence empty."""
        self.sequences: list[list[Piece]] = [[] for _ in range(op.num_sequences)]
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
        self.sequences[self._num_started].append(piece)
        self._num_started += 1


def begin(op: Pack, carry: Iterable[Piece]) -> Packer:
    """Return the packer of a step that begins with `carry`; what finds no room goes on waiting, in order."""
    packer = op.new()
    for piece in carry:
        packer.offer(piece)
    return packer

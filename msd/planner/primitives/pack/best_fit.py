"""Each sample to the fullest sequence that can take it, as it is drawn."""

from bisect import bisect_left, insort

from msd.planner.piece import Piece, extent
from msd.planner.primitives.pack.limits import Loads
from msd.planner.primitives.pack.op import Pack

_PLACE_BITS = 32
_PLACE = (1 << _PLACE_BITS) - 1


class BestFit:
    """Each sample goes to the fullest sequence that can take it, else waits for the next step.

    The step closes when every sequence is full, when `lookahead` samples wait, or when one more might make them more
    than a step holds: sizes of all that waits never exceed its sequences, whatever `lookahead` says. A sample only
    waits when no sequence is empty, so a step that closes has no empty sequence.

    A step that cannot place a sample is more than half full, as any two of its sequences together exceed one. So of a
    full step's worth that waited, less than half waits once more, and is placed first in the step after: nothing waits
    for more than two steps. With a lookahead of at most the sequences of a step, each that waits finds one in the next;
    `max_age: 1` keeps the lookahead there. A step with fewer or shorter sequences than the one before may take longer
    to place what waits.
    """

    def __init__(self, op: Pack) -> None:
        """Start with every sequence empty."""
        self.sequences: list[list[Piece]] = [[] for _ in range(op.num_sequences)]
        self.carry: list[Piece] = []
        self._op = op
        self._multiple = op.document_multiple
        self._is_limited = bool(op.limits)
        self._lookahead = op.lookahead if op.max_age > 1 else min(op.lookahead, op.num_sequences)
        # Sequences with room, as room << _PLACE_BITS | place, in increasing order: the first that fits is the fullest.
        self._open: list[int] = []
        self._num_started = 0
        self._loads: list[Loads] = []
        """Of each sequence that was started, where there are limits."""
        self._waiting = 0
        """Sizes of all that waits."""
        # Not reached before `lookahead` samples wait where there are as many sequences.
        self._may_wait = (op.num_sequences - 1) * op.sequence_length

    @property
    def is_closed(self) -> bool:
        """Whether every sequence is full, or as much waits as may."""
        if self.carry and (len(self.carry) >= self._lookahead or self._waiting > self._may_wait):
            return True
        return not self._open and self.num_empty == 0

    @property
    def num_empty(self) -> int:
        """Sequences without a document."""
        return self._op.num_sequences - self._num_started

    def offer(self, piece: Piece) -> None:
        """Take one more sample."""
        taken, open_ = extent(piece.length, self._multiple), self._open
        at = bisect_left(open_, taken << _PLACE_BITS)
        if self._is_limited:
            at = self._first_within_limits(at, piece)
        if at < len(open_):
            fullest = open_.pop(at)
            room, place = fullest >> _PLACE_BITS, fullest & _PLACE
        elif self._num_started < self._op.num_sequences:
            room, place = self._op.sequence_length, self._num_started
            self._num_started += 1
        else:
            self.carry.append(piece)
            self._waiting += self._op.limits.size(piece, taken, self._op.sequence_length)
            return
        self.sequences[place].append(piece)
        if self._is_limited:
            self._add_loads(place, piece)
        if room - taken >= self._multiple:
            insort(open_, (room - taken) << _PLACE_BITS | place)

    def finish(self, *, drop: bool) -> bool:
        """Return whether the step may go out: with `drop`, when no sequence is empty."""
        return not (drop and self.num_empty)

    def _first_within_limits(self, at: int, piece: Piece) -> int:
        loads, caps = self._op.limits.loads(piece), self._op.limits.caps
        for index in range(at, len(self._open)):
            held = self._loads[self._open[index] & _PLACE]
            if all(load + more <= cap for load, more, cap in zip(held, loads, caps, strict=True)):
                return index
        return len(self._open)

    def _add_loads(self, place: int, piece: Piece) -> None:
        loads = self._op.limits.loads(piece)
        if place == len(self._loads):
            self._loads.append(loads)
        else:
            self._loads[place] = tuple(held + more for held, more in zip(self._loads[place], loads, strict=True))

"""A pool of samples, the longest placed first."""

# S = sequences. L = limits that are set.

from collections.abc import Sequence

import numpy as np

from msd.core.arrays import BoolArray, Int64Array
from msd.planner.piece import Piece, extent
from msd.planner.primitives.pack.op import Pack


class FirstFitDecreasing:
    """Samples are collected first; then the longest is placed first, and what finds no room waits.

    The pool, which is what waited and then what is drawn, is complete when it is larger than the step by `lookahead`
    samples, or by half a step. Each sample goes to the first sequence that can take it or, with `objective: cost`, to
    the one with the least attention (the sum of squared lengths), so that sequences cost about the same; short samples
    come last and fill what is left.

    Short samples would wait for ever beside long ones. So a sample that has waited `max_age - 1` steps is placed before
    all younger ones, the oldest first. That it waits `max_age` steps at most follows from two facts. First-fit
    decreasing places anything that is no larger than half a step, and else more than half a step of it. And the pool
    has at most one and a half steps, so less than one waits. Of that, less than half waits once more when it is placed
    first; and then all of it is placed. Two things may take longer: a step with fewer or shorter sequences than the one
    before; and limits, under which a pool that leaves no sequence empty may be larger than one and a half steps. Each
    step then places more than half a step of what must go.
    """

    def __init__(self, op: Pack, step: int) -> None:
        """Start with an empty pool.

        Args:
            op: With the sizes of the step.
            step: Its number, which the age of what waited is counted to.
        """
        self._op = op
        self._step = step
        self._pool: list[Piece] = []
        self._size = 0
        """Of all that is in the pool."""
        self._tokens = 0
        self._load_L = [0] * len(op.limits.caps)
        self._full = op.num_sequences * op.sequence_length
        self._is_full = False
        """Whether the pool has more than fewer sequences could hold, so that none stays empty."""
        self._num_over = 0
        """Samples of the pool that came after it was full."""
        self._may_be = (op.num_sequences + max(0, op.num_sequences // 2 - 1)) * op.sequence_length
        self._placed: _Placed | None = None

    @property
    def sequences(self) -> Sequence[Sequence[Piece]]:
        """Documents of each sequence, in order of offset; empty sequences last."""
        return self._settled().sequences

    @property
    def carry(self) -> Sequence[Piece]:
        """Samples that found no room, in the order in which they were drawn."""
        return self._settled().carry

    @property
    def is_closed(self) -> bool:
        """Whether the pool is complete."""
        return self._is_full and (self._num_over >= self._op.lookahead or self._size > self._may_be)

    @property
    def num_empty(self) -> int:
        """Sequences without a document."""
        return sum(not sequence for sequence in self.sequences)

    def offer(self, piece: Piece) -> None:
        """Take one more sample: into the pool, or, when the pool has been placed, to a sequence or the carry."""
        if self._placed is not None:
            if not self._placed.put(piece):
                self._placed.carry.append(piece)
            return
        self._num_over += self._is_full
        self._pool.append(piece)
        taken = extent(piece.length, self._op.document_multiple)
        self._tokens += taken
        self._is_full |= self._tokens >= self._full
        if not self._op.limits.caps:
            self._size = self._tokens
            return
        self._size += self._op.limits.size(piece, taken, self._op.sequence_length)
        self._load_L = [load + more for load, more in zip(self._load_L, self._op.limits.loads(piece), strict=True)]
        caps = zip(self._load_L, self._op.limits.caps, strict=True)
        self._is_full |= any(load >= self._op.num_sequences * cap for load, cap in caps)

    def finish(self, *, drop: bool) -> bool:
        """Return whether the step may go out: with `drop`, when no sequence is empty."""
        return not (drop and self.num_empty)

    def _settled(self) -> "_Placed":
        if self._placed is None:
            pool, placed = self._pool, _Placed(self._op)
            evenly = self._op.objective == "cost"
            must_go = self._step - self._op.max_age + 1
            first = sorted(range(len(pool)), key=lambda n: (min(pool[n].drawn, must_go + 1), -pool[n].length, n))
            waits = sorted(n for n in first if not placed.put(pool[n], evenly=evenly and pool[n].drawn > must_go))
            placed.carry = [pool[n] for n in waits]
            self._placed = placed
        return self._placed


class _Placed:
    """Sequences that samples are placed into, one by one."""

    def __init__(self, op: Pack) -> None:
        self.sequences: list[list[Piece]] = [[] for _ in range(op.num_sequences)]
        self.carry: list[Piece] = []
        self._op = op
        self._room_S: Int64Array = np.full(op.num_sequences, op.sequence_length, dtype=np.int64)
        self._left_SL = np.tile(np.array(op.limits.caps, dtype=np.int64), (op.num_sequences, 1))
        """What each sequence may still take of each limit."""
        self._attention_S: Int64Array = np.zeros(op.num_sequences, dtype=np.int64)

    def put(self, piece: Piece, *, evenly: bool = False) -> bool:
        """Place a sample; return whether a sequence can take it."""
        taken, limits = extent(piece.length, self._op.document_multiple), self._op.limits
        can_S: BoolArray = self._room_S >= taken
        load_L = limits.loads(piece) if limits.caps else ()
        if load_L:
            can_S &= np.logical_and.reduce(self._left_SL >= load_L, axis=1)
        if evenly:
            place = int(np.where(can_S, self._attention_S, _NEVER).argmin())
        else:
            place = int(can_S.argmax())
        if not can_S[place]:
            return False
        self.sequences[place].append(piece)
        self._room_S[place] -= taken
        if load_L:
            self._left_SL[place] -= load_L
        self._attention_S[place] += piece.length**2
        return True


_NEVER = np.iinfo(np.int64).max

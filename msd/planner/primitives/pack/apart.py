"""Long samples and short ones in sequences of their own, as long as there are empty ones."""

from bisect import bisect_left

from msd.planner.piece import Piece, extent
from msd.planner.primitives.pack.best_fit import _PLACE_BITS, BestFit
from msd.planner.primitives.pack.op import Pack


class BestFitApart(BestFit):
    """Each sample goes to the fullest sequence of its kind that can take it; while one is empty, never to the other's.

    A sequence is of the kind of its first sample. So long samples are in few sequences, topped up by short ones at the
    end of the step, and the other sequences hold short ones alone.

    A sample waits when no sequence of either kind can take it, so a step that closes has no empty sequence. At most as
    many wait as a step has sequences: then each finds one in the next, and nothing waits for more than one step.
    """

    def __init__(self, op: Pack) -> None:
        """Start with every sequence empty."""
        super().__init__(op)
        self._lookahead = min(op.lookahead, op.num_sequences)
        self._open_by_kind: tuple[list[int], list[int]] = ([], [])
        """Short and long: sequences with room, as in `_open`."""

    @property
    def is_closed(self) -> bool:
        """Whether every sequence is full, or as much waits as may."""
        if self.carry and (len(self.carry) >= self._lookahead or self._waiting > self._may_wait):
            return True
        return self.num_empty == 0 and not any(self._open_by_kind)

    def offer(self, piece: Piece) -> None:
        """Take one more sample."""
        assert self._op.apart is not None
        is_long = piece.length >= self._op.apart
        self._open = self._open_by_kind[is_long]
        if not self.num_empty and not self._has_room_for(piece):
            self._open = self._open_by_kind[not is_long]
        super().offer(piece)

    def _has_room_for(self, piece: Piece) -> bool:
        at = bisect_left(self._open, extent(piece.length, self._op.document_multiple) << _PLACE_BITS)
        return (self._first_within_limits(at, piece) if self._op.limits else at) < len(self._open)

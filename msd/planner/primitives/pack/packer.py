"""What fills the sequences of one step, one sample after another."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from msd.planner.piece import Piece
from msd.planner.primitives.pack.apart import BestFitApart
from msd.planner.primitives.pack.best_fit import BestFit
from msd.planner.primitives.pack.concat import Concat
from msd.planner.primitives.pack.first_fit import FirstFitDecreasing
from msd.planner.primitives.pack.one_each import ByTokens, OnePerSequence
from msd.planner.primitives.pack.op import Pack


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
        """Take one more sample: into a sequence, or to the carry. No sequence is too small for it."""
        ...

    def finish(self, *, drop: bool) -> bool:
        """Take it that nothing more is drawn; return whether the step may go out.

        With `drop` no step may that has an empty sequence; a packer whose number of sequences follows from the samples
        gives up those over the multiple, and carries what they held. Otherwise empty sequences are for the caller to
        leave as they are, or to fill.
        """
        ...


def begin(op: Pack, carry: Iterable[Piece], step: int = 0) -> Packer:
    """Return the packer of a step that begins with `carry`; what finds no room goes on waiting, in order.

    Args:
        op: With the sizes of the step; see `Pack.at`.
        carry: Samples that the last step left, in the order in which they were drawn.
        step: Number of the step.
    """
    packer = _new(op, step)
    for piece in carry:
        packer.offer(piece)
    return packer


def _new(op: Pack, step: int) -> Packer:
    if op.method == "best_fit":
        return BestFit(op) if op.apart is None else BestFitApart(op)
    if op.method == "first_fit_decreasing":
        return FirstFitDecreasing(op, step)
    if op.method == "concat":
        return Concat(op)
    return OnePerSequence(op) if op.max_tokens is None else ByTokens(op, op.max_tokens)

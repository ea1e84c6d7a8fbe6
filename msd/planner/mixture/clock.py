"""What the places of a schedule count: steps, epochs, tokens, samples, microbatches.

A count is an integer that a saved position says, so that it is the same on every mesh, after every resume and in every
replay. All clocks but `microbatch` are read at the boundary before a step.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from msd.core.state import StateDict
from msd.planner.config.mixture import ClockKind
from msd.planner.piece import Piece


@dataclass(frozen=True, slots=True)
class Clock:
    """How the progress of a run is counted."""

    kind: ClockKind = "step"
    rows: int = 0
    """Rows in one epoch of all sources together: with `epoch`, what one epoch is."""
    num_microbatches: int = 1
    """Parts of a step, with `microbatch`."""

    def ticks(self, amount: float) -> int:
        """Return an amount as it is written in the count of this clock, rounded up; only epochs have fractions."""
        if self.kind != "epoch":
            return int(amount)
        # In binary 0.29 * 100 is just over 29: the fraction that was meant must not gain a row.
        return -int(-Fraction(amount).limit_denominator(10**9) * self.rows // 1)

    def count(self, progress: StateDict) -> int:
        """Return what the clock shows at a boundary between steps.

        Args:
            progress: The planner's position there; see `msd.planner.progress`.
        """
        if self.kind in ("step", "microbatch"):
            return int(progress["step"]) * self.ticks_per_step
        field = {"epoch": "ordinal"}.get(self.kind, self.kind)
        removed = progress.get("removed", {}).get(field, 0)
        return sum(int(source[field]) for source in progress["sources"].values()) + int(removed)

    @property
    def ticks_per_step(self) -> int:
        """Different counts within one step: 1 for clocks that are read at its boundary."""
        return self.num_microbatches if self.kind == "microbatch" else 1

    def shown(self, ticks: int) -> str:
        """Return a count in words."""
        if self.kind == "epoch":
            return f"epoch {ticks / self.rows:.4g}" if self.rows else "epoch 0"
        return f"{self.kind} {ticks:,}"


class WithinStep:
    """Which of its microbatches a step is being drawn for.

    The m-th microbatch is the m-th equal part of a step, by what has been drawn for it: tokens over all that its
    sequences hold, or samples over sequences where each has one. What was carried into the step counts first. Samples
    that end up in some microbatch may have been drawn for another: balancing places them later.
    """

    def __init__(self, clock: Clock, *, num_sequences: int, sequence_length: int | None) -> None:
        """Stand at the beginning of a step.

        Args:
            clock: Of the schedule.
            num_sequences: Of the step.
            sequence_length: Tokens of one; None where each holds one sample.
        """
        self._parts = clock.ticks_per_step
        self._by_tokens = sequence_length is not None
        self._room = num_sequences * (sequence_length or 1)
        self._drawn = 0
        self.part = 0
        """From 0, below `ticks_per_step`."""

    def add(self, pieces: Iterable[Piece]) -> bool:
        """Count what was drawn; return whether another microbatch has begun with it."""
        before = self.part
        self._drawn += sum(piece.length if self._by_tokens else 1 for piece in pieces)
        self.part = min(self._parts - 1, self._drawn * self._parts // self._room)
        return self.part != before

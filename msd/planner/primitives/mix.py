"""Which source is drawn next: integer credits, largest first.

A draw of n units adds `w_i * n` to the credit of every live source and takes `W * n` from the one drawn, where the
integer weights sum to W. The largest credit draws next, ties by name. With L the longest sample:

- *Never more than one sample over its share.* Credits of sources that are always live sum to zero, so the largest is
  not negative, and whoever is drawn ends at most `W * L` below zero. This holds for weights that change as well.
- *At most H(k-1) samples under, for k sources* (H: harmonic numbers; 1 for two sources). Let m_j be the mean of the j
  largest credits. Either the one drawn stays among the j largest, which then grow by no more than it gives; or each of
  them was at most the one drawn, so that their mean was at most m_(j+1) and grows by at most L / j. Hence
  `m_1 <= L * (1 + 1/2 + ... + 1/(k-1))`. Measured: rarely above 1 and then barely (five sources, equal lengths: 1.02).
"""

# S = all sources, in order of name. A = live ones: with a weight above 0 and not ended.

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from msd.core.arrays import Int64Array
from msd.errors import ConfigError
from msd.planner.mixture.schedule import WEIGHT_UNIT, MixtureSchedule, quantise
from msd.planner.piece import Piece

_SETTLE_UNITS = 1 << 31
"""Units after which pending additions are written out, so that `weight * units` stays inside int64."""


UNITS: dict[str, Callable[[Piece], int]] = {
    "tokens": lambda piece: piece.length,
    # A sample without a label counts one: for nothing it would be drawn again and again.
    "loss_tokens": lambda piece: max(1, piece.num_valid),
    # What a stage of shorter sequences cut off a sample is no sample more.
    "samples": lambda piece: int(piece.start == 0),
}
"""What one sample counts for, by `mixture.unit`."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Op of a graph: draw by this schedule."""

    schedule: MixtureSchedule

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, MixtureSchedule):
            raise ConfigError(f"mix takes a schedule, got {type(self.schedule).__name__}; pass context.schedule")

    def __str__(self) -> str:
        return f"mix({self.schedule})"


class Credits:
    """What each source is owed, in units times `WEIGHT_UNIT`.

    Additions to all sources are kept as one number and only evaluated where a choice is made:
    `credit_i = base_i + w_i * units`.
    """

    def __init__(self, num_sources: int) -> None:
        """Start with every source owed nothing."""
        self._credit_S = [0] * num_sources
        self._live: list[int] = []
        self._place: dict[int, int] = {}
        self._base_A: Int64Array = np.zeros(0, dtype=np.int64)
        self._weight_A: Int64Array = np.zeros(0, dtype=np.int64)
        self._credit_A: Int64Array = np.zeros(0, dtype=np.int64)
        self._units = 0

    @property
    def has_live(self) -> bool:
        """Whether any source can be drawn."""
        return bool(self._live)

    def set_shares(self, shares: Sequence[float]) -> None:
        """Take the shares of a step: 0 for sources that may not be drawn, whose credit rests."""
        self._settle()
        weight_S = quantise(shares)
        self._live = np.flatnonzero(weight_S).tolist()
        self._place = {source: place for place, source in enumerate(self._live)}
        self._weight_A = weight_S[self._live]
        self._base_A = np.array([self._credit_S[index] for index in self._live], dtype=np.int64)
        self._credit_A = np.empty_like(self._base_A)

    def largest(self) -> int:
        """Return the source that draws next."""
        np.multiply(self._weight_A, self._units, out=self._credit_A)
        np.add(self._credit_A, self._base_A, out=self._credit_A)
        return self._live[int(self._credit_A.argmax())]

    def take(self, source: int, units: int) -> None:
        """Record that `units` were drawn from `source`."""
        self._units += units
        self._base_A[self._place[source]] -= WEIGHT_UNIT * units
        if self._units >= _SETTLE_UNITS:
            self._settle()

    def spread(self, source: int) -> None:
        """Give the credit of a dropped source to the live ones in proportion to their weights.

        Call `set_shares` without the source first.
        """
        self._settle()
        owed, self._credit_S[source] = self._credit_S[source], 0
        self.give(owed)

    def give(self, owed: int) -> None:
        """Give credit to the live sources in proportion to their weights; without one it is lost."""
        self._settle()
        if not self._live:
            return
        given = [owed * int(weight) // WEIGHT_UNIT for weight in self._weight_A]
        for place in range(owed - sum(given)):
            given[place % len(given)] += 1
        for index, amount in zip(self._live, given, strict=True):
            self._credit_S[index] += amount
        self._base_A = np.array([self._credit_S[index] for index in self._live], dtype=np.int64)

    def as_list(self) -> list[int]:
        """Return the credit of every source."""
        self._settle()
        return list(self._credit_S)

    def load(self, credit_S: Sequence[int]) -> None:
        """Take over saved credits; call `set_shares` before the next draw."""
        self._credit_S = list(credit_S)
        self._live, self._place, self._units = [], {}, 0
        self._base_A = self._weight_A = self._credit_A = np.zeros(0, dtype=np.int64)

    def _settle(self) -> None:
        if self._live:
            self._base_A = self._base_A + self._weight_A * self._units
            for index, credit in zip(self._live, self._base_A.tolist(), strict=True):
                self._credit_S[index] = credit
        self._units = 0

"""Rows of sequences that trade whole sequences.

Costs are integers and choices are the first of the best: equal inputs give equal layouts.
"""

# K = modules. M = slots. B = buckets. D = documents. P, Q = the sequences of the two sides of a trade.

from collections.abc import Callable, Sequence

import numpy as np

from msd.core.arrays import Int64Array

Place = tuple[int, int]
"""(slot, bucket) of a row."""


class Rows:
    """A layout while it is being evened out."""

    def __init__(self, sequences: list[list[int]], rows: list[list[list[int]]], cost_DK: Int64Array) -> None:
        """Take a layout.

        Args:
            sequences: Documents of each sequence.
            rows: Sequences of each row, by [slot][bucket].
            cost_DK: Integer cost of each document.
        """
        self.sequences = sequences
        self.rows = rows
        self._cost_SK = sums(cost_DK, sequences)
        of_row = np.array([row for slot in rows for row in slot], dtype=np.int64)
        self.cost_MBK: Int64Array = self._cost_SK[of_row].sum(axis=1).reshape(len(rows), -1, cost_DK.shape[1])
        self.value_MB: Int64Array = self.cost_MBK.max(axis=2)

    def trade(
        self,
        giver: Place,
        taker: Place,
        score: Callable[[Int64Array, Int64Array], Int64Array],
        is_allowed: Callable[[Int64Array], bool],
        limit: int,
    ) -> bool:
        """Make the best trade of one sequence for another, if it is good enough; return whether one was made.

        Args:
            giver: The row that is to get cheaper.
            taker: The row that is to get costlier.
            score: Takes what each side may give, [P, K] and [Q, K]; returns [P, Q], less is better.
            is_allowed: Takes the cost that would move, [K].
            limit: The trade must score at most this.
        """
        gives, takes = self.rows[giver[0]][giver[1]], self.rows[taker[0]][taker[1]]
        score_PQ = score(self._cost_SK[gives], self._cost_SK[takes])
        give, take = divmod(int(score_PQ.argmin()), len(takes))
        given, taken = gives[give], takes[take]
        change_K = self._cost_SK[given] - self._cost_SK[taken]
        if score_PQ[give, take] > limit or not is_allowed(change_K):
            return False
        self.rows[giver[0]][giver[1]] = [taken if s == given else s for s in gives]
        self.rows[taker[0]][taker[1]] = [given if s == taken else s for s in takes]
        self._add(giver, -change_K)
        self._add(taker, change_K)
        return True

    def _add(self, place: Place, change_K: Int64Array) -> None:
        self.cost_MBK[place] += change_K
        self.value_MB[place] = self.cost_MBK[place].max()


def sums(value_DK: Int64Array, groups: Sequence[Sequence[int]]) -> Int64Array:
    """Return the sum of [D, K] over each group of documents, as [groups, K]."""
    members = np.array([d for group in groups for d in group], dtype=np.int64)
    ends = np.cumsum([len(group) for group in groups], dtype=np.int64)
    cumulated = np.zeros((len(members) + 1, value_DK.shape[1]), dtype=np.int64)
    np.cumsum(value_DK[members], axis=0, out=cumulated[1:])
    total: Int64Array = np.diff(cumulated[ends], axis=0, prepend=0)
    return total

"""Hill-climb a layout: rows trade documents, or whole sequences, while the slowest rows of the slots get cheaper.

Costs and levels are integers, choices are the first of the best: equal inputs give equal layouts.
"""

# K = modules. M = slots. B = buckets. D = documents. N = units (documents or sequences) of one side of a trade.
# P, Q = sets of units that the two sides may give.

from functools import lru_cache
from itertools import combinations

import numpy as np

from msd.core.arrays import BoolArray, Int64Array

_UNITS = 12
"""Documents of a sequence that are considered for a trade ..."""
_PAIRS_ONLY_ABOVE = 8
"""... in sets of up to three, or of up to two when there are more than this."""
_PARTNERS = 4
_WORTH_A_TRADE = 4096
"""A trade must lower the slowest row by at least this fraction of a mean row ..."""
_GOOD_ENOUGH = 1500
"""... and a slot whose slowest row is within this fraction of its mean is left alone."""


class Rows:
    """Rows of sequences of documents, by slot and bucket, while they are being evened out."""

    def __init__(
        self,
        sequences: list[list[int]],
        rows: list[list[list[int]]],
        cost_DK: Int64Array,
        padded_D: Int64Array,
        sequence_length: int,
    ) -> None:
        """Take a layout; sequences are changed in place.

        Args:
            sequences: Documents of each sequence.
            rows: Sequences of each row, by [slot][bucket].
            cost_DK: Integer cost of each document.
            padded_D: Extent of each document.
            sequence_length: The hard cap of every sequence.
        """
        self.sequences = sequences
        self.rows = rows
        self._cost_DK = cost_DK
        self._padded_D = padded_D
        self._cap = sequence_length
        self.cost_MBK = np.array(
            [[self._cost([d for s in row for d in sequences[s]]) for row in slot] for slot in rows], dtype=np.int64
        )
        self.value_MB: Int64Array = self.cost_MBK.max(axis=2)

    def even_out(self, *, whole_sequences: bool, max_tries: int) -> None:
        """Lower the slowest row of each slot, the worst slot first, until nothing helps or the tries are used up.

        A slot whose slowest row cannot be lowered is *stuck*: its other rows may then rise to that row for free, which
        lets other slots give to it.
        """
        mean_row = int(self.value_MB.mean())
        stuck_M = np.zeros(len(self.rows), dtype=np.bool_)
        tries = 0
        while tries < max_tries:
            top_M = self.value_MB.max(axis=1)
            level_M = np.where(stuck_M, top_M, self.value_MB.sum(axis=1) // self.value_MB.shape[1])
            excess_M = top_M - level_M
            slot = int(excess_M.argmax())
            if excess_M[slot] <= mean_row // _GOOD_ENOUGH:
                return
            giver = (slot, int(self.value_MB[slot].argmax()))
            room_MB = level_M[:, None] - self.value_MB
            room_MB[giver] = np.iinfo(np.int64).min
            for _ in range(min(_PARTNERS, room_MB.size - 1)):
                taker = divmod(int(room_MB.argmax()), room_MB.shape[1])
                tries += 1
                if self._trade(giver, taker, level_M, mean_row // _WORTH_A_TRADE, whole_sequences=whole_sequences):
                    break
                room_MB[taker] = np.iinfo(np.int64).min
            else:
                stuck_M[slot] = True

    def _trade(
        self,
        giver: tuple[int, int],
        taker: tuple[int, int],
        level_M: Int64Array,
        worth: int,
        *,
        whole_sequences: bool,
    ) -> bool:
        """Make the best trade between two rows if it is worth it; return whether one was made."""
        give_level, take_level = int(level_M[giver[0]]), int(level_M[taker[0]])
        before = int(self.value_MB[giver]) - give_level
        gives, takes = self.rows[giver[0]][giver[1]], self.rows[taker[0]][taker[1]]
        if whole_sequences:
            give_sets, take_sets = [(s,) for s in range(len(gives))], [(s,) for s in range(len(takes))]
            given_PK = np.array([self._cost(self.sequences[s]) for s in gives], dtype=np.int64)
            taken_QK = np.array([self._cost(self.sequences[s]) for s in takes], dtype=np.int64)
            score_PQ = self._score(giver, taker, given_PK, taken_QK, give_level, take_level)
        else:
            source = max(gives, key=lambda s: (int(self._cost(self.sequences[s]).max()), -s))
            target = min(takes, key=lambda s: (int(self._cost(self.sequences[s]).max()), s))
            give_sets, given_PK, give_length_P = self._sets(source)
            take_sets, taken_QK, take_length_Q = self._sets(target)
            score_PQ = self._score(giver, taker, given_PK, taken_QK, give_level, take_level)
            moved_PQ = give_length_P[:, None] - take_length_Q[None, :]
            score_PQ[(moved_PQ > self._room(target)) | (-moved_PQ > self._room(source))] = np.iinfo(np.int64).max
            # Giving everything for nothing would leave an empty sequence.
            if len(give_sets[-1]) == len(self.sequences[source]):
                score_PQ[-1, 0] = np.iinfo(np.int64).max
        best = int(score_PQ.argmin())
        if score_PQ.flat[best] + max(1, worth) > before:
            return False
        give, take = divmod(best, score_PQ.shape[1])
        change_K = given_PK[give] - taken_QK[take]
        if not self._keeps_the_sum(giver, taker, change_K):
            return False
        if whole_sequences:
            gives[give], takes[take] = takes[take], gives[give]
        else:
            given, taken = set(give_sets[give]), set(take_sets[take])
            old_source, old_target = self.sequences[source], self.sequences[target]
            self.sequences[source] = [d for d in old_source if d not in given] + [d for d in old_target if d in taken]
            self.sequences[target] = [d for d in old_target if d not in taken] + [d for d in old_source if d in given]
        self._set(giver, self.cost_MBK[giver] - change_K)
        self._set(taker, self.cost_MBK[taker] + change_K)
        return True

    def _score(
        self,
        giver: tuple[int, int],
        taker: tuple[int, int],
        given_PK: Int64Array,
        taken_QK: Int64Array,
        give_level: int,
        take_level: int,
    ) -> Int64Array:
        """Return for each trade the larger of both rows' heights above their slots' levels."""
        score_PQ = np.full((len(given_PK), len(taken_QK)), np.iinfo(np.int64).min)
        for k in range(given_PK.shape[1]):
            change_PQ = given_PK[:, None, k] - taken_QK[None, :, k]
            np.maximum(score_PQ, int(self.cost_MBK[giver][k]) - give_level - change_PQ, out=score_PQ)
            np.maximum(score_PQ, int(self.cost_MBK[taker][k]) - take_level + change_PQ, out=score_PQ)
        return score_PQ

    def _keeps_the_sum(self, giver: tuple[int, int], taker: tuple[int, int], change_K: Int64Array) -> bool:
        """Return whether the slowest rows of both slots together get no slower."""
        slots = sorted({giver[0], taker[0]})
        before = self.value_MB[slots].max(axis=1).sum()
        after_MB = self.value_MB[slots].copy()
        after_MB[slots.index(giver[0]), giver[1]] = (self.cost_MBK[giver] - change_K).max()
        after_MB[slots.index(taker[0]), taker[1]] = (self.cost_MBK[taker] + change_K).max()
        return bool(after_MB.max(axis=1).sum() <= before)

    def _sets(self, sequence: int) -> tuple[list[tuple[int, ...]], Int64Array, Int64Array]:
        """Return sets of documents that a sequence may give, with their costs and lengths; the empty set is one."""
        documents = self.sequences[sequence]
        if len(documents) > _UNITS:
            by_length = sorted(documents, key=lambda d: (-int(self._padded_D[d]), d))
            documents = [by_length[place * len(by_length) // _UNITS] for place in range(_UNITS)]
        member_PN, places = _subsets(len(documents))
        chosen = np.array(documents, dtype=np.int64)
        return (
            [tuple(documents[n] for n in place) for place in places],
            member_PN @ self._cost_DK[chosen],
            member_PN @ self._padded_D[chosen],
        )

    def _room(self, sequence: int) -> int:
        return self._cap - sum(self._padded_D[self.sequences[sequence]].tolist())

    def _cost(self, documents: list[int]) -> Int64Array:
        cost_K: Int64Array = self._cost_DK[documents].sum(axis=0)
        return cost_K

    def _set(self, place: tuple[int, int], cost_K: Int64Array) -> None:
        self.cost_MBK[place] = cost_K
        self.value_MB[place] = cost_K.max()


@lru_cache(maxsize=64)
def _subsets(num_units: int) -> tuple[Int64Array, list[tuple[int, ...]]]:
    """Return small subsets of `range(num_units)`, as rows of 0 and 1 and as places; the empty one first."""
    largest = 3 if num_units <= _PAIRS_ONLY_ABOVE else 2
    places = [chosen for size in range(largest + 1) for chosen in combinations(range(num_units), size)]
    member_PN: BoolArray = np.zeros((len(places), num_units), dtype=np.bool_)
    for row, chosen in enumerate(places):
        member_PN[row, list(chosen)] = True
    return member_PN.astype(np.int64), places

"""Rows of sequences of documents that trade documents, or whole sequences, under the cap of a sequence.

Costs are integers and choices are the first of the best: equal inputs give equal layouts.
"""

# K = modules. M = slots. B = buckets. D = documents. N = documents of one sequence.
# P, Q = sets of documents (or single sequences) that the two sides of a trade may give.

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import NamedTuple

import numpy as np

from msd.core.arrays import BoolArray, Int64Array

_UNITS = 12
"""Documents of a sequence that are considered for a trade ..."""
_PAIRS_ONLY_ABOVE = 8
"""... in sets of up to three, or of up to two when there are more than this."""
_SEQUENCES = 4
"""Sequences of a row that are tried on each side."""
_NEVER = np.iinfo(np.int64).max

Place = tuple[int, int]
"""(slot, bucket) of a row."""


class Offer(NamedTuple):
    """What one side of a trade may give: sets of documents (the empty one first), or single sequences."""

    sequence: int
    """Whose documents, or -1 when whole sequences are offered."""
    sets: list[tuple[int, ...]]
    cost_PK: Int64Array
    tokens_P: Int64Array
    room: int
    gives_all: bool
    """Whether the last set is the whole sequence."""


class Rows:
    """A layout while it is being evened out."""

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
        self._offers: dict[int, Offer] = {}
        of_row = [[d for s in row for d in sequences[s]] for slot in rows for row in slot]
        self.cost_MBK = sums(cost_DK, of_row).reshape(len(rows), -1, cost_DK.shape[1])
        self.value_MB: Int64Array = self.cost_MBK.max(axis=2)

    def copy(self) -> "Rows":
        """Return rows that trade on their own."""
        return Rows(
            [list(docs) for docs in self.sequences],
            [[list(row) for row in slot] for slot in self.rows],
            self._cost_DK,
            self._padded_D,
            self._cap,
        )

    def trade(
        self,
        giver: Place,
        taker: Place,
        score: Callable[[Int64Array, Int64Array], Int64Array],
        is_allowed: Callable[[Int64Array], bool],
        limit: int,
        *,
        whole_sequences: bool,
    ) -> bool:
        """Make the best trade between two rows, if it is good enough; return whether one was made.

        Args:
            giver: The row that is to get cheaper.
            taker: The row that is to get costlier.
            score: Takes what each side may give, [P, K] and [Q, K]; returns [P, Q], less is better.
            is_allowed: Takes the cost that would move, [K].
            limit: The trade must score at most this.
            whole_sequences: Trade one sequence for another; else documents of the giver's costliest sequence for
                documents of the taker's cheapest, in the module that makes the giver costly.
        """
        if whole_sequences:
            pairs = iter([(self._offer_sequences(giver), self._offer_sequences(taker))])
        else:
            pairs = self._pairs(giver, taker)
        for gives, takes in pairs:
            score_PQ = score(gives.cost_PK, takes.cost_PK)
            if not whole_sequences:
                moved_PQ = gives.tokens_P[:, None] - takes.tokens_P[None, :]
                score_PQ[(moved_PQ > takes.room) | (-moved_PQ > gives.room)] = _NEVER
                # Giving everything for nothing would leave an empty sequence.
                if gives.gives_all:
                    score_PQ[-1, 0] = _NEVER
            best = int(score_PQ.argmin())
            give, take = divmod(best, score_PQ.shape[1])
            change_K = gives.cost_PK[give] - takes.cost_PK[take]
            if score_PQ.flat[best] <= limit and is_allowed(change_K):
                break
        else:
            return False
        if whole_sequences:
            self._swap_sequences(giver, taker, gives.sets[give][0], takes.sets[take][0])
        else:
            self._swap_documents(gives.sequence, takes.sequence, set(gives.sets[give]), set(takes.sets[take]))
        self._add(giver, -change_K)
        self._add(taker, change_K)
        return True

    def _pairs(self, giver: Place, taker: Place) -> Iterator[tuple[Offer, Offer]]:
        """Yield what sequences of the two rows may trade, the giver's costliest and the taker's cheapest first."""
        module = int(self.cost_MBK[giver].argmax())
        sources = self._by_cost(giver, module)[::-1][:_SEQUENCES]
        targets = self._by_cost(taker, module)[:_SEQUENCES]
        for source, target in product(sources, targets):
            yield self._offer_documents(source), self._offer_documents(target)

    def _swap_sequences(self, giver: Place, taker: Place, given: int, taken: int) -> None:
        for (slot, bucket), old, new in ((giver, given, taken), (taker, taken, given)):
            self.rows[slot][bucket] = [new if s == old else s for s in self.rows[slot][bucket]]

    def _swap_documents(self, source: int, target: int, given: set[int], taken: set[int]) -> None:
        old_source, old_target = self.sequences[source], self.sequences[target]
        self.sequences[source] = [d for d in old_source if d not in given] + [d for d in old_target if d in taken]
        self.sequences[target] = [d for d in old_target if d not in taken] + [d for d in old_source if d in given]
        for sequence in (source, target):
            del self._offers[sequence]

    def _by_cost(self, place: Place, module: int) -> list[int]:
        """Return the sequences of a row by cost in a module, the cheapest first."""
        row = self.rows[place[0]][place[1]]
        if len(row) == 1:
            return row
        cost_S = sums(self._cost_DK, [self.sequences[s] for s in row])[:, module]
        return [row[place] for place in np.argsort(cost_S, kind="stable").tolist()]

    def _offer_sequences(self, place: Place) -> Offer:
        row = self.rows[place[0]][place[1]]
        cost_PK = np.array([self._cost(self.sequences[s]) for s in row], dtype=np.int64)
        return Offer(-1, [(s,) for s in row], cost_PK, np.zeros(len(row), dtype=np.int64), 0, False)

    def _offer_documents(self, sequence: int) -> Offer:
        known = self._offers.get(sequence)
        if known is not None:
            return known
        documents = self.sequences[sequence]
        room = self._cap - sum(self._padded_D[documents].tolist())
        offered = documents
        if len(documents) > _UNITS:
            by_length = sorted(documents, key=lambda d: (-int(self._padded_D[d]), d))
            offered = [by_length[place * len(by_length) // _UNITS] for place in range(_UNITS)]
        member_PN, places = _subsets(len(offered))
        chosen = np.array(offered, dtype=np.int64)
        sets = [tuple(offered[n] for n in place) for place in places]
        offer = Offer(
            sequence,
            sets,
            member_PN @ self._cost_DK[chosen],
            member_PN @ self._padded_D[chosen],
            room,
            len(sets[-1]) == len(documents),
        )
        self._offers[sequence] = offer
        return offer

    def _cost(self, documents: list[int]) -> Int64Array:
        cost_K: Int64Array = self._cost_DK[documents].sum(axis=0)
        return cost_K

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


@lru_cache(maxsize=64)
def _subsets(num_units: int) -> tuple[Int64Array, list[tuple[int, ...]]]:
    """Return small subsets of `range(num_units)`, as rows of 0 and 1 and as places; the empty one first."""
    largest = 3 if num_units <= _PAIRS_ONLY_ABOVE else 2
    places = [chosen for size in range(largest + 1) for chosen in combinations(range(num_units), size)]
    member_PN: BoolArray = np.zeros((len(places), num_units), dtype=np.bool_)
    for row, chosen in enumerate(places):
        member_PN[row, list(chosen)] = True
    return member_PN.astype(np.int64), places

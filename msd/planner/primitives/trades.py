"""Sequences that trade documents, many pairs at once, under the cap of every sequence.

Rows are packed to the last tokens, so that only sets of documents of nearly equal length can change places: few among
the single documents, many among all subsets. So each side's documents are gathered into a few units, the longest ones
alone and the others in clumps that halve in size; all subsets of the units are sums of tokens that lie close together,
and one search over the sorted sums finds for each subset of one side those of the other that fit.

Sums are integers, comparisons are of exactly rounded numbers, sorts have no ties: equal inputs give equal trades.
"""

# D = documents. S = sequences. K = modules. N = pairs of sequences. P = subsets of the units of one sequence.
# T = documents of all sequences that take part. C = candidates: two subsets that fit.

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from msd.core.arrays import BoolArray, Float64Array, Int64Array
from msd.planner.primitives.layout import Limit

_FEWEST_UNITS, _MOST_UNITS = 8, 10
"""Units of a sequence ..."""
_SUBSETS = 1 << 17
"""... of which there are as many as keep the subsets of all pairs of a round below this number."""
_FITS = 2
"""Subsets of the other side that are looked at for each subset: those that fill it most."""
_ORDERS = 3
"""Ways to gather documents, in turn: the longest alone, some of every length alone, any alone."""

_CACHED = 1 << 14
"""Subsets that are worked on at once, so that arrays of them stay in the cache."""

Score = Callable[[list[Int64Array], Int64Array], Float64Array]
"""Takes by module the cost that each candidate moves to the taker, [C], and its pair; returns [C], less is better."""


@dataclass(frozen=True, slots=True, eq=False)
class _Units:
    """What the sequences of one round may give: documents by unit."""

    document_T: Int64Array
    owner_T: Int64Array
    """Place of the document's sequence among those that take part."""
    unit_T: Int64Array
    tokens: Int64Array
    """[sequences, units]"""
    cost_K: list[Int64Array]
    """By module and then by limit, [sequences, units]."""

    def of(self, part: slice) -> "_Sums":
        """Return what some of the sequences may give."""
        return _Sums(self.tokens[part], [cost[part] for cost in self.cost_K])


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    tokens: Int64Array
    cost_K: list[Int64Array]


class Holdings:
    """Which sequence holds each document, while documents are traded."""

    def __init__(
        self,
        sequences: list[list[int]],
        cost_DK: Int64Array,
        padded_D: Int64Array,
        sequence_length: int,
        limits: Sequence[Limit],
    ) -> None:
        """Take sequences as they were packed.

        Args:
            sequences: Documents of each sequence.
            cost_DK: Integer cost of each document.
            padded_D: Extent of each document.
            sequence_length: The hard cap of every sequence.
            limits: Further caps.
        """
        self._cost_DK = cost_DK
        self._padded_D = padded_D
        self.sequence_length = sequence_length
        self._limits = limits
        self._moves_DK = np.column_stack([cost_DK, *(limit.load_D for limit in limits)])
        """What moves with a document: its cost by module, then what it takes of each limit."""
        self._num_sequences = len(sequences)
        self.sequence_D = np.empty(len(padded_D), dtype=np.int64)
        members = np.array([d for docs in sequences for d in docs], dtype=np.int64)
        self.sequence_D[members] = np.repeat(np.arange(len(sequences)), [len(docs) for docs in sequences])

    @property
    def cost_SK(self) -> Int64Array:
        """Cost of each sequence."""
        return np.stack([self._sum_S(self._cost_DK[:, k]) for k in range(self._cost_DK.shape[1])], axis=1)

    @property
    def tokens_S(self) -> Int64Array:
        """What each sequence holds."""
        return self._sum_S(self._padded_D)

    def longest(self, count: int) -> Int64Array:
        """Return the longest documents of each sequence, [S, count]; -1 where it has fewer."""
        order = np.lexsort((-self._padded_D, self.sequence_D))
        owner_D = self.sequence_D[order]
        held_S = np.bincount(owner_D, minlength=self._num_sequences)
        place_D = np.arange(len(order)) - np.repeat(np.cumsum(held_S) - held_S, held_S)
        longest = np.full((self._num_sequences, count), -1, dtype=np.int64)
        is_among_D = place_D < count
        longest[owner_D[is_among_D], place_D[is_among_D]] = order[is_among_D]
        return longest

    def tokens_of(self, documents: Int64Array) -> Int64Array:
        """Return the extent of documents, 0 where there is none."""
        return np.where(documents < 0, 0, self._padded_D[documents])

    def moves_of(self, documents: Int64Array) -> list[Int64Array]:
        """Return what moves with documents: their cost by module, then what they take of each limit; 0 for none."""
        return [np.where(documents < 0, 0, self._moves_DK[documents, k]) for k in range(self._moves_DK.shape[1])]

    def lists(self) -> list[list[int]]:
        """Return the documents of each sequence, in the order of their numbers."""
        order = np.argsort(self.sequence_D, kind="stable").tolist()
        ends = np.cumsum(np.bincount(self.sequence_D, minlength=self._num_sequences)).tolist()
        return [order[start:end] for start, end in itertools.pairwise([0, *ends])]

    def trade(self, giver_N: Int64Array, taker_N: Int64Array, score: Score, limit_N: Float64Array, turn: int) -> int:
        """Make the best trade of each pair, where there is one that is good enough; return how many were made.

        Args:
            giver_N: A sequence that is to get cheaper; no sequence stands in two pairs.
            taker_N: The one that is to get costlier.
            score: What a trade is worth.
            limit_N: A trade must score less than this.
            turn: Number of the round: documents are gathered into other units in the next one.
        """
        num_units = min(_MOST_UNITS, max(_FEWEST_UNITS, (_SUBSETS // len(giver_N)).bit_length() - 1))
        units = self._units(np.concatenate([giver_N, taker_N]), num_units, turn)
        tokens_S, score = self._sum_S(self._padded_D), self.within_limits(score, giver_N, taker_N)
        best_N, give_N, take_N = limit_N.copy(), np.zeros_like(giver_N), np.zeros_like(giver_N)
        at_once = max(1, _CACHED >> num_units)
        for start in range(0, len(giver_N), at_once):
            part = slice(start, min(start + at_once, len(giver_N)))
            self._best(units, tokens_S, giver_N, taker_N, score, part, (best_N, give_N, take_N))
        is_made = best_N < limit_N
        self._move(units, np.concatenate([taker_N, giver_N]), np.concatenate([give_N, take_N]), is_made)
        return int(is_made.sum())

    def within_limits(self, score: Score, giver_N: Int64Array, taker_N: Int64Array) -> Score:
        """Return a score by which no trade is good that would pass a limit."""
        if not self._limits:
            return score
        num_modules = self._cost_DK.shape[1]
        held = [(self._sum_S(limit.load_D), limit.cap) for limit in self._limits]

        def limited(change_K: list[Int64Array], pair_C: Int64Array) -> Float64Array:
            value_C = score(change_K[:num_modules], pair_C)
            for change_C, (load_S, cap) in zip(change_K[num_modules:], held, strict=True):
                after_giver_C, after_taker_C = load_S[giver_N[pair_C]] - change_C, load_S[taker_N[pair_C]] + change_C
                value_C[(after_giver_C > cap) | (after_taker_C > cap)] = np.inf
            return value_C

        return limited

    def _best(
        self,
        units: _Units,
        tokens_S: Int64Array,
        giver_N: Int64Array,
        taker_N: Int64Array,
        score: Score,
        part: slice,
        found: tuple[Float64Array, Int64Array, Int64Array],
    ) -> None:
        """Write the best trade of some pairs: its score, and the subsets that giver and taker give up."""
        gives, takes = units.of(part), units.of(slice(part.start + len(giver_N), part.stop + len(giver_N)))
        held_N, taken_N = tokens_S[giver_N[part]][:, None], tokens_S[taker_N[part]][:, None]
        given_NP = subset_sums(gives.tokens)
        given_K, other_K = (
            [subset_sums(cost).ravel() for cost in gives.cost_K],
            [subset_sums(cost).ravel() for cost in takes.cost_K],
        )
        other_NP, take_NP = _sorted_sums(takes.tokens)
        first_NP = _first_at_least(other_NP, given_NP - (self.sequence_length - taken_N))
        best_N, give_N, take_N = (column[part] for column in found)
        num_subsets = other_NP.shape[1]
        pair_N, start_N = np.arange(len(given_NP)), np.arange(len(given_NP))[:, None] * num_subsets
        for skipped in range(_FITS):
            fit_NP = np.minimum(first_NP + skipped, num_subsets - 1) + start_N
            back_NP = other_NP.ravel()[fit_NP]
            is_open = (first_NP + skipped < num_subsets) & (back_NP <= given_NP + (self.sequence_length - held_N))
            # No sequence may be left without a document.
            is_open &= ((given_NP < held_N) | (back_NP > 0)) & ((back_NP < taken_N) | (given_NP > 0))
            open_C = np.flatnonzero(is_open)
            pair_C = open_C // num_subsets
            back_C = take_NP.ravel()[fit_NP.ravel()[open_C]]
            change_K = [g[open_C] - o[pair_C * num_subsets + back_C] for g, o in zip(given_K, other_K, strict=True)]
            score_NP = np.full(given_NP.shape, np.inf)
            score_NP.ravel()[open_C] = score(change_K, pair_C + part.start)
            at_N = score_NP.argmin(axis=1)
            is_better = score_NP[pair_N, at_N] < best_N
            best_N[is_better] = score_NP[pair_N, at_N][is_better]
            give_N[is_better] = at_N[is_better]
            take_N[is_better] = take_NP.ravel()[fit_NP[pair_N, at_N]][is_better]

    def _move(self, units: _Units, to: Int64Array, subset: Int64Array, is_made: BoolArray) -> None:
        moves_T = (subset[units.owner_T] >> units.unit_T) & 1 == 1
        moves_T &= np.concatenate([is_made, is_made])[units.owner_T]
        self.sequence_D[units.document_T[moves_T]] = to[units.owner_T[moves_T]]

    def _units(self, sequences: Int64Array, num_units: int, turn: int) -> _Units:
        """Gather the documents of sequences into units, fewer than half of them a single document."""
        num_singles = num_units * 4 // 9
        document_T, owner_T, place_T, count = self._documents_of(sequences, turn % _ORDERS == 2, turn)
        tokens_T = self._padded_D[document_T]
        is_few_T = (count <= num_units)[owner_T]
        every_T = np.maximum(1, count // num_singles)[owner_T] if turn % _ORDERS == 1 else np.ones_like(place_T)
        start_T = (turn // _ORDERS) % every_T
        single_T, is_single_T = place_T // every_T, place_T % every_T == start_T
        is_single_T &= (single_T < num_singles) & ~is_few_T
        num_clumps = num_units - num_singles
        clump_T = _halving(np.where(is_single_T | is_few_T, 0, tokens_T), owner_T, len(sequences), num_clumps)
        unit_T = np.where(is_few_T, place_T, np.where(is_single_T, single_T, num_singles + clump_T))
        cell_T = owner_T * num_units + unit_T
        shape, size = (len(sequences), num_units), len(sequences) * num_units

        def gathered(value_T: Int64Array) -> Int64Array:
            return np.bincount(cell_T, weights=value_T, minlength=size).astype(np.int64).reshape(shape)

        cost_TK = self._moves_DK[document_T]
        return _Units(
            document_T, owner_T, unit_T, gathered(tokens_T), [gathered(cost_TK[:, k]) for k in range(cost_TK.shape[1])]
        )

    def _documents_of(
        self, sequences: Int64Array, is_any_order: bool, turn: int
    ) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """Return the documents of sequences, their owners, their places among the owner's, and counts by owner."""
        owner_S = np.full(self._num_sequences, -1, dtype=np.int64)
        owner_S[sequences] = np.arange(len(sequences))
        owner_D = owner_S[self.sequence_D]
        document_T = np.flatnonzero(owner_D >= 0)
        key_T = scattered(document_T, turn) if is_any_order else -self._padded_D[document_T]
        document_T = document_T[np.lexsort((key_T, owner_D[document_T]))]
        owner_T = owner_D[document_T]
        count = np.bincount(owner_T, minlength=len(sequences))
        place_T = np.arange(len(document_T)) - np.repeat(np.cumsum(count) - count, count)
        return document_T, owner_T, place_T, count

    def _sum_S(self, value_D: Int64Array) -> Int64Array:
        # Sums of a step stay below 2**53, so that they are exact.
        return np.bincount(self.sequence_D, weights=value_D, minlength=self._num_sequences).astype(np.int64)


def scattered(number: Int64Array, turn: int) -> Int64Array:
    """Return a number for each number, without any order: splitmix64 of it and the turn, its upper bits."""
    word = number.astype(np.uint64) + np.uint64((turn + 1) * 0x9E3779B97F4A7C15 % 2**64)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((word ^ (word >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def _halving(tokens_T: Int64Array, owner_T: Int64Array, num_owners: int, num_clumps: int) -> Int64Array:
    """Return the clump of each document: the first half of an owner's tokens, then half of what is left, ..."""
    total = np.bincount(owner_T, weights=tokens_T, minlength=num_owners).astype(np.int64)
    before = np.cumsum(tokens_T) - tokens_T
    left_T = total[owner_T] - (before - (np.cumsum(total) - total)[owner_T])
    clump_T = np.zeros_like(left_T)
    for halvings in range(1, num_clumps):
        clump_T += left_T << halvings <= total[owner_T]
    return clump_T


def subset_sums(value: Int64Array) -> Int64Array:
    """Return the sums of all subsets of each row's units; bit u of a subset's number says that it holds unit u."""
    total = np.zeros((len(value), 1 << value.shape[1]), dtype=np.int64)
    for unit in range(value.shape[1]):
        half = 1 << unit
        np.add(total[:, :half], value[:, unit : unit + 1], out=total[:, half : 2 * half])
    return total


def _sorted_sums(tokens: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the sums of all subsets of each row in increasing order, and the numbers of the subsets."""
    num_subsets = 1 << tokens.shape[1]
    key_NP = subset_sums(tokens) * num_subsets + np.arange(num_subsets)
    key_NP.sort(axis=1)
    return key_NP // num_subsets, key_NP % num_subsets


def _first_at_least(sorted_NP: Int64Array, wanted_NP: Int64Array) -> Int64Array:
    """Return where in its sorted row each wanted number, or the next larger one, stands."""
    num_pairs, width = sorted_NP.shape
    row_N = np.arange(num_pairs)[:, None]
    # Rows are told apart by a multiple of more than any number in them, so that one search serves all.
    apart = int(max(sorted_NP.max(initial=0), np.abs(wanted_NP).max(initial=0))) + 1
    found = np.searchsorted((sorted_NP + 2 * apart * row_N).ravel(), (wanted_NP + 2 * apart * row_N).ravel())
    first_NP: Int64Array = found.reshape(num_pairs, -1) - width * row_N
    return first_NP

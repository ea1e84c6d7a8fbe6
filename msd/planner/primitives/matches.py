"""Sequences that look among all others for documents of just the length of some of theirs.

A sequence of a few long documents has few subsets, and hardly any of another one's fits in place of one. Among the
subsets of the longest documents of all sequences nearly always one does, and costs as much more or less as is wanted:
two documents of a half cost more than one of two thirds and one of a third.
"""

# D = documents. S = sequences. K = modules. N = sequences that look. U = the longest documents of a sequence.
# I = subsets of these, sequence after sequence; bit u of a subset's number says that it has document u.
# C = candidates: two subsets that may change places.

import numpy as np

from msd.core.arrays import BoolArray, Float64Array, Int64Array
from msd.planner.primitives.trades import Holdings, subset_sums

_LONGEST = 5
"""Documents of a sequence that are matched ..."""
_SUBSETS = 1 << _LONGEST
"""... and their subsets."""
_NEAREST = 12
"""Subsets of about its length that are looked at for each subset: half of them longer."""


def match(
    holdings: Holdings, looking_N: Int64Array, row_S: Int64Array, excess_RK: Float64Array, least_gain: float
) -> None:
    """Swap subsets of the longest documents, those first by which rows come nearest to their levels.

    A row takes part once. No sequence comes to hold more than its length, or more of a limit than its cap.

    Args:
        holdings: What sequences hold.
        looking_N: Sequences that look; any other may be found.
        row_S: Row of each sequence.
        excess_RK: By module, what a row costs above its level; negative below it.
        least_gain: What the squared distances of both rows from their levels must fall by together.
    """
    longest_SU = holdings.longest(_LONGEST)
    own_C, other_C = _candidates(holdings, longest_SU, looking_N, row_S)
    giver_C, taker_C = own_C // _SUBSETS, other_C // _SUBSETS
    give_CK, take_CK = excess_RK[row_S[giver_C]], excess_RK[row_S[taker_C]]

    def rise(change_K: list[Int64Array], pair_C: Int64Array) -> Float64Array:
        rise_C = np.zeros(len(pair_C))
        for k, change_C in enumerate(change_K):
            rise_C += 2.0 * change_C * (change_C - give_CK[pair_C, k] + take_CK[pair_C, k])
        return rise_C

    moved = [subset_sums(moves_SU).ravel() for moves_SU in holdings.moves_of(longest_SU)]
    change_K = [moves_I[own_C] - moves_I[other_C] for moves_I in moved]
    rise_C = holdings.within_limits(rise, giver_C, taker_C)(change_K, np.arange(len(own_C)))
    made = _lowest_apart(rise_C, -least_gain, row_S[giver_C], row_S[taker_C])
    for subset, to in ((own_C[made], taker_C[made]), (other_C[made], giver_C[made])):
        moves_CU = subset[:, None] >> np.arange(_LONGEST) & 1 == 1
        holdings.sequence_D[longest_SU[subset // _SUBSETS][moves_CU]] = np.repeat(to, moves_CU.sum(axis=1))


def _candidates(
    holdings: Holdings, longest_SU: Int64Array, looking_N: Int64Array, row_S: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return subsets of those that look beside subsets of other rows, such that both fit where the other one was."""
    tokens_I = subset_sums(holdings.tokens_of(longest_SU)).ravel()
    is_held_I = subset_sums((longest_SU < 0).astype(np.int64)).ravel() == 0
    is_held_I[::_SUBSETS] = False
    own_C, other_C = _of_like_length(tokens_I, is_held_I, looking_N)
    giver_C, taker_C = own_C // _SUBSETS, other_C // _SUBSETS
    held_S, longer_C = holdings.tokens_S, tokens_I[other_C] - tokens_I[own_C]
    room_S = holdings.sequence_length - held_S
    fits_C = (longer_C <= room_S[giver_C]) & (-longer_C <= room_S[taker_C]) & (row_S[giver_C] != row_S[taker_C])
    # All for all would change nothing.
    fits_C &= (tokens_I[own_C] < held_S[giver_C]) | (tokens_I[other_C] < held_S[taker_C])
    return own_C[fits_C], other_C[fits_C]


def _of_like_length(tokens_I: Int64Array, is_held_I: BoolArray, looking_N: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return each subset of those that look beside the subsets that come next to it by tokens."""
    held = np.flatnonzero(is_held_I)
    shortest_first = held[np.argsort(tokens_I[held], kind="stable")]
    own = (looking_N[:, None] * _SUBSETS + np.arange(_SUBSETS)).ravel()
    own = own[is_held_I[own]]
    place = np.searchsorted(tokens_I[shortest_first], tokens_I[own], side="right")
    near = np.clip(place[:, None] + np.arange(-_NEAREST // 2, _NEAREST // 2), 0, len(held) - 1)
    return np.repeat(own, _NEAREST), shortest_first[near.ravel()]


def _lowest_apart(value_C: Float64Array, limit: float, row_C: Int64Array, other_C: Int64Array) -> Int64Array:
    """Return the candidates of less than the limit, the lowest first, without those of which a row is taken."""
    below = np.flatnonzero(value_C < limit)
    lowest_first = below[np.argsort(value_C[below], kind="stable")]
    taken: set[int] = set()
    chosen = []
    for candidate, row, other in zip(
        lowest_first.tolist(), row_C[lowest_first].tolist(), other_C[lowest_first].tolist(), strict=True
    ):
        if row not in taken and other not in taken:
            taken |= {row, other}
            chosen.append(candidate)
    return np.array(chosen, dtype=np.int64)

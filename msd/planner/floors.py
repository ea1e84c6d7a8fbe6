"""What no assignment can beat: lower bounds of the makespan, as max over mean minus 1."""

# D = documents. B = buckets. M = microbatches (slots) of a bucket. R = rows. S = sequences.

from dataclasses import dataclass

import numpy as np

from msd.core.arrays import Float64Array, Int64Array


def excess(cost_MB: Float64Array) -> float:
    """Return the sum over slots of the costliest bucket, over the same sum of means, minus 1; 0 without cost."""
    total = float(cost_MB.sum())
    return float(cost_MB.max(axis=1).sum()) * cost_MB.shape[1] / total - 1.0 if total > 0 else 0.0


def imbalance_floor(cost_D: Float64Array, num_buckets: int) -> float:
    """Return the largest of the simple makespan bounds over the mean, minus 1.

    For k = 0, 1, 2, ...: of the `k * num_buckets + 1` heaviest documents some bucket holds k + 1 (pigeonhole), so it
    costs at least the k + 1 lightest of these; k = 0 is the heaviest document.
    """
    total = float(cost_D.sum())
    if not len(cost_D) or total <= 0:
        return 0.0
    heaviest = np.concatenate([[0.0], np.cumsum(np.sort(cost_D)[::-1])])
    k = np.arange((len(cost_D) - 1) // num_buckets + 1)
    bound = heaviest[k * num_buckets + 1] - heaviest[k * num_buckets - k]
    return max(0.0, float(bound.max()) * num_buckets / total - 1.0)


def capped_imbalance_floor(cost_D: Float64Array, padded_D: Int64Array, num_buckets: int, bucket_tokens: int) -> float:
    """Return the floor when a bucket holds at most `bucket_tokens`: never below `imbalance_floor`.

    The other buckets hold at most their cap, so the bucket with the heaviest document must take what is left of the
    tokens; it does so at best with the documents that are cheapest by token, the last of them in part.
    """
    floor = imbalance_floor(cost_D, num_buckets)
    total = float(cost_D.sum())
    if not len(cost_D) or total <= 0:
        return floor
    heaviest = int(cost_D.argmax())
    must_hold = int(padded_D.sum()) - (num_buckets - 1) * bucket_tokens - int(padded_D[heaviest])
    others = np.delete(np.arange(len(cost_D)), heaviest)
    rest = CheapestFirst(cost_D[others], padded_D[others]).cost_of(np.array([max(0, must_hold)]))
    bound = float(cost_D[heaviest] + rest[0])
    return max(floor, bound * num_buckets / total - 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class RowBounds:
    """What rows can cost under the cap of a sequence, whichever documents they hold."""

    least_M: Float64Array
    """By slot, from the slowest: what the slowest row of the slot costs at least."""
    most_R: Float64Array
    """By rank among all rows, from the costliest: what that row costs at most."""


def row_bounds(
    cost_D: Float64Array,
    padded_D: Int64Array,
    num_buckets: int,
    num_microbatches: int,
    sequence_length: int,
    sequences_per_row: int,
    cheapest: "CheapestFirst",
) -> RowBounds:
    """Return bounds on the costs of rows in order of cost, from documents longer than half a sequence.

    Such documents lie in sequences of their own. At least: rows are full but for the slack of the whole step, so the
    row of a long document also holds what of its tokens others cannot take, at best the cheapest by token; and the
    costliest q * r of these documents lie in no fewer than r rows, q being the sequences of a row. At most: what shares
    a sequence with a long document is no longer than the rest of it, and costs at most the highest cost by token among
    documents that fit there; the i costliest rows are at most the q * i costliest sequences.
    """
    num_rows = num_buckets * num_microbatches
    num_sequences = num_rows * sequences_per_row
    is_long = 2 * padded_D > sequence_length
    row_tokens = sequences_per_row * sequence_length
    must_hold = least_tokens(padded_D, row_tokens, num_sequences * sequence_length)
    alone = np.sort(cost_D[is_long] + cheapest.cost_of(np.maximum(0, must_hold - padded_D[is_long])))[::-1]
    least_M = np.full(num_microbatches, float(cheapest.cost_of(np.array([must_hold]))[0]))
    told = alone[:: sequences_per_row * num_buckets][:num_microbatches]
    least_M[: len(told)] = np.maximum(least_M[: len(told)], told)
    shared = _highest_density(cost_D, padded_D, np.array([sequence_length // 2]))[0] * sequence_length
    most_S = np.full(num_sequences, float(shared))
    rest = sequence_length - padded_D[is_long]
    long_S = cost_D[is_long] + _highest_density(cost_D, padded_D, rest) * rest
    most_S[: len(long_S)] = long_S[:num_sequences]
    most_S = np.sort(most_S)[::-1]
    if sequences_per_row == 1:
        return RowBounds(least_M, most_S)
    most_R = np.cumsum(most_S)[sequences_per_row - 1 :: sequences_per_row] / np.arange(1, num_rows + 1)
    return RowBounds(least_M, most_R)


def lockstep_floor(
    cost_D: Float64Array,
    padded_D: Int64Array,
    num_buckets: int,
    num_microbatches: int,
    sequence_length: int,
    sequences_per_row: int = 1,
) -> float:
    """Return the floor of the sum over slots of the slowest bucket, over the same sum of means, minus 1.

    No layout is better than rows sorted by cost, the first of them in the first slot. Three bounds:

    - The slowest buckets of all slots together cost at least the costliest bucket: `imbalance_floor`.
    - With `row_bounds`: where the r-th costliest row can cost at most a, and the slowest row of its slot costs at least
      b > a, the row stays b - a below it.
    - The j slowest slots cost at least the sum of their bounds, the others on average what is left when the rows of
      those j slots took all that caps allow, the costliest by token first.
    """
    total = float(cost_D.sum())
    if not len(cost_D) or total <= 0:
        return 0.0
    cheapest = CheapestFirst(cost_D, padded_D)
    bounds = row_bounds(cost_D, padded_D, num_buckets, num_microbatches, sequence_length, sequences_per_row, cheapest)
    short = float(np.maximum(0.0, np.repeat(bounds.least_M, num_buckets) - bounds.most_R).sum()) / num_buckets
    best = total / num_buckets + short
    slowest = 0.0
    for j in range(1, num_microbatches + 1):
        slowest += float(bounds.least_M[j - 1])
        num_tokens = j * num_buckets * sequences_per_row * sequence_length
        taken = cheapest.most_cost_of(num_tokens)
        best = max(best, slowest + (total - taken) / num_buckets)
    return max(imbalance_floor(cost_D, num_buckets), best * num_buckets / total - 1.0)


def least_tokens(padded_D: Int64Array, row_tokens: int, step_tokens: int) -> int:
    """Return what a row of `row_tokens` holds at least, where all rows together can hold `step_tokens`."""
    return max(0, row_tokens - (step_tokens - int(padded_D.sum())))


class CheapestFirst:
    """Documents by cost of a token, the cheapest first."""

    def __init__(self, cost_D: Float64Array, padded_D: Int64Array) -> None:
        """Take the documents of a step."""
        order = np.argsort(cost_D / padded_D, kind="stable")
        self._tokens = np.concatenate([[0], np.cumsum(padded_D[order])])
        self._cost = np.concatenate([[0.0], np.cumsum(cost_D[order])])

    def cost_of(self, num_tokens: Int64Array) -> Float64Array:
        """Return the least cost of so many tokens, the last document taken in part."""
        least: Float64Array = np.interp(num_tokens, self._tokens, self._cost)
        return least

    def most_cost_of(self, num_tokens: int) -> float:
        """Return the largest cost of so many tokens: what is left of all when the others take the cheapest."""
        return float(self._cost[-1] - np.interp(self._tokens[-1] - num_tokens, self._tokens, self._cost))


def _highest_density(cost_D: Float64Array, padded_D: Int64Array, room: Int64Array) -> Float64Array:
    """Return the highest cost by token among the documents that fit into each room; 0 where none fits."""
    order = np.argsort(padded_D, kind="stable")
    highest = np.concatenate([[0.0], np.maximum.accumulate((cost_D / padded_D)[order])])
    found: Float64Array = highest[np.searchsorted(padded_D[order], room, side="right")]
    return found

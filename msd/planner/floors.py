"""What no assignment can beat: lower bounds of the makespan, as max over mean minus 1."""

# D = documents. B = buckets. M = microbatches (slots) of a bucket.

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
    bound = float(cost_D[heaviest]) + _extreme_cost(cost_D[others], padded_D[others], must_hold, heaviest_first=False)
    return max(floor, bound * num_buckets / total - 1.0)


def lockstep_floor(
    cost_D: Float64Array, padded_D: Int64Array, num_buckets: int, num_microbatches: int, row_tokens: int
) -> float:
    """Return the floor of the sum over slots of the slowest bucket, over the same sum of means, minus 1.

    Two bounds. The slowest bucket of each slot together cost at least the costliest bucket: `imbalance_floor`. And
    documents longer than half a row lie in rows of their own: the (t * B + 1)-th costliest of them is a lower bound of
    the t-th slowest slot, so j slots cost at least the sum of those for t < j, while the other slots cost on average
    what is left after the j * B costliest rows that caps allow took all they can.
    """
    total = float(cost_D.sum())
    if not len(cost_D) or total <= 0:
        return 0.0
    best = 0.0
    alone = np.sort(cost_D[2 * padded_D > row_tokens])[::-1]
    slowest = 0.0
    for j in range(1, num_microbatches + 1):
        if (j - 1) * num_buckets >= len(alone):
            break
        slowest += float(alone[(j - 1) * num_buckets])
        taken = _extreme_cost(cost_D, padded_D, j * num_buckets * row_tokens, heaviest_first=True)
        best = max(best, slowest + (total - taken) / num_buckets)
    return max(imbalance_floor(cost_D, num_buckets), best * num_buckets / total - 1.0)


def _extreme_cost(cost_D: Float64Array, tokens_D: Int64Array, num_tokens: int, *, heaviest_first: bool) -> float:
    """Return the least or largest cost of `num_tokens` tokens of documents, the last document taken in part."""
    if num_tokens <= 0 or not len(cost_D):
        return 0.0
    density = cost_D / tokens_D
    order = np.argsort(-density if heaviest_first else density, kind="stable")
    tokens = np.concatenate([[0.0], np.cumsum(tokens_D[order])])
    cost = np.concatenate([[0.0], np.cumsum(cost_D[order])])
    return float(np.interp(num_tokens, tokens, cost))

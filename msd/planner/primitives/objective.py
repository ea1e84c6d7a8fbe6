"""What a layout is judged by: excesses over what equal rows would cost, 0 at best."""

# B = buckets. M = slots. P = pipeline stages.

import numpy as np

from msd.core.arrays import Float64Array, Int64Array
from msd.core.pipeline import one_f_one_b


def bucket_excess(cost_MB: Float64Array | Int64Array) -> float:
    """Return max over mean of the cost of buckets, minus 1."""
    mean = cost_MB.sum() / cost_MB.shape[1]
    return float(cost_MB.sum(axis=0).max() / mean) - 1.0 if mean else 0.0


def lockstep_excess(cost_MB: Float64Array | Int64Array) -> float:
    """Return the sum over slots of the costliest bucket, over the same sum of means, minus 1."""
    mean = cost_MB.sum() / cost_MB.shape[1]
    return float(cost_MB.max(axis=1).sum() / mean) - 1.0 if mean else 0.0


def pipeline_excess(cost_MB: Float64Array | Int64Array, num_stages: int) -> float:
    """Return the 1F1B time of the slowest bucket, over that of as many rows of mean cost, minus 1."""
    mean_row = float(cost_MB.mean())
    ideal = pipeline_time(np.full(len(cost_MB), mean_row), num_stages)
    return float(pipeline_time(cost_MB.T, num_stages).max() / ideal) - 1.0 if ideal else 0.0


def pipeline_time(cost_M: Float64Array | Int64Array, num_stages: int) -> Float64Array:
    """Return the 1F1B time of rows in the order of their slots, [..., M] to [...], in units of cost.

    The stages share a row's cost equally, and its backward pass takes twice its forward pass. Multiples of whole costs
    below 2**53 stay exact, so that times of integer costs compare alike on every machine.
    """
    forward_MP = np.repeat(cost_M[..., None].astype(np.float64), num_stages, axis=-1)
    return one_f_one_b(forward_MP, 2.0 * forward_MP) / (3.0 * num_stages)

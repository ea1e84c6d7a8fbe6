"""How long a pipeline of stages takes for microbatches of unequal cost: arithmetic, no model of a machine."""

# M = microbatches, in the order in which they are fed. P = pipeline stages, the first to the last.

from functools import lru_cache

import numpy as np

from msd.core.arrays import Float64Array, Int64Array


def one_f_one_b(forward_MP: Float64Array, backward_MP: Float64Array) -> Float64Array:
    """Return when the last backward pass of a 1F1B schedule ends, the first forward pass having begun at 0.

    Stage p (from 0) runs `min(M, P - 1 - p)` forward passes, then a forward and a backward pass in turn, then the
    backward passes that are left (Narayanan et al. 2021). A forward pass waits for that of the stage before it, a
    backward pass for that of the stage after it; sending takes no time. Stages keep their order however long a pass
    takes, as trainers do.

    Args:
        forward_MP: Duration of each forward pass, [..., M, P]: any number of pipelines at once.
        backward_MP: Duration of each backward pass, of the same shape.

    Returns:
        float64 [...]: in the unit of the durations; 0 without a microbatch.

    Raises:
        ValueError: If the shapes differ or have fewer than two axes.
    """
    if forward_MP.shape != backward_MP.shape or forward_MP.ndim < 2:
        raise ValueError(
            f"one_f_one_b takes two arrays [..., microbatches, stages] of one shape, got {forward_MP.shape} and "
            f"{backward_MP.shape}"
        )
    *batch, num_microbatches, num_stages = forward_MP.shape
    forward_end = np.zeros((*batch, num_microbatches, num_stages + 1))
    backward_end = np.zeros((*batch, num_microbatches, num_stages + 1))
    free = np.zeros((*batch, num_stages))
    for micro_F, stage_F, micro_B, stage_B in _ticks(num_microbatches, num_stages):
        # Passes of one tick are on different stages and wait only for passes of earlier ticks.
        begin = np.maximum(free[..., stage_F], forward_end[..., micro_F, stage_F])
        end_F = begin + forward_MP[..., micro_F, stage_F]
        # Its own forward pass is behind it on the same stage.
        begin = np.maximum(free[..., stage_B], backward_end[..., micro_B, stage_B + 1])
        end_B = begin + backward_MP[..., micro_B, stage_B]
        forward_end[..., micro_F, stage_F + 1] = free[..., stage_F] = end_F
        backward_end[..., micro_B, stage_B] = free[..., stage_B] = end_B
    last: Float64Array = free.max(axis=-1, initial=0.0)
    return last


@lru_cache(maxsize=64)
def _ticks(num_microbatches: int, num_stages: int) -> list[tuple[Int64Array, Int64Array, Int64Array, Int64Array]]:
    """Return the passes by the tick in which they run when all take one: microbatch and stage, forward and backward.

    Forward pass m of stage p runs in tick p + m while the pipeline fills, in tick 2 m + p once it is full; its backward
    pass in tick 2 m + 2 P - 1 - p.
    """
    micro, stage = (axis.ravel() for axis in np.indices((num_microbatches, num_stages)))
    forward = np.where(micro < num_stages - stage, stage + micro, 2 * micro + stage)
    backward = 2 * micro + 2 * num_stages - 1 - stage
    num_ticks = 2 * (num_microbatches + num_stages - 1) if num_microbatches else 0
    return [
        (micro[forward == t], stage[forward == t], micro[backward == t], stage[backward == t]) for t in range(num_ticks)
    ]

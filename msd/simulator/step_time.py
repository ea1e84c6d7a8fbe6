"""How long one step takes for an assignment, and what makes it so."""

# D = documents. I = images. B = buckets. M = slots. P = pipeline stages. R = ranks.

from dataclasses import asdict, dataclass

import numpy as np

from msd.core.arrays import Float64Array, Int64Array
from msd.core.pipeline import one_f_one_b
from msd.simulator.assign import Assignment, Grid, turns
from msd.simulator.trainer import Trainer
from msd.simulator.work import StepWork


@dataclass(frozen=True, slots=True)
class Speeds:
    """FLOP/s of one rank by module, in the units of the costs."""

    backbone: float
    encoder: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Prediction for one step under one assignment."""

    step_s: float
    pipeline_s: float
    """Of the slowest pipeline."""
    encoder_s: float
    """What encoding and exchange of embeddings add on the slowest rank; 0 where the first stage encodes."""
    bubble: float
    """Share of their own pipelines' time in which stages wait, mean over pipelines."""
    idle: float
    """Share of all ranks' time without useful work: bubbles, waiting for the slowest, padding, overheads."""
    backbone_imbalance: float
    """Costliest bucket over the mean, less 1."""
    encoder_imbalance: float
    """The same for the encoder, over whoever encodes: buckets, or ranks."""
    lockstep: float
    """Sum over slots of the costliest row, over the same sum of means, less 1: all FLOPs of both modules,
    or of the backbone where images are encoded apart from their rows."""
    row_ratio: float
    """Costliest row over the mean row: FLOPs as in `lockstep`."""
    row_spread: float
    """Costliest row over the cheapest: FLOPs as in `lockstep`."""
    attention_ratio: float
    """Costliest row over the mean row by squared lengths alone; exaggerates, shown beside `row_ratio` only."""
    longest_row: int
    """Tokens; above the row's cap the assignment would not fit the memory that the configuration allows."""
    fill: float
    """Tokens over rows times the longest row, or over the room of fixed rows."""

    def as_dict(self) -> dict[str, float]:
        """Return plain values."""
        return asdict(self)


def step_time(
    work: StepWork, assignment: Assignment, grid: Grid, trainer: Trainer, speeds: Speeds
) -> tuple[StepTime, Float64Array]:
    """Return the prediction, and the cost of each row [M, B]: FLOPs as in `lockstep`."""
    row_D = assignment.slot_D * grid.num_buckets + assignment.bucket_D
    tokens_MB = _rows(row_D, work.tokens_D, grid)
    backbone_MB = _rows(row_D, work.backbone_D, grid)
    encoder_MB = _rows(row_D, work.encoder_D, grid)
    sharing = len(grid.consumers_B[0]) / grid.num_stages
    padding_MB = np.zeros_like(tokens_MB)
    if assignment.is_padded and trainer.pads:
        padding_MB = np.maximum(0.0, grid.row_tokens - tokens_MB) * work.padding_cost
    pass_MB = (backbone_MB + padding_MB) / (speeds.backbone * sharing * (1.0 + trainer.backward))
    first_MB = np.zeros_like(pass_MB)
    encoding_B, load = np.zeros(grid.num_buckets), encoder_MB.sum(axis=0)
    if trainer.encoder == "first_stage":
        first_MB = encoder_MB / (speeds.encoder * sharing * (1.0 + trainer.backward))
    elif len(work.encoder_I):
        load, encoding_B = _encoded_apart(work, assignment, grid, trainer, speeds)
    pipeline_B = _pipelines(pass_MB, first_MB, trainer, grid.num_stages)
    step_s = float((encoding_B + pipeline_B).max()) + trainer.step_overhead_s
    cost_MB = backbone_MB if assignment.encoding is not None else backbone_MB + encoder_MB
    useful = float(backbone_MB.sum()) / speeds.backbone + float(encoder_MB.sum()) / speeds.encoder
    busy_B = (1.0 + trainer.backward) * (pass_MB + first_MB).sum(axis=0)
    longest = int(tokens_MB.max())
    squares_MB = _rows(row_D, np.square(work.tokens_D.astype(np.float64)), grid)
    return StepTime(
        step_s=step_s,
        pipeline_s=float(pipeline_B.max()),
        encoder_s=float(encoding_B.max()),
        bubble=float(np.mean(1.0 - _over(busy_B, pipeline_B * grid.num_stages))),
        idle=1.0 - useful / (step_s * grid.num_ranks) if step_s > 0 else 0.0,
        backbone_imbalance=_excess(backbone_MB.sum(axis=0)),
        encoder_imbalance=_excess(load),
        lockstep=float(_over(cost_MB.max(axis=1).sum(), cost_MB.mean(axis=1).sum())) - 1.0,
        row_ratio=1.0 + _excess(cost_MB),
        row_spread=float(_over(cost_MB.max(), cost_MB.min())),
        attention_ratio=1.0 + _excess(squares_MB),
        longest_row=longest,
        fill=float(tokens_MB.sum()) / (grid.num_rows * max(longest, grid.row_tokens if assignment.is_padded else 1)),
    ), cost_MB


def even_step_s(work: StepWork, grid: Grid, trainer: Trainer, speeds: Speeds) -> float:
    """Return seconds of a step whose work could be cut at will and shared evenly, in equal microbatches.

    Without stages no assignment beats it. A pipeline may by little, where its first and last microbatches are lighter
    than the mean.
    """
    sharing = len(grid.consumers_B[0]) / grid.num_stages
    share_MB = np.full((grid.num_microbatches, 1), 1.0 / (grid.num_rows * sharing * (1.0 + trainer.backward)))
    pass_MB = share_MB * float(work.backbone_D.sum()) / speeds.backbone
    encoding = float(work.encoder_I.sum()) / speeds.encoder
    is_apart = trainer.encoder == "every_rank"
    pipeline = _pipelines(pass_MB, share_MB * (0.0 if is_apart else encoding), trainer, grid.num_stages)
    return float(pipeline.max()) + is_apart * encoding / grid.num_ranks + trainer.step_overhead_s


def _pipelines(pass_MB: Float64Array, first_MB: Float64Array, trainer: Trainer, num_stages: int) -> Float64Array:
    """Return seconds of each bucket's pipeline, from the forward seconds of whole rows."""
    forward_BMP = np.multiply.outer(pass_MB.T, trainer.shares(num_stages))
    forward_BMP[:, :, 0] += first_MB.T
    if trainer.sync == "microbatch":
        forward_BMP = np.broadcast_to(forward_BMP.max(axis=0), forward_BMP.shape)
    overhead = trainer.pass_overhead_s
    return one_f_one_b(forward_BMP + overhead, forward_BMP * trainer.backward + overhead)


def _encoded_apart(
    work: StepWork, assignment: Assignment, grid: Grid, trainer: Trainer, speeds: Speeds
) -> tuple[Float64Array, Float64Array]:
    """Return what each rank encodes, and the seconds that encoding and exchange add to each bucket's step."""
    bucket_I = assignment.bucket_D[work.document_I]
    embeddings_B = np.bincount(bucket_I, work.embeddings_I, grid.num_buckets).astype(np.float64)
    exchange_B = 2.0 * trainer.embedding_bytes * embeddings_B / trainer.link_bytes_per_s
    if assignment.encoding is None:
        ranks_BR = np.array([list(ranks) for ranks in grid.consumers_B])
        rank_I = ranks_BR[bucket_I, turns(bucket_I, assignment.slot_D[work.document_I]) % ranks_BR.shape[1]]
        load_R = np.bincount(rank_I, work.encoder_I, grid.num_ranks).astype(np.float64)
        return load_R, load_R[ranks_BR].max(axis=1) / speeds.encoder + exchange_B
    rank_I, round_I = assignment.encoding.rank_I, assignment.encoding.round_I
    num_rounds = int(round_I.max()) + 1
    cells = np.bincount(round_I * grid.num_ranks + rank_I, work.encoder_I, num_rounds * grid.num_ranks)
    load_NR = cells.astype(np.float64).reshape(num_rounds, grid.num_ranks)
    load_R = load_NR.sum(axis=0)
    return load_R, float(load_NR.max(axis=1).sum()) / speeds.encoder + exchange_B


def _rows(row_D: Int64Array, value_D: Float64Array | Int64Array, grid: Grid) -> Float64Array:
    total: Float64Array = np.bincount(row_D, value_D, minlength=grid.num_rows).astype(np.float64)
    return total.reshape(grid.num_microbatches, grid.num_buckets)


def _over(part: Float64Array, whole: Float64Array) -> Float64Array:
    """Return part / whole, 0 where there is nothing."""
    return np.divide(part, whole, out=np.zeros_like(np.asarray(part, dtype=np.float64)), where=np.asarray(whole) > 0)


def _excess(load: Float64Array) -> float:
    mean = float(load.mean()) if load.size else 0.0
    return float(load.max()) / mean - 1.0 if mean > 0 else 0.0

"""How good a prediction of seconds is: of rows, of sums of rows, and on the whole."""

# R = rows.

from dataclasses import dataclass

import numpy as np

from msd.core.arrays import Float64Array
from msd.cost.linear import floored

SUM_ROWS = 32
"""Rows of the sums that are judged: what a loader prepares at a time is about as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors on rows that a model was not fitted to."""

    mape: float
    """Mean of |predicted - seconds| / seconds."""
    sum_error: float
    """Median of the same for sums over `SUM_ROWS` rows drawn at random."""
    calibration: float
    """Predicted over measured, of all rows together: 1 is right on the whole."""
    r2: float
    """Share of the variance that is explained."""
    num_rows: int


def score(predicted_R: Float64Array, seconds_R: Float64Array, *, seed: int = 0) -> Score:
    """Return how good predictions are."""
    error_R = np.abs(predicted_R - seconds_R) / floored(seconds_R)
    spread = float(((seconds_R - seconds_R.mean()) ** 2).sum())
    total = float(seconds_R.sum())
    return Score(
        mape=float(error_R.mean()),
        sum_error=_sum_error(predicted_R, seconds_R, seed),
        calibration=float(predicted_R.sum()) / total if total > 0 else 1.0,
        r2=1.0 - float(((predicted_R - seconds_R) ** 2).sum()) / spread if spread > 0 else 0.0,
        num_rows=len(seconds_R),
    )


def calibration_by_size(
    predicted_R: Float64Array, seconds_R: Float64Array, groups: int = 5
) -> list[tuple[float, float]]:
    """Return (mean predicted, mean measured) seconds of rows in groups from the cheapest to the dearest prediction."""
    turn = np.argsort(predicted_R, kind="stable")
    parts = [part for part in np.array_split(turn, groups) if len(part)]
    return [(float(predicted_R[part].mean()), float(seconds_R[part].mean())) for part in parts]


def _sum_error(predicted_R: Float64Array, seconds_R: Float64Array, seed: int) -> float:
    draw = np.random.default_rng(seed)
    size = min(SUM_ROWS, len(seconds_R))
    chosen = draw.integers(0, len(seconds_R), (200, size))
    sums, guesses = seconds_R[chosen].sum(axis=1), predicted_R[chosen].sum(axis=1)
    return float(np.median(np.abs(guesses - sums) / np.maximum(sums, 1e-12)))

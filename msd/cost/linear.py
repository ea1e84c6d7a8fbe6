"""Seconds that a row takes, linear in what is known of it: fitted to relative errors, with no negative part.

What a row takes spans three orders of magnitude, and only relative weights let small rows count: sums over rows come
out right to a few percent. `perf/bench_cost.py` compares it with others.
"""

# R = rows, F = features.

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from msd.core.arrays import BoolArray, Float64Array
from msd.errors import ConfigError

LEAST_ROWS = 8
"""Fewer say nothing of how cost grows."""
FLOOR = 0.05
"""Quantile of the seconds below which weights grow no more: the clock's own noise would rule."""
BEYOND = 0.1
"""Share of a range by which a feature may lie outside before a prediction counts as a guess."""


@dataclass(frozen=True, slots=True)
class LinearModel:
    """`intercept + coefficients . features`, in seconds a row."""

    names: tuple[str, ...]
    coefficients: tuple[float, ...]
    intercept: float
    low: tuple[float, ...]
    high: tuple[float, ...]
    """Smallest and largest value of each feature that it was fitted to."""

    def predict(self, features_RF: Float64Array) -> Float64Array:
        """Return the seconds of rows, also of means of rows: a linear model is right on those too."""
        seconds_R: Float64Array = features_RF @ np.array(self.coefficients) + self.intercept
        return seconds_R

    def is_beyond(self, features_RF: Float64Array) -> BoolArray:
        """Return for each row whether it lies outside of what the model was fitted to."""
        return is_beyond(features_RF, self.low, self.high)

    def as_dict(self) -> dict[str, Any]:
        """Return it JSON-able; `model_from` reads it back exactly."""
        return {
            "kind": "linear",
            "names": list(self.names),
            "coefficients": list(self.coefficients),
            "intercept": self.intercept,
            "low": list(self.low),
            "high": list(self.high),
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "LinearModel":
        """Return what `as_dict` said."""
        return cls(
            tuple(saved["names"]),
            tuple(map(float, saved["coefficients"])),
            float(saved["intercept"]),
            tuple(map(float, saved["low"])),
            tuple(map(float, saved["high"])),
        )

    def __str__(self) -> str:
        parts = [
            f"{1e9 * coefficient:,.3g} ns x {name}"
            for name, coefficient in zip(self.names, self.coefficients, strict=True)
            if coefficient
        ]
        return " + ".join([f"{1e6 * self.intercept:,.3g} us", *parts])


def is_beyond(features_RF: Float64Array, low: Sequence[float], high: Sequence[float]) -> BoolArray:
    """Return for each row whether a feature lies outside of a range by more than a margin."""
    low_F, high_F = np.array(low), np.array(high)
    margin_F = BEYOND * np.maximum(high_F - low_F, np.abs(high_F))
    beyond_R: BoolArray = ((features_RF < low_F - margin_F) | (features_RF > high_F + margin_F)).any(axis=1)
    return beyond_R


def fit_linear(features_RF: Float64Array, seconds_R: Float64Array, names: Sequence[str]) -> LinearModel:
    """Return the model of non-negative least squares over rows weighted by 1 / seconds.

    Minimises the sum of ((predicted - seconds) / seconds)^2, with no coefficient below 0 (Lawson and Hanson 1974,
    "Solving Least Squares Problems", by `scipy.optimize.nnls`); then scaled such that the sum of all rows is right.

    Args:
        features_RF: What is known of each row.
        seconds_R: What it took.
        names: Of the features.

    Raises:
        ConfigError: If there are too few rows, or a number that is none.
    """
    checked(features_RF, seconds_R)
    low_F, high_F = features_RF.min(axis=0), features_RF.max(axis=0)
    return LinearModel(
        tuple(names), *_non_negative(features_RF, seconds_R), tuple(low_F.tolist()), tuple(high_F.tolist())
    )


def checked(features_RF: Float64Array, seconds_R: Float64Array) -> None:
    """Raise `ConfigError` unless a model can be fitted to these."""
    if len(seconds_R) < LEAST_ROWS:
        raise ConfigError(f"a cost model needs at least {LEAST_ROWS} timed rows, got {len(seconds_R)}; sample more")
    if not (np.isfinite(features_RF).all() and np.isfinite(seconds_R).all() and (seconds_R >= 0).all()):
        raise ConfigError("a cost model needs finite features and seconds that are not negative")


def floored(seconds_R: Float64Array) -> Float64Array:
    """Return seconds as they are weighted by: none is taken for less than the smallest few are."""
    floor = max(float(np.quantile(seconds_R, FLOOR)), 1e-9)
    return np.maximum(seconds_R, floor)


def _non_negative(features_RF: Float64Array, seconds_R: Float64Array) -> tuple[tuple[float, ...], float]:
    from scipy.optimize import nnls

    weight_R = 1.0 / floored(seconds_R)
    columns = np.column_stack([features_RF, np.ones(len(seconds_R))])
    # Pixels are millions and frames a few: each column is fitted on its own scale.
    scale_F = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    found_F, _ = nnls(columns / scale_F * weight_R[:, None], seconds_R * weight_R)
    # What adds less than a millionth is the solver's rounding.
    found_F = np.where(found_F > 1e-6 * float(seconds_R.mean()), found_F, 0.0) / scale_F
    # Relative weights lean towards the cheap rows: on the whole it is to be right.
    predicted = float((columns @ found_F).sum())
    found_F = found_F * (float(seconds_R.sum()) / predicted if predicted > 0 else 1.0)
    return tuple(found_F[:-1].tolist()), float(found_F[-1])

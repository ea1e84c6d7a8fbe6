"""What a training step costs, fitted to timed microbatches: for `cost: {backbone: {kind: fitted, ...}}`."""

# M = microbatches.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from msd.cost.config import FittedCost
from msd.cost.linear import LEAST_ROWS, fit_linear
from msd.cost.scores import Score, score
from msd.errors import ConfigError

_GROWS = 0.01
"""Share of the mean by which predicted seconds differ at least where lengths have anything to do with them."""


@dataclass(frozen=True, slots=True)
class TrainingFit:
    """Seconds of a microbatch as a sum over its documents."""

    module: str
    cost: FittedCost
    """Seconds of a document of length s: `constant + linear * s + quadratic * s * s`."""
    overhead_s: float
    """Of a microbatch, whatever is in it: no placement changes it."""
    score: Score
    """On the same microbatches."""


def fit_training(table: Sequence[Mapping[str, Any]]) -> list[TrainingFit]:
    """Return a fit for each module of a table of timed microbatches.

    Args:
        table: A row a microbatch: `seconds`; `lengths` of its documents (a list, or text such as `"512 300 12"`); and
            `module`, `backbone` if it is left out. Lengths are tokens for the backbone and patches for the encoder.

    Raises:
        ConfigError: If a column is missing, or there are too few rows to tell the terms apart.
    """
    by_module: dict[str, list[tuple[list[int], float]]] = {}
    for number, row in enumerate(table):
        try:
            entry = _lengths(row["lengths"]), float(row["seconds"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"row {number} of timed microbatches: needs `lengths` (such as 512 300 12) and `seconds`, found "
                f"{dict(row)!r:.120} ({type(error).__name__}: {error})"
            ) from None
        by_module.setdefault(str(row.get("module") or "backbone"), []).append(entry)
    if not by_module:
        raise ConfigError("no timed microbatch: give a table with the columns lengths and seconds")
    return [_fit(module, rows) for module, rows in sorted(by_module.items())]


def _fit(module: str, rows: list[tuple[list[int], float]]) -> TrainingFit:
    sums = [(len(lengths), sum(lengths), sum(length * length for length in lengths)) for lengths, _ in rows]
    columns_M3, seconds_M = np.array(sums, dtype=np.float64), np.array([seconds for _, seconds in rows])
    if len(rows) < LEAST_ROWS or len(np.unique(columns_M3[:, 2])) < 3:
        raise ConfigError(
            f"module {module}: {len(rows)} timed microbatches do not tell linear and quadratic cost apart; time at "
            f"least {LEAST_ROWS}, of documents of several lengths"
        )
    model = fit_linear(columns_M3, seconds_M, ("documents", "length", "length^2"))
    constant, linear, quadratic = model.coefficients
    predicted_M = model.predict(columns_M3)
    if np.ptp(predicted_M) < _GROWS * predicted_M.mean():
        raise ConfigError(f"module {module}: the seconds do not grow with the lengths; are the columns the right ones?")
    cost = FittedCost(constant=constant, linear=linear, quadratic=quadratic)
    return TrainingFit(module, cost, model.intercept, score(predicted_M, seconds_M))


def _lengths(value: Any) -> list[int]:
    parts = value.replace(",", " ").split() if isinstance(value, str) else list(value)
    lengths = [int(part) for part in parts]
    if not lengths or min(lengths) < 0:
        raise ValueError(f"lengths {value!r}")
    return lengths

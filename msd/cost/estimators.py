"""Estimators of scikit-learn against the one to beat, chosen by cross-validation. For who fits, not for who runs."""

# R = rows, F = features.

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from msd.core.arrays import Float64Array, Int64Array
from msd.cost.linear import LinearModel, checked, fit_linear, floored
from msd.cost.models import RowModel
from msd.cost.scores import Score, score
from msd.cost.trees import Tree, TreesModel

TO_BEAT = "nnls"
FOLDS = 5
TREES_ROWS = 800
"""With fewer rows trees learn the noise."""
BETTER = 0.9
"""Another estimator is taken if its error is below this share of the one to beat, of rows and of sums alike."""

Fit: TypeAlias = Callable[[Float64Array, Float64Array, Sequence[str]], RowModel]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A model, and how it and the others did on rows that they had not seen."""

    name: str
    model: RowModel
    scores: dict[str, Score]
    """By estimator, `constant` (the mean) and `bytes` (the first feature alone) among them."""

    @property
    def score(self) -> Score:
        """Of the chosen one."""
        return self.scores[self.name]


def fit(features_RF: Float64Array, seconds_R: Float64Array, names: Sequence[str]) -> Fitted:
    """Return the model of the estimator that predicts best, judged on held-out rows.

    Raises:
        ConfigError: If there are too few rows, or a number that is none.
    """
    checked(features_RF, seconds_R)
    estimators: dict[str, Fit] = {TO_BEAT: fit_linear, "ridge": _ridge, "huber": _huber, "quantile": _quantile}
    if len(seconds_R) >= TREES_ROWS:
        estimators["trees"] = _trees
    scores = {name: _held_out(fit_, features_RF, seconds_R, names) for name, fit_ in estimators.items()}
    scores["constant"] = _held_out(_constant, features_RF, seconds_R, names)
    scores["bytes"] = _held_out(_first_alone, features_RF, seconds_R, names)
    chosen = TO_BEAT
    for name in estimators:
        best, other = scores[chosen], scores[name]
        if other.mape < BETTER * best.mape and other.sum_error <= max(BETTER * best.sum_error, 0.02):
            chosen = name
    return Fitted(chosen, estimators[chosen](features_RF, seconds_R, names), scores)


def _held_out(fit_: Fit, features_RF: Float64Array, seconds_R: Float64Array, names: Sequence[str]) -> Score:
    predicted_R = np.empty(len(seconds_R))
    for rows in _folds(len(seconds_R)):
        seen = np.ones(len(seconds_R), dtype=bool)
        seen[rows] = False
        predicted_R[rows] = fit_(features_RF[seen], seconds_R[seen], names).predict(features_RF[rows])
    return score(predicted_R, seconds_R)


def _folds(num_rows: int) -> list[Int64Array]:
    turn = np.random.default_rng(0).permutation(num_rows)
    return [turn[first::FOLDS] for first in range(min(FOLDS, num_rows))]


def _constant(features_RF: Float64Array, seconds_R: Float64Array, names: Sequence[str]) -> LinearModel:
    zeros = (0.0,) * len(names)
    return LinearModel(tuple(names), zeros, float(seconds_R.mean()), zeros, zeros)


def _first_alone(features_RF: Float64Array, seconds_R: Float64Array, names: Sequence[str]) -> LinearModel:
    only_RF = np.zeros_like(features_RF)
    only_RF[:, 0] = features_RF[:, 0]
    return fit_linear(only_RF, seconds_R, names)


def _ridge(features_RF: Float64Array, seconds_R: Float64Array, names: Sequence[str]) -> LinearModel:
    from sklearn.linear_model import Ridge

    return _by_sklearn(Ridge(alpha=1.0, fit_intercept=False), features_RF, seconds_R, names)


def _huber(features_RF: Float64Array, seconds_R: Float64Array, names: Sequence[str]) -> LinearModel:
    from sklearn.linear_model import HuberRegressor

    return _by_sklearn(HuberRegressor(max_iter=1000, fit_intercept=False), features_RF, seconds_R, names)


def _quantile(features_RF: Float64Array, seconds_R: Float64Array, names: Sequence[str]) -> LinearModel:
    from sklearn.linear_model import QuantileRegressor

    return _by_sklearn(QuantileRegressor(quantile=0.5, alpha=0.0, fit_intercept=False), features_RF, seconds_R, names)


def _by_sklearn(
    estimator: Any, features_RF: Float64Array, seconds_R: Float64Array, names: Sequence[str]
) -> LinearModel:
    """Return what a linear estimator without an intercept finds in relative errors: rows are divided by their seconds.

    So its own loss, whether squared or not, is one of (predicted - seconds) / seconds, as of the one to beat.
    """
    import warnings

    columns_RF = np.column_stack([features_RF, np.ones(len(seconds_R))]) / floored(seconds_R)[:, None]
    scale_F = np.maximum(np.sqrt((columns_RF**2).mean(axis=0)), 1e-300)
    with warnings.catch_warnings():
        # That one of those that are compared does not converge shows in its score.
        warnings.simplefilter("ignore")
        estimator.fit(columns_RF / scale_F, seconds_R / floored(seconds_R))
    found_F = estimator.coef_ / scale_F
    # As of the one to beat: on the whole it is to be right, so that sums are compared and not who is calibrated.
    predicted = float((features_RF @ found_F[:-1] + found_F[-1]).sum())
    found_F = found_F * (float(seconds_R.sum()) / predicted if predicted > 0 else 1.0)
    low_F, high_F = features_RF.min(axis=0), features_RF.max(axis=0)
    return LinearModel(
        tuple(names), tuple(found_F[:-1].tolist()), float(found_F[-1]), tuple(low_F.tolist()), tuple(high_F.tolist())
    )


def _trees(features_RF: Float64Array, seconds_R: Float64Array, names: Sequence[str]) -> TreesModel:
    from sklearn.ensemble import GradientBoostingRegressor

    log_R = np.log(floored(seconds_R))
    boosted = GradientBoostingRegressor(n_estimators=80, max_depth=3, learning_rate=0.1, subsample=0.7, random_state=0)
    boosted.fit(features_RF, log_R)
    grown = [estimator.tree_ for estimator in boosted.estimators_[:, 0]]
    low_F, high_F = features_RF.min(axis=0), features_RF.max(axis=0)
    model = TreesModel(
        tuple(names),
        float(log_R.mean()),
        boosted.learning_rate,
        tuple(
            Tree(
                tree.children_left.astype(np.int64),
                tree.children_right.astype(np.int64),
                np.maximum(tree.feature, -1).astype(np.int64),
                tree.threshold.astype(np.float64),
                tree.value[:, 0, 0].astype(np.float64),
            )
            for tree in grown
        ),
        tuple(low_F.tolist()),
        tuple(high_F.tolist()),
    )
    scale = float(seconds_R.sum() / model.predict(features_RF).sum())
    return TreesModel(model.names, model.base, model.rate, model.trees, model.low, model.high, scale)

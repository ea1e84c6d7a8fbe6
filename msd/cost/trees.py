"""Seconds that a row takes, as a sum of small decision trees: where cost is not linear in what is known."""

# R = rows, F = features.

from dataclasses import dataclass
from typing import Any

import numpy as np

from msd.core.arrays import BoolArray, Float64Array, Int64Array
from msd.cost.linear import is_beyond


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """One regression tree, by node. A leaf has no feature."""

    left_N: Int64Array
    right_N: Int64Array
    feature_N: Int64Array
    """-1 at a leaf."""
    threshold_N: Float64Array
    value_N: Float64Array

    def predict(self, features_RF: Float64Array) -> Float64Array:
        """Return the value of each row's leaf."""
        # The library that grew it compares single precision.
        single_RF = features_RF.astype(np.float32)
        node_R = np.zeros(len(features_RF), dtype=np.int64)
        while (inner_R := self.feature_N[node_R] >= 0).any():
            rows, node = np.flatnonzero(inner_R), node_R[inner_R]
            goes_left = single_RF[rows, self.feature_N[node]] <= self.threshold_N[node]
            node_R[rows] = np.where(goes_left, self.left_N[node], self.right_N[node])
        return self.value_N[node_R]


@dataclass(frozen=True, slots=True, eq=False)
class TreesModel:
    """`exp` of a base plus the rate times what each tree says, in seconds a row: fitted to logarithms."""

    names: tuple[str, ...]
    base: float
    rate: float
    trees: tuple[Tree, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    """Smallest and largest value of each feature that it was fitted to."""
    scale: float = 1.0
    """What makes sums right: the mean of a logarithm is not the logarithm of the mean."""

    def predict(self, features_RF: Float64Array) -> Float64Array:
        """Return the seconds of rows. Beyond what it was fitted to it stays at its edge."""
        log_R = np.full(len(features_RF), self.base)
        for tree in self.trees:
            log_R += self.rate * tree.predict(features_RF)
        seconds_R: Float64Array = self.scale * np.exp(log_R)
        return seconds_R

    def is_beyond(self, features_RF: Float64Array) -> BoolArray:
        """Return for each row whether it lies outside of what the model was fitted to."""
        return is_beyond(features_RF, self.low, self.high)

    def as_dict(self) -> dict[str, Any]:
        """Return it JSON-able; `model_from` reads it back exactly."""
        return {
            "kind": "trees",
            "names": list(self.names),
            "base": self.base,
            "rate": self.rate,
            "scale": self.scale,
            "low": list(self.low),
            "high": list(self.high),
            "trees": [
                {
                    "left": tree.left_N.tolist(),
                    "right": tree.right_N.tolist(),
                    "feature": tree.feature_N.tolist(),
                    "threshold": tree.threshold_N.tolist(),
                    "value": tree.value_N.tolist(),
                }
                for tree in self.trees
            ],
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "TreesModel":
        """Return what `as_dict` said."""
        trees = tuple(
            Tree(
                np.array(tree["left"], dtype=np.int64),
                np.array(tree["right"], dtype=np.int64),
                np.array(tree["feature"], dtype=np.int64),
                np.array(tree["threshold"], dtype=np.float64),
                np.array(tree["value"], dtype=np.float64),
            )
            for tree in saved["trees"]
        )
        low, high = tuple(map(float, saved["low"])), tuple(map(float, saved["high"]))
        return cls(tuple(saved["names"]), float(saved["base"]), float(saved["rate"]), trees, low, high, saved["scale"])

    def __str__(self) -> str:
        return f"{len(self.trees)} trees over {', '.join(self.names)}"

"""Mixture weights over steps: constant, staged, ramped; and the integers that draws count in."""

# S = sources, in order of name.

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from msd.core.arrays import Int64Array
from msd.planner.config import MixtureConfig, StageConfig

WEIGHT_UNIT = 10**9
"""Integer weights of the live sources sum to this."""


@dataclass(frozen=True, slots=True)
class MixtureSchedule:
    """Which share each source has at each step."""

    names: tuple[str, ...]
    """Sources in order of name."""
    base: tuple[float, ...]
    """Shares before any stage; they sum to 1."""
    stages: tuple[StageConfig, ...] = ()

    @classmethod
    def of(cls, names: Sequence[str], mixture: MixtureConfig) -> "MixtureSchedule":
        """Return the schedule of a configuration; sources without a weight have share 0."""
        ordered = tuple(sorted(names))
        weights = dict.fromkeys(ordered, 1.0) if mixture.weights is None else mixture.weights
        return cls(ordered, _shares(weights, ordered), tuple(mixture.schedule))

    def shares(self, step: int) -> tuple[float, ...]:
        """Return the share of each source at `step`, in the order of `names`; they sum to 1.

        A stage starts at its step from the shares that hold there, moves linearly, and is reached at `step + ramp`.
        """
        return self._after(len(self.stages), step)

    def _after(self, num_stages: int, step: int) -> tuple[float, ...]:
        while num_stages and self.stages[num_stages - 1].step > step:
            num_stages -= 1
        if not num_stages:
            return self.base
        stage = self.stages[num_stages - 1]
        target = _shares(stage.weights, self.names)
        if step >= stage.step + stage.ramp:
            return target
        before = self._after(num_stages - 1, stage.step)
        done = (step - stage.step) / stage.ramp
        return tuple(old + (new - old) * done for old, new in zip(before, target, strict=True))

    def __str__(self) -> str:
        shown = ", ".join(f"{name}: {share:.4g}" for name, share in zip(self.names, self.base, strict=True) if share)
        stages = "".join(f"; from step {stage.step} over {stage.ramp}" for stage in self.stages)
        return f"{{{shown}}}{stages}"


def quantise(shares: Sequence[float]) -> Int64Array:
    """Return integer weights in proportion to `shares` that sum to `WEIGHT_UNIT`, by largest remainder.

    Ties go to the earlier source. A share above 0 gets at least 1; a share of 0 gets 0. Only `math.fsum` and single
    operations are used, so that every machine finds the same integers. All shares 0 give all weights 0.
    """
    total = math.fsum(shares)
    if total <= 0:
        return np.zeros(len(shares), dtype=np.int64)
    exact = [share / total * WEIGHT_UNIT for share in shares]
    weight_S = np.array([max(1, math.floor(value)) if value > 0 else 0 for value in exact], dtype=np.int64)
    missing = WEIGHT_UNIT - int(weight_S.sum())
    by_remainder = sorted(
        (index for index, value in enumerate(exact) if value > 0),
        key=lambda index: (math.floor(exact[index]) - exact[index], index),
    )
    for index in by_remainder[: max(0, missing)]:
        weight_S[index] += 1
    # Rounding of the division, or shares below one unit, can leave a few units over or missing: the largest takes them.
    weight_S[int(weight_S.argmax())] += WEIGHT_UNIT - int(weight_S.sum())
    return weight_S


def _shares(weights: dict[str, float], names: Sequence[str]) -> tuple[float, ...]:
    total = math.fsum(weights.get(name, 0.0) for name in names)
    return tuple(weights.get(name, 0.0) / total if total else 0.0 for name in names)

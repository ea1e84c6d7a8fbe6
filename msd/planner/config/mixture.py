"""Shares of the sources, and how they move."""

from typing import Literal

from msd.core.checks import check_range
from msd.core.config import ConfigStruct
from msd.errors import ConfigError

MAX_STEP = 1 << 53


class StageConfig(ConfigStruct, frozen=True, kw_only=True):
    """New weights from a step on."""

    step: int
    weights: dict[str, float]
    ramp: int = 0
    """Steps over which the weights move, linearly, from the ones before: reached at `step + ramp`."""

    def __post_init__(self) -> None:
        if self.step < 0 or self.ramp < 0:
            raise ConfigError(f"a schedule stage needs step >= 0 and ramp >= 0, got step={self.step}, ramp={self.ramp}")
        check_range("mixture.schedule: step", self.step, 0, MAX_STEP)
        check_range("mixture.schedule: ramp", self.ramp, 0, MAX_STEP)
        check_weights(self.weights, f"mixture.schedule stage at step {self.step}")


class MixtureConfig(ConfigStruct, frozen=True, kw_only=True):
    """Shares of the sources."""

    unit: Literal["tokens", "samples"] = "tokens"
    """What a weight counts: real tokens as packed (image placeholders included), or samples."""
    weights: dict[str, float] | None = None
    """Relative shares by source; null gives every source the same."""
    schedule: list[StageConfig] = []

    def __post_init__(self) -> None:
        if self.weights is not None:
            check_weights(self.weights, "mixture.weights")
        steps = [stage.step for stage in self.schedule]
        if steps != sorted(set(steps)):
            raise ConfigError(f"mixture.schedule must be in increasing order of step, got steps {steps}")


def check_weights(weights: dict[str, float], name: str) -> None:
    """Raise `ConfigError` unless weights are non-negative, finite, and not all zero."""
    for source, weight in weights.items():
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"{name}: weight of {source!r} must be 0 or more, got {weight}; 0 leaves a source out")
        if weight > 0:
            check_range(f"{name}: weight of {source!r}", weight, 1e-100, 1e100, "only ratios of weights matter")
    if not any(weights.values()):
        raise ConfigError(f"{name}: all weights are 0, so nothing could be drawn; give at least one source a share")

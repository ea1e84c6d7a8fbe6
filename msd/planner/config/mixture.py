"""Shares of the sources, and how they move."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from msd.core.checks import check_range
from msd.core.config import ConfigStruct
from msd.errors import ConfigError

MAX_STEP = 1 << 53

Mode = Literal["explicit", "proportional", "temperature"]
ClockKind = Literal["step", "epoch", "tokens", "samples", "microbatch"]


class GroupConfig(ConfigStruct, frozen=True, kw_only=True):
    """Sources, or groups of them, that share one weight."""

    weight: float = 1.0
    """Of the whole group, among its neighbours."""
    weights: dict[str, "float | GroupConfig"]
    """Within the group, by source or by name of a group."""
    mode: Mode = "explicit"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_temperature(self.mode, self.temperature, "a group of mixture.weights")


Weights = dict[str, float | GroupConfig]
"""By source, or by name of a group."""


class StageConfig(ConfigStruct, frozen=True, kw_only=True):
    """New weights from a step on, or from another place of the mixture's clock."""

    step: int | None = None
    """Where the stage starts, with `clock: step`."""
    at: int | float | None = None
    """Where it starts with any other clock, in what that counts."""
    weights: Weights | None = None
    """Null, with `mode: proportional` or `temperature`, gives every source the same."""
    mode: Mode = "explicit"
    temperature: float = 1.0
    ramp: int | float = 0
    """How long the weights move, linearly, from the ones before, in what the clock counts: there at start + `ramp`."""

    def __post_init__(self) -> None:
        name, value = ("step", self.step) if self.at is None else ("at", self.at)
        if value is None or (self.step is not None and self.at is not None):
            raise ConfigError(
                f"a schedule stage starts at one place, got step={self.step}, at={self.at}; write step: N, or at: N "
                "with another clock than step"
            )
        if value < 0 or self.ramp < 0:
            raise ConfigError(
                f"a schedule stage needs {name} >= 0 and ramp >= 0, got {name}={value}"
                f"{'' if self.ramp >= 0 else f', ramp={self.ramp}'}"
            )
        check_range(f"mixture.schedule: {name}", value, 0, MAX_STEP)
        check_range("mixture.schedule: ramp", self.ramp, 0, MAX_STEP)
        check_temperature(self.mode, self.temperature, self.where)
        if self.weights is None and self.mode == "explicit":
            raise ConfigError(f"{self.where} has no weights; give it some, or mode: proportional or temperature")
        check_weights(self.weights, self.where)

    @property
    def start(self) -> float:
        """Where the stage starts, in what the clock counts."""
        return self.at if self.step is None else self.step  # type: ignore[return-value]

    @property
    def where(self) -> str:
        """The stage, as an error names it."""
        place = f"at {self.at}" if self.step is None else f"at step {self.step}"
        return f"mixture.schedule stage {place}"


class FeedbackConfig(ConfigStruct, frozen=True, kw_only=True):
    """Weights that follow what training reports of the sources."""

    function: Any
    """Function `(shares, losses, step) -> weights`, each by source, or its dotted path `package.module:function`."""
    every: int = 100
    """Steps between two calls."""

    def __post_init__(self) -> None:
        is_dotted = isinstance(self.function, str) and all(self.function.partition(":"))
        if not is_dotted and not callable(self.function):
            raise ConfigError(
                "mixture.feedback must be a dotted path package.module:function, or from Python a function "
                f"(shares, losses, step) -> weights; got {self.function!r}"
            )
        check_range("mixture.feedback.every", self.every, 1, MAX_STEP)


class MixtureConfig(ConfigStruct, frozen=True, kw_only=True):
    """Shares of the sources."""

    unit: Literal["tokens", "loss_tokens", "samples"] = "tokens"
    """What a weight counts: real tokens as packed (image placeholders included), those that carry a label, or
    samples."""
    weights: Weights | None = None
    """Relative shares by source or group of sources; null gives every source the same."""
    mode: Mode = "explicit"
    """explicit: shares are the weights. proportional: weights times sizes, in rows of an epoch. temperature: weights
    times size ** (1 / temperature)."""
    temperature: float = 1.0
    """1 is proportional; the higher, the more equal."""
    clock: ClockKind = "step"
    """What the stages of the schedule count."""
    schedule: list[StageConfig] = []
    repetitions: float | dict[str, float] | None = None
    """Passes over a source at most, fractions allowed: one number for all, or by source; null leaves it to
    `max_epochs` of the sources."""
    on_exhausted: Literal["repeat", "stop", "drop", "error"] | None = None
    """For sources that do not say themselves. Null: repeat for ever without a cap, stop with one."""
    feedback: FeedbackConfig | None = None

    def __post_init__(self) -> None:
        check_temperature(self.mode, self.temperature, "mixture")
        check_weights(self.weights, "mixture.weights")
        self._check_schedule()
        for name, most in self.caps():
            check_range(name, most, 1e-9, 1e9, "leave it out to repeat for ever")
        if self.feedback is not None and self.schedule:
            raise ConfigError("mixture.feedback and mixture.schedule both move the weights; leave one of them out")

    def caps(self) -> Iterator[tuple[str, float]]:
        """Yield each number of `repetitions` with the name of its setting."""
        if isinstance(self.repetitions, dict):
            for source, most in self.repetitions.items():
                yield f"mixture.repetitions: {source}", most
        elif self.repetitions is not None:
            yield "mixture.repetitions", self.repetitions

    def repetitions_of(self, source: str) -> float | None:
        """Return how often a source may be passed over, None if the mixture does not say."""
        return self.repetitions.get(source) if isinstance(self.repetitions, dict) else self.repetitions

    @property
    def goes_by_size(self) -> bool:
        """Whether the rows of an epoch of each source must be known."""
        configs: list[MixtureConfig | StageConfig] = [self, *self.schedule]
        return self.clock == "epoch" or any(
            config.mode != "explicit" or any(group.mode != "explicit" for _, group in groups_of(config.weights or {}))
            for config in configs
        )

    def _check_schedule(self) -> None:
        right, wrong = ("step", "at") if self.clock == "step" else ("at", "step")
        for stage in self.schedule:
            if getattr(stage, wrong) is not None:
                raise ConfigError(
                    f"{stage.where}: with mixture.clock {self.clock} its place is written {right}: N, not {wrong}: N"
                )
            if self.clock != "epoch" and (stage.start != int(stage.start) or stage.ramp != int(stage.ramp)):
                raise ConfigError(
                    f"{stage.where}: clock {self.clock} counts whole numbers, got {right}={stage.start}, "
                    f"ramp={stage.ramp}"
                )
        starts = [stage.start for stage in self.schedule]
        if starts != sorted(set(starts)):
            raise ConfigError(f"mixture.schedule must be in increasing order of {right}, got {right}s {starts}")


def check_temperature(mode: Mode, temperature: float, where: str) -> None:
    """Raise `ConfigError` unless a temperature is positive, and 1 where the mode takes none."""
    check_range(f"{where}: temperature", temperature, 0.1, 1e9, "1 is proportional, a large one makes shares equal")
    if mode != "temperature" and temperature != 1:
        raise ConfigError(f"{where}: temperature {temperature} needs mode: temperature, got mode: {mode}")


def check_weights(weights: Weights | None, name: str) -> None:
    """Raise `ConfigError` unless weights are non-negative, finite, and in no group all zero."""
    if weights is None:
        return
    _check_level(weights, name)
    groups: dict[str, str] = {}
    for source, group in sources_of(weights, name):
        if source in groups:
            raise ConfigError(
                f"source {source!r} has a weight in {groups[source]} and in {group}; a source has one place in the tree"
            )
        groups[source] = group


def sources_of(weights: Weights, name: str = "mixture.weights") -> Iterator[tuple[str, str]]:
    """Yield each source of a tree of weights with the name of the group that it stands in."""
    for key, value in weights.items():
        if isinstance(value, GroupConfig):
            yield from sources_of(value.weights, f"{name}.{key}")
        else:
            yield key, name


def groups_of(weights: Weights) -> Iterator[tuple[str, GroupConfig]]:
    """Yield each group of a tree of weights with its name."""
    for key, value in weights.items():
        if isinstance(value, GroupConfig):
            yield key, value
            yield from groups_of(value.weights)


def relative_weights(weights: Weights | None, names: Iterable[str]) -> dict[str, float]:
    """Return the weight of each source among all, before sizes come in: those of a group multiply with the group's."""
    if weights is None:
        return dict.fromkeys(names, 1.0)
    found = dict.fromkeys(names, 0.0)
    for key, value in weights.items():
        if isinstance(value, GroupConfig):
            inner = relative_weights(value.weights, [source for source, _ in sources_of(value.weights)])
            total = math.fsum(inner.values())
            found |= {source: value.weight * weight / total for source, weight in inner.items()}
        else:
            found[key] = value
    return found


def weight_of(value: float | GroupConfig) -> float:
    """Return what a source or a group weighs among its neighbours."""
    return value.weight if isinstance(value, GroupConfig) else value


def _check_level(weights: Mapping[str, float | GroupConfig], name: str) -> None:
    for key, value in weights.items():
        weight = weight_of(value)
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"{name}: weight of {key!r} must be 0 or more, got {weight}; 0 leaves it out")
        if weight > 0:
            check_range(f"{name}: weight of {key!r}", weight, 1e-100, 1e100, "only ratios of weights matter")
        if isinstance(value, GroupConfig):
            _check_level(value.weights, f"{name}.{key}")
    if not any(map(weight_of, weights.values())):
        raise ConfigError(f"{name}: all weights are 0, so nothing could be drawn; give at least one source a share")

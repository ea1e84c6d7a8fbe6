"""Mixture weights over a run: constant, staged, ramped; and the integers that draws count in."""

# S = sources, in order of name.

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from msd.core.arrays import Int64Array
from msd.errors import ConfigError
from msd.planner.config.mixture import MixtureConfig, StageConfig
from msd.planner.mixture.clock import Clock
from msd.planner.mixture.shares import Shares, shares_of

WEIGHT_UNIT = 10**9
"""Integer weights of the live sources sum to this."""
_SOURCES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Stage:
    """Shares that the mixture moves to."""

    start: int
    """In ticks of the clock."""
    ramp: int
    """Ticks until they are reached."""
    target: Shares


@dataclass(frozen=True, slots=True)
class MixtureSchedule:
    """Which share each source has at each count of a clock."""

    names: tuple[str, ...]
    """Sources in order of name."""
    base: Shares
    """Before any stage."""
    stages: tuple[Stage, ...] = ()
    clock: Clock = field(default_factory=Clock)

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        mixture: MixtureConfig,
        *,
        rows: Mapping[str, int] | None = None,
        num_microbatches: int = 1,
    ) -> "MixtureSchedule":
        """Return the schedule of a configuration; sources without a weight have share 0.

        Args:
            names: All sources.
            mixture: Weights, stages, and the clock that they count.
            rows: Rows of an epoch by source; what `proportional`, `temperature` and `clock: epoch` go by.
            num_microbatches: Parts of a step, for `clock: microbatch`.

        Raises:
            ConfigError: If sizes are asked for and not known.
        """
        if rows is None and mixture.goes_by_size:
            raise ConfigError(
                "mixture: proportional, temperature and clock: epoch go by the rows of each source; pass rows="
            )
        ordered, sizes = tuple(sorted(names)), rows or {}
        clock = Clock(mixture.clock, sum(sizes.values()), num_microbatches)

        def shares(config: MixtureConfig | StageConfig) -> Shares:
            return shares_of(config.weights, ordered, config.mode, config.temperature, sizes)

        stages = []
        for stage in mixture.schedule:
            start = clock.ticks(stage.start)
            stages.append(Stage(start, clock.ticks(stage.start + stage.ramp) - start, shares(stage)))
        return cls(ordered, shares(mixture), tuple(stages), clock)

    def shares(self, count: int = 0, live_S: Sequence[bool] | None = None) -> tuple[float, ...]:
        """Return the share of each source when the clock shows `count`, in the order of `names`; they sum to 1.

        A stage starts at its place from the shares that hold there, moves linearly, and is reached `ramp` later.

        Args:
            count: Steps, with the default clock; see `Clock.count`.
            live_S: Which sources can be drawn; None, all. The others get 0, and what they leave goes to those of
                their group; without a group it is left out of the sum.
        """
        return self._after(len(self.stages), count, [True] * len(self.names) if live_S is None else live_S)

    def next_turn(self, count: int) -> int | None:
        """Return the next count after `count` where a stage starts or a ramp ends; None when shares stay as they are.

        In between shares stay, or move linearly.
        """
        turns = (turn for stage in self.stages for turn in (stage.start, stage.start + stage.ramp))
        return min((turn for turn in turns if turn > count), default=None)

    def _after(self, num_stages: int, count: int, live_S: Sequence[bool]) -> tuple[float, ...]:
        while num_stages and self.stages[num_stages - 1].start > count:
            num_stages -= 1
        if not num_stages:
            return self.base.over(live_S)
        stage = self.stages[num_stages - 1]
        target = stage.target.over(live_S)
        if count >= stage.start + stage.ramp:
            return target
        before = self._after(num_stages - 1, stage.start, live_S)
        done = (count - stage.start) / stage.ramp
        return tuple(old + (new - old) * done for old, new in zip(before, target, strict=True))

    def __str__(self) -> str:
        lines = [self._shown(self.base)]
        for stage in self.stages:
            how = "at" if not stage.ramp else "from"
            until = "" if not stage.ramp else f" to {self.clock.shown(stage.start + stage.ramp)}"
            lines.append(f"{how} {self.clock.shown(stage.start)}{until}: {self._shown(stage.target)}")
        return "; ".join(lines)

    def _shown(self, shares: Shares) -> str:
        pairs = sorted(zip(shares.share_S, self.names, strict=True), key=lambda pair: (-pair[0], pair[1]))
        shown = [f"{name} {share:.1%}" for share, name in pairs if share]
        if len(shown) > _SOURCES_SHOWN:
            rest = math.fsum(share for share, _ in pairs[_SOURCES_SHOWN:])
            shown = [*shown[:_SOURCES_SHOWN], f"{len(shown) - _SOURCES_SHOWN} others {rest:.1%}"]
        return ", ".join(shown) or "nothing"


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

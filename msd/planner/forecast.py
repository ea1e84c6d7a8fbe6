"""How far a run will use its sources up, before it runs: from weights, sizes and mean lengths.

Expected values: shares hold exactly, every row of a source gives what its rows gave on the mean so far, and every step
holds the same number of tokens. Many steps are taken at once where the schedule rests and no source ends, so that a
million of them cost little.
"""

# S = sources, in order of name.

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from msd.core.arrays import Float64Array
from msd.core.state import StateDict
from msd.planner.mixture.schedule import MixtureSchedule
from msd.planner.settings import SourceTerms

_RAMP_PIECES = 32
"""What is left of a ramp is followed in this many pieces, each at the shares of its middle."""
_SMALL = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePace:
    """What a forecast knows of a source."""

    name: str
    rows_per_epoch: int
    total_rows: int | None
    """Rows in all epochs, None when it repeats for ever."""
    end: Literal["repeat", "stop", "drop", "error"]
    tokens_per_row: float
    """On the mean, rows that give nothing included."""
    samples_per_row: float
    units_per_row: float
    """What the mixture's weights count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceForecast:
    """What a run is expected to draw from a source."""

    name: str
    share: float
    """Of all that the mixture's weights count, over the run."""
    tokens: float
    rows: float
    epochs: float
    """Passes over the source by the last step."""
    repeats_at_step: int | None
    """Where its second epoch begins; None when that is later, or never."""
    ends_at_step: int | None
    """Where its last row is drawn; None when that is later, or never."""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a run is expected to draw."""

    num_steps: int
    """Asked for, or fewer when a source ends the run."""
    ended_by: str | None
    """That source."""
    sources: tuple[SourceForecast, ...]


def paces_of(
    terms: Sequence[SourceTerms], progress: StateDict, *, unit: str, loss_tokens: Mapping[str, int] | None = None
) -> tuple[SourcePace, ...]:
    """Return what the steps planned so far say of each source.

    A source of which nothing was drawn yet is taken to give what the others give on the mean.

    Args:
        terms: The sources.
        progress: The planner's position after those steps.
        unit: `mixture.unit`.
        loss_tokens: Positions with a label that each source gave in those steps; needed for `unit: loss_tokens`.

    Raises:
        ValueError: If it is needed and not given.
    """
    if unit == "loss_tokens" and loss_tokens is None:
        raise ValueError("a position does not tell loss tokens; pass loss_tokens= by source, summed over the plans")
    saved = progress["sources"]
    drawn = {what: sum(source[what] for source in saved.values()) for what in ("ordinal", "tokens", "samples")}
    drawn["loss_tokens"] = sum((loss_tokens or {}).values())
    paces = []
    for term in sorted(terms, key=lambda term: term.name):
        own = {**saved[term.name], "loss_tokens": (loss_tokens or {}).get(term.name, 0)}
        seen = own if own["samples"] else drawn
        rows = max(1, seen["ordinal"])
        paces.append(
            SourcePace(
                name=term.name,
                rows_per_epoch=term.rows_per_epoch,
                total_rows=term.total_ordinals,
                end=term.end,
                tokens_per_row=seen["tokens"] / rows,
                samples_per_row=seen["samples"] / rows,
                # A sample counts for one at least; see `msd.planner.primitives.mix.UNITS`.
                units_per_row=max(seen[unit], seen["samples"]) / rows,
            )
        )
    return tuple(paces)


def forecast(
    schedule: MixtureSchedule,
    paces: Sequence[SourcePace],
    *,
    steps: int,
    tokens_per_step: float | Callable[[int], float],
) -> Forecast:
    """Return what is drawn of each source by step `steps`, and where one repeats or ends.

    Args:
        schedule: Weights over the run.
        paces: Every source of the schedule.
        steps: Of the run.
        tokens_per_step: Real tokens of a step, on the mean: fill times what its sequences hold. A function of the step
            where `batch.schedule` changes that.
    """
    if not callable(tokens_per_step):
        tokens_per_step = partial(_same, tokens_per_step)
    run = _Run(schedule, sorted(paces, key=lambda pace: pace.name), tokens_per_step)
    while run.step < steps and run.ended_by is None and any(run.live_S):
        run.advance(steps - run.step)
    return run.result()


def _same(tokens: float, step: int) -> float:
    return tokens


class _Run:
    """A run as it is foreseen: how far it is, and what it has drawn."""

    def __init__(
        self, schedule: MixtureSchedule, paces: Sequence[SourcePace], tokens_at: Callable[[int], float]
    ) -> None:
        self.step = 0
        self.ended_by: str | None = None
        self.live_S = [pace.rows_per_epoch > 0 and pace.total_rows != 0 for pace in paces]
        self._schedule, self._paces, self._tokens_at = schedule, paces, tokens_at
        self._rows_S = np.zeros(len(paces))
        self._total_S = np.array([math.inf if pace.total_rows is None else pace.total_rows for pace in paces])
        self._epoch_S = np.array([float(pace.rows_per_epoch) for pace in paces])
        self._tokens_S = np.array([pace.tokens_per_row for pace in paces])
        self._samples_S = np.array([pace.samples_per_row for pace in paces])
        self._units_S = np.array([pace.units_per_row for pace in paces])
        self._repeats_at: dict[int, int] = {}
        self._ends_at: dict[int, int] = {}

    def advance(self, steps: int) -> None:
        """Draw as many of the next `steps` at once as one rate holds for: at least one."""
        count = math.floor(self._count(self.step, self._rows_S))
        rate_S = self._rate(self.step, count)
        pace = self._count(self.step + 1, self._rows_S + rate_S) - count
        turn = self._schedule.next_turn(count)
        span = steps if turn is None else max(1, min(steps, math.ceil((turn - count) / max(pace, _SMALL))))
        if self._is_moving(count, span, pace):
            span = max(1, span // _RAMP_PIECES)
            rate_S = self._rate(self.step + span // 2, count + math.floor(span * pace / 2))
        with np.errstate(divide="ignore", invalid="ignore"):
            left = np.nanmin(np.where(rate_S > 0, (self._total_S - self._rows_S) / rate_S, math.inf))
        self._draw(rate_S, max(1, min(span, math.floor(left))) if left < math.inf else span)

    def result(self) -> Forecast:
        """Return what was drawn."""
        units_S = self._rows_S * self._units_S
        share_S, tokens_S = units_S / max(units_S.sum(), _SMALL), self._rows_S * self._tokens_S
        return Forecast(
            num_steps=self.step,
            ended_by=self.ended_by,
            sources=tuple(
                SourceForecast(
                    name=pace.name,
                    share=float(share_S[s]),
                    tokens=float(tokens_S[s]),
                    rows=float(self._rows_S[s]),
                    epochs=float(self._rows_S[s] / max(self._epoch_S[s], 1)),
                    repeats_at_step=self._repeats_at.get(s),
                    ends_at_step=self._ends_at.get(s),
                )
                for s, pace in enumerate(self._paces)
            ),
        )

    def _is_moving(self, count: int, span: int, pace: float) -> bool:
        """Return whether shares, or the tokens of a step, differ between the first and the last of the next steps."""
        last = span - 1
        shares, tokens = self._schedule.shares, self._tokens_at
        return shares(count) != shares(count + math.floor(last * pace)) or tokens(self.step) != tokens(self.step + last)

    def _count(self, step: int, rows_S: Float64Array) -> float:
        """Return what the schedule's clock shows when so much has been drawn."""
        clock = self._schedule.clock
        if clock.kind == "epoch":
            return float(rows_S.sum())
        if clock.kind in ("tokens", "samples"):
            return float((rows_S * (self._tokens_S if clock.kind == "tokens" else self._samples_S)).sum())
        return step * clock.ticks_per_step

    def _rate(self, step: int, count: int) -> Float64Array:
        """Return the rows that each source gives in a step at which the clock shows `count`."""
        share_S = np.array(self._schedule.shares(count, self.live_S))
        rows_S = np.divide(share_S, self._units_S, out=np.zeros_like(share_S), where=self._units_S > 0)
        rate_S: Float64Array = rows_S * (self._tokens_at(step) / max(float((rows_S * self._tokens_S).sum()), _SMALL))
        return rate_S

    def _draw(self, rate_S: Float64Array, span: int) -> None:
        before_S = self._rows_S
        self._rows_S = np.minimum(before_S + rate_S * span, self._total_S)
        for s in np.flatnonzero((before_S <= self._epoch_S) & (self._rows_S > self._epoch_S)).tolist():
            self._repeats_at[s] = self.step + math.floor((self._epoch_S[s] - before_S[s]) / rate_S[s])
        self.step += span
        for s, pace in enumerate(self._paces):
            if self.live_S[s] and self._rows_S[s] >= self._total_S[s] - _SMALL:
                self.live_S[s] = False
                self._ends_at[s] = self.step - 1
                if pace.end != "drop":
                    self.ended_by = self.ended_by or pace.name

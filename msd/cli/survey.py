"""What a run would give: the plans of its next steps, added up by source and on the whole."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from msd.core.plan import StepPlan
from msd.core.sample import MetaTable, Outcome

if TYPE_CHECKING:
    from msd.config import Config
    from msd.core.index import BlockTable
    from msd.core.order import SourceOrder
    from msd.core.state import StateDict
    from msd.loader.loader import SourceLoader
    from msd.planner.forecast import Forecast
    from msd.planner.mixture.schedule import MixtureSchedule
    from msd.planner.planner import Planner

_MEANS = ("fill", "imbalance", "imbalance_floor", "lockstep", "lockstep_floor", "packed_imbalance", "packed_lockstep")
_ENCODER_MEANS = ("imbalance", "imbalance_floor", "row_imbalance", "moved")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOutlook:
    """One source over the steps that were planned."""

    name: str
    rows_per_epoch: int | None
    """None for a source without an end."""
    total_rows: int | None
    """Rows in all epochs, or None when it repeats for ever."""
    target: float
    """Its share by the weights, averaged over the steps, in the mixture's unit."""
    tokens: int
    samples: int
    token_share: float
    loss_token_share: float
    """Of the positions that carry a label."""
    sample_share: float
    rows_used: int
    """Rows of its sequence up to the last one that was placed."""
    ends_at_step: int | None
    """Where its last row is used at this pace; None when that is never."""
    undelivered: dict[str, int]
    """Rows among those that gave no sample, by what became of them."""

    @property
    def epochs(self) -> float:
        """Passes over the source by the last step."""
        return self.rows_used / self.rows_per_epoch if self.rows_per_epoch else 0.0

    def share(self, unit: str) -> float:
        """Return the share that was drawn, in the mixture's unit."""
        shares = {"tokens": self.token_share, "loss_tokens": self.loss_token_share, "samples": self.sample_share}
        return shares[unit]

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able values."""
        names = [name for name in self.__dataclass_fields__ if name != "name"]
        return {name: getattr(self, name) for name in names} | {"epochs": self.epochs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """A run over the steps that were planned."""

    num_steps: int
    asked_steps: int
    is_over: bool
    """The data ended before the steps that were asked."""
    means: dict[str, float]
    """Fill, imbalance and lockstep with their floors, averaged over the steps; `encoder_imbalance` and so on as well
    where images are encoded apart from their rows."""
    max_imbalance: float
    max_row_tokens: int
    step_flops: float | None
    predicted_step_s: float | None
    notes: tuple[str, ...]
    sources: tuple[SourceOutlook, ...]
    waits_for: str | None = None
    """Why no more steps were planned, where rows of a source without an end are still to come."""
    forecast: "Forecast | None" = None
    """The whole run as it is expected, if it was asked for."""

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able values."""
        names = ("num_steps", "asked_steps", "is_over", "max_imbalance", "max_row_tokens", "step_flops")
        plain = {name: getattr(self, name) for name in names}
        return {
            **plain,
            **self.means,
            "predicted_step_s": self.predicted_step_s,
            "waits_for": self.waits_for,
            "notes": list(self.notes),
            "sources": {source.name: source.as_dict() for source in self.sources},
        } | ({} if self.forecast is None else {"forecast": _forecast_dict(self.forecast)})


@dataclass(slots=True)
class Tally:
    """Adds plans up."""

    schedule: "MixtureSchedule"
    position: "StateDict"
    """Of the run before the next plan."""
    plans: int = 0
    targets: dict[str, float] = field(default_factory=dict)
    """Shares by the weights, summed over the plans."""
    sums: dict[str, float] = field(default_factory=dict)
    max_imbalance: float = 0.0
    max_row_tokens: int = 0
    flops: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    loss_tokens: dict[str, int] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    rows_used: dict[str, int] = field(default_factory=dict)

    def add(self, plan: StepPlan) -> None:
        """Count one more plan."""
        report = plan.report
        self.plans += 1
        for name in _MEANS:
            self.sums[name] = self.sums.get(name, 0.0) + getattr(report, name)
        for name in () if report.encoder is None else _ENCODER_MEANS:
            of_encoder = f"encoder_{name}"
            self.sums[of_encoder] = self.sums.get(of_encoder, 0.0) + getattr(report.encoder, name)
        self.max_imbalance = max(self.max_imbalance, report.imbalance)
        self.max_row_tokens = max(self.max_row_tokens, report.max_row_tokens)
        self.flops += [] if report.step_flops is None else [report.step_flops]
        self.seconds += [] if report.predicted_step_s is None else [report.predicted_step_s]
        self.notes |= dict.fromkeys(plan.notes)
        for name, share in self._next_targets().items():
            self.targets[name] = self.targets.get(name, 0.0) + share
        self.position = plan.progress
        for counted, step in ((self.tokens, report.tokens_by_source), (self.samples, report.samples_by_source)):
            for name, number in step.items():
                counted[name] = counted.get(name, 0) + number
        for number, name in enumerate(plan.source_names):
            drawn_D = plan.source_D == number
            ordinal_D = plan.ordinal_D[drawn_D]
            self.loss_tokens[name] = self.loss_tokens.get(name, 0) + int(plan.num_valid_D[drawn_D].sum())
            if len(ordinal_D):
                self.rows_used[name] = max(self.rows_used.get(name, 0), int(ordinal_D.max()) + 1)

    def share(self, counted: Mapping[str, int], name: str) -> float:
        """Return the share of one source in what was counted."""
        return counted.get(name, 0) / max(1, sum(counted.values()))

    def target(self, name: str) -> float:
        """Return the share of one source by the weights, averaged over the plans; before any, that of the first."""
        return self.targets[name] / self.plans if self.plans else self._next_targets()[name]

    def _next_targets(self) -> dict[str, float]:
        """Return the shares by the weights in the next step, on the mean of its parts."""
        clock = self.schedule.clock
        first = clock.count(self.position)
        parts = [self.schedule.shares(first + part) for part in range(clock.ticks_per_step)]
        return dict(zip(self.schedule.names, np.mean(parts, axis=0).tolist(), strict=True))

    def mean(self, name: str) -> float:
        """Return the mean of a figure over the plans."""
        return self.sums.get(name, 0.0) / max(1, self.plans)


class _Watched:
    """A loader whose tables are looked at on their way to the planner."""

    def __init__(self, loader: "SourceLoader") -> None:
        self._loader = loader
        self.tables: list[MetaTable] = []

    def examine(self, start: int, num_rows: int) -> MetaTable:
        table = self._loader.examine(start, num_rows)
        self.tables.append(table)
        return table

    def undelivered(self, rows_used: int) -> dict[str, int]:
        """Return the rows before `rows_used` that gave no sample, by outcome."""
        counted: dict[str, int] = {}
        for table in self.tables:
            outcome_R = table.outcome_R[: max(0, rows_used - table.start)]
            for outcome in (Outcome.FILTERED, Outcome.FAILED, Outcome.OVERFLOWED):
                number = int(np.count_nonzero(outcome_R == outcome))
                if number:
                    counted[outcome.name.lower()] = counted.get(outcome.name.lower(), 0) + number
        return counted


def survey(
    config: "Config",
    tables: Mapping[str, "BlockTable"],
    steps: int,
    *,
    until: int | None = None,
    on_plan: Callable[[StepPlan], None] | None = None,
) -> Outlook:
    """Plan the first `steps` steps of a run and return what they hold.

    Args:
        config: The configuration.
        tables: Index of every source.
        steps: To plan.
        until: Also foresee the run up to this step, from what was planned.
        on_plan: Called with each plan.

    Raises:
        InputError: If the configuration cannot be built, a source cannot be read, or nothing of one survives.
    """
    from msd.build import build_loaders, build_orders, build_planner, plan_steps
    from msd.loader.admitted import RowsNotHere

    orders = build_orders(config, tables)
    loaders = build_loaders(config, orders)
    watched = {name: _Watched(loader) for name, loader in loaders.items()}
    waits_for = None
    try:
        planner = build_planner(config, orders)
        tally = Tally(planner.strategy.mix.schedule, planner.state_dict())
        for plan in plan_steps(planner, watched, steps=steps):  # type: ignore[arg-type]
            tally.add(plan)
            if on_plan is not None:
                on_plan(plan)
    except RowsNotHere as lack:
        if not tally.plans:
            raise
        waits_for = str(lack)
    finally:
        for loader in loaders.values():
            loader.close()
    return Outlook(
        num_steps=tally.plans,
        asked_steps=steps,
        is_over=tally.plans < steps and waits_for is None,
        waits_for=waits_for,
        means={name: tally.mean(name) for name in (*_MEANS, *sorted(tally.sums.keys() - set(_MEANS)))},
        max_imbalance=tally.max_imbalance,
        max_row_tokens=tally.max_row_tokens,
        step_flops=_mean(tally.flops),
        predicted_step_s=_mean(tally.seconds),
        notes=tuple(tally.notes | dict.fromkeys(planner.closing_notes)),
        sources=tuple(
            _outlook(
                name,
                orders[name],
                orders[name].total_ordinals(config.max_epochs(name)),
                tally,
                watched[name].undelivered(tally.rows_used.get(name, 0)),
            )
            for name in config.sources
        ),
        forecast=None if until is None or not tally.plans else _forecast(planner, tally, until),
    )


def _forecast(planner: "Planner", tally: Tally, until: int) -> "Forecast":
    """Return how far a run of so many steps will use its sources up, if rows go on as those planned."""
    from msd.planner.batch_schedule import schedule_of
    from msd.planner.forecast import forecast, paces_of

    settings = planner.settings
    sizes, fill = schedule_of(settings.batch, settings.multiple_of), tally.mean("fill")

    def tokens_of(step: int) -> float:
        if sizes is None:
            return fill * settings.batch.global_batch_size * settings.batch.sequence_length
        return fill * sizes.at(step).num_sequences * sizes.at(step).sequence_length

    paces = paces_of(settings.sources, tally.position, unit=settings.mixture.unit, loss_tokens=tally.loss_tokens)
    return forecast(tally.schedule, paces, steps=until, tokens_per_step=tokens_of)


def _forecast_dict(found: "Forecast") -> dict[str, Any]:
    return {
        "num_steps": found.num_steps,
        "ended_by": found.ended_by,
        "sources": {source.name: source.as_dict() for source in found.sources},
    }


def _outlook(
    name: str, order: "SourceOrder", total: int | None, tally: Tally, undelivered: dict[str, int]
) -> SourceOutlook:
    used = tally.rows_used.get(name, 0)
    return SourceOutlook(
        name=name,
        rows_per_epoch=None if order.is_unbounded else order.rows_per_epoch,
        total_rows=total,
        target=tally.target(name),
        tokens=tally.tokens.get(name, 0),
        samples=tally.samples.get(name, 0),
        token_share=tally.share(tally.tokens, name),
        loss_token_share=tally.share(tally.loss_tokens, name),
        sample_share=tally.share(tally.samples, name),
        rows_used=used,
        ends_at_step=None if total is None or not used else -(-total * tally.plans // used),
        undelivered=undelivered,
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None

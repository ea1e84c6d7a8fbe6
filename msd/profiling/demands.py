"""From a profile and a mixture to what each source is asked for at its peak."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from msd.config import PipelineConfig
from msd.core.demand import SourceDemand
from msd.core.order import SourceOrder
from msd.cost.linear import LinearModel
from msd.cost.profile import Profile
from msd.errors import ConfigError
from msd.loader.transforms.chain import TransformChain
from msd.planner.mixture.schedule import MixtureSchedule
from msd.profiling.store import find, fingerprints

_LOG = logging.getLogger("msd")


def demands_of(config: PipelineConfig, orders: Mapping[str, SourceOrder], profile: Profile) -> list[SourceDemand]:
    """Return what a run asks of each source that is drawn from: its largest share over the schedule.

    Raises:
        ConfigError: If a source that is drawn from was not profiled.
    """
    peaks = peak_shares(config, orders, {name: one.tokens_per_sample for name, one in profile.sources.items()})
    found = []
    for name, share in peaks.items():
        if share <= 0:
            continue
        one = profile.sources.get(name)
        if one is None:
            raise ConfigError(f"source {name!r} is drawn from and not in the profile; run `msd profile` again")
        found.append(
            SourceDemand(
                source=name,
                share=share,
                rows_per_sample=one.rows_per_sample,
                cost=one.cost,
                loader_bytes=one.loader_bytes,
                runs_in=one.runs_in,
                worker_bytes=one.worker_bytes,
                most_loaders=max(1, orders[name].windows_per_epoch),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class Profiled:
    """What a kept profile says of the sources of a run."""

    demands: tuple[SourceDemand, ...] = ()
    models: Mapping[str, LinearModel] = field(default_factory=dict)
    """Seconds of a row from its bytes, by source."""


def profiled(
    config: PipelineConfig, orders: Mapping[str, SourceOrder], chains: Mapping[str, TransformChain]
) -> Profiled:
    """Return what the profile says that is kept for a run; nothing if none is that fits here."""
    profile, against = find(fingerprints(config, orders, chains))
    if profile is None:
        if against:
            _LOG.info("the profile that is kept for these sources is not used: %s", "; ".join(against))
        return Profiled()
    try:
        models = {name: LinearModel.from_dict(one.block_model) for name, one in profile.sources.items()}
        return Profiled(tuple(demands_of(config, orders, profile)), models)
    except ConfigError as error:
        _LOG.info("the profile that is kept for these sources is not used: %s", error)
        return Profiled()


def peak_shares(
    config: PipelineConfig, orders: Mapping[str, SourceOrder], tokens_per_sample: Mapping[str, float]
) -> dict[str, float]:
    """Return by source the largest share of the samples that it has at any point of the schedule.

    Shares by tokens become shares by samples: half of the tokens are few samples where those are long. Between turns
    of a schedule shares move evenly, so that turns are all there is to look at.
    """
    rows = {name: order.rows_per_epoch for name, order in orders.items()}
    schedule = MixtureSchedule.of(
        list(config.sources), config.mixture, rows=rows, num_microbatches=config.num_microbatches
    )
    count: int | None = 0
    peaks = dict.fromkeys(config.sources, 0.0)
    while count is not None:
        by_unit = dict(zip(schedule.names, schedule.shares(count), strict=True))
        for name, share in by_samples(by_unit, tokens_per_sample, unit=config.mixture.unit).items():
            peaks[name] = max(peaks[name], share)
        count = schedule.next_turn(count)
    return peaks


def by_samples(shares: Mapping[str, float], tokens_per_sample: Mapping[str, float], *, unit: str) -> dict[str, float]:
    """Return shares of samples from shares of what a mixture counts: tokens, or samples.

    A source of which no tokens per sample are known counts as one whose samples are as long as the others'.
    """
    known = [tokens for tokens in tokens_per_sample.values() if tokens > 0]
    usual = sum(known) / len(known) if known else 1.0
    weights = {
        name: share if unit == "samples" else share / (tokens_per_sample.get(name) or usual)
        for name, share in shares.items()
    }
    total = sum(weights.values())
    return {name: weight / total if total > 0 else 0.0 for name, weight in weights.items()}

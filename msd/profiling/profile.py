"""From a configuration to a profile: sample rows of each source, time them, fit models."""

# R = rows, F = features.

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import numpy as np

from msd.build import build_chain_of, build_orders, index_all
from msd.config import PipelineConfig
from msd.core.arrays import BoolArray, Float64Array
from msd.core.order import SourceOrder
from msd.core.sample import Sample, SampleSlab
from msd.core.unbounded import UnboundedOrder
from msd.cost.estimators import Fitted, fit
from msd.cost.features import BYTES, FEATURES
from msd.cost.linear import LEAST_ROWS, LinearModel, fit_linear
from msd.cost.profile import VERSION, Outlier, Profile, SourceProfile
from msd.cost.scores import Score, score
from msd.errors import ConfigError, MsdError, told
from msd.loader.features import RowFeatures
from msd.loader.ledgers import admitted_rows
from msd.loader.processes.decide import Timing
from msd.loader.processes.measure import Rows, timed_work
from msd.loader.rows import Row, RowReader
from msd.loader.transforms.chain import TransformChain
from msd.profiling.memory import measure
from msd.profiling.store import fingerprints, machine, versions
from msd.profiling.timing import Timings, on_one_core, time_rows, where_best
from msd.sources.open import open_reader

ROWS = 512
"""Of each source, if there is time."""
STRETCHES = 16
"""Places of a source that rows are taken from, evenly over an epoch."""
LEAST = 32
"""Rows that are timed once, if there are so many, however long that takes."""
READ_BYTES = 4 << 20
"""Raw rows that are read ahead, about as a loader of many sources does."""
READ_SHARE = 0.25
"""Of a source's time."""
WARM_ROWS = 4
OUTLIER = 5.0
"""Times its prediction that a row takes to be named."""
MOST_OUTLIERS = 5
MEMORY_S = 60.0
LOCK_ROWS = 32
LOADER_BYTES = 1 << 20
"""Counted at least for a loader: what is measured for one that comes after others like it may be nothing."""


@dataclass(frozen=True, slots=True)
class SourceDone:
    """A source was profiled, or could not be."""

    source: str
    num_done: int
    num_sources: int
    problem: str = ""


def profile(
    config: PipelineConfig,
    *,
    seconds: float = 20.0,
    sources: Iterable[str] | None = None,
    on_progress: Callable[[SourceDone], None] = lambda done: None,
) -> tuple[Profile, dict[str, str]]:
    """Return what sources cost here, and by source why others could not be profiled.

    Args:
        config: Whose sources.
        seconds: For all of them together, about; each gets its share, and at least one row.
        sources: Names; None is all.
        on_progress: Called after each source.

    Raises:
        ConfigError: If a source is named that there is not, or transforms cannot be built.
        SourceError: If a source cannot be indexed.
    """
    names = list(config.sources) if sources is None else list(sources)
    for name in names:
        if name not in config.sources:
            raise ConfigError(f"there is no source {name!r} to profile; sources are {', '.join(config.sources)}")
    orders = build_orders(config, index_all(config))
    chains = {name: build_chain_of(config, name) for name in config.sources}
    prints = fingerprints(config, orders, chains)
    held = measure(config, orders, deadline_s=MEMORY_S)
    found: dict[str, SourceProfile] = {}
    problems: dict[str, str] = {}
    ends = time.monotonic() + seconds
    for number, name in enumerate(names):
        # What one source leaves over is for those that follow.
        until = time.monotonic() + max(0.0, ends - time.monotonic()) / (len(names) - number)
        try:
            loader_bytes = LOADER_BYTES if held is None else max(LOADER_BYTES, held.loaders.get(name, 0))
            found[name] = _source(
                config,
                orders[name],
                chains[name],
                prints[name],
                until=until,
                loader_bytes=loader_bytes,
                process_bytes=0 if held is None else held.process,
            )
        except MsdError as error:
            problems[name] = str(error)
        except Exception as error:
            problems[name] = f"it could not be profiled: {told(error)}"
        on_progress(SourceDone(name, number + 1, len(names), problems.get(name, "")))
    made_at = datetime.now(UTC).isoformat(timespec="seconds")
    kept = Profile(
        version=VERSION,
        made_at=made_at,
        machine=machine(),
        versions=versions(),
        process_bytes=0 if held is None else held.process,
        sources=found,
    )
    return kept, problems


@dataclass(frozen=True, slots=True, eq=False)
class TimedRows:
    """Rows of one source with what is known of them before, and what they took."""

    features_RF: Float64Array
    """Columns as `msd.cost.features.FEATURES`."""
    seconds_R: Float64Array
    """Of a worker, reading included."""
    cpu_R: Float64Array
    """CPU of the transforms alone, one row at a time."""
    is_good_R: BoolArray
    """False where a row failed: what it took says nothing of those that do not."""


def timed_rows(config: PipelineConfig, source: str, *, seconds: float = 10.0) -> TimedRows:
    """Return rows of one source that were timed here: what a profile fits its models to.

    Raises:
        ConfigError: If there is no such source, or it has no rows.
        SourceError: If it cannot be read.
    """
    if source not in config.sources:
        raise ConfigError(f"there is no source {source!r} to profile; sources are {', '.join(config.sources)}")
    orders = build_orders(config, index_all(config))
    sampled = _sampled(config, orders[source], build_chain_of(config, source), until=time.monotonic() + seconds)
    is_good_R = np.array([not result.reason for result in sampled.timings.results], dtype=np.bool_)
    return TimedRows(sampled.features_RF, sampled.seconds_R, sampled.timings.cpu_R(), is_good_R)


@dataclass(frozen=True, slots=True, eq=False)
class _Sampled:
    rows: Rows
    features_RF: Float64Array
    timings: Timings
    seconds_R: Float64Array
    read_s: float
    raw_bytes: float


def _sampled(config: PipelineConfig, order: SourceOrder, chain: TransformChain, *, until: float) -> _Sampled:
    """Read rows of a source and time what is done to them."""
    source = config.sources[order.source]
    if not order.rows_per_epoch:
        raise ConfigError(f"source {order.source!r} has no rows; see its path and split")
    began = time.monotonic()
    rows, read_s, raw_bytes = _read(config, order, began + READ_SHARE * (until - began))
    features_RF = RowFeatures(source.transforms).of([row for _, row in rows])
    chain.apply(rows[:WARM_ROWS])
    timings = time_rows(chain, rows, least=LEAST, until=until)
    num_rows = timings.num_rows
    return _Sampled(rows[:num_rows], features_RF[:num_rows], timings, timings.seconds_R() + read_s, read_s, raw_bytes)


def _source(
    config: PipelineConfig,
    order: SourceOrder,
    chain: TransformChain,
    prints: tuple[str, str],
    *,
    until: float,
    loader_bytes: int,
    process_bytes: int,
) -> SourceProfile:
    sampled = _sampled(config, order, chain, until=until)
    rows, features_RF, timings = sampled.rows, sampled.features_RF, sampled.timings
    seconds_R, read_s, raw_bytes = sampled.seconds_R, sampled.read_s, sampled.raw_bytes
    samples = [sample for result in timings.results for sample in result.samples]
    failed = [result.reason for result in timings.results if result.reason]
    if len(failed) == len(rows):
        raise ConfigError(
            f"source {order.source!r}: all {len(rows)} rows that were sampled failed, the first with {failed[0]}; see "
            "`msd validate`"
        )
    notes = _notes(rows, timings, len(failed))
    fitted, block_model = _fitted(features_RF, seconds_R)
    runs_in = where_best(chain, rows[:LOCK_ROWS]) if time.monotonic() < until + 1.0 else "threads"
    prepare_s = float(seconds_R.mean())
    payload = sum(sample.nbytes for sample in samples)
    return SourceProfile(
        data=prints[0],
        transforms=prints[1],
        num_rows=len(rows),
        num_failed=len(failed),
        rows_per_sample=len(rows) / max(1, len(samples)),
        tokens_per_sample=sum(len(sample.tokens_T) for sample in samples) / max(1, len(samples)),
        prepare_s=prepare_s,
        cpu_s=timings.cpu_share() * (prepare_s - read_s) + read_s,
        read_s=read_s,
        transfer_s=_transfer_s(samples) / len(rows),
        payload_bytes=payload / len(rows),
        raw_bytes=raw_bytes,
        loader_bytes=loader_bytes,
        worker_bytes=process_bytes if runs_in == "processes" else 0,
        runs_in=runs_in,
        estimator=fitted.name,
        row_model=fitted.model.as_dict(),
        block_model=block_model.as_dict(),
        mape=fitted.score.mape,
        sum_error=fitted.score.sum_error,
        calibration=fitted.score.calibration,
        repeat_spread=timings.spread(),
        outliers=_outliers(rows, features_RF, seconds_R, fitted),
        notes=notes,
    )


def _read(config: PipelineConfig, order: SourceOrder, until: float) -> tuple[Rows, float, float]:
    """Return rows from all over an epoch, the seconds of a worker that reading one takes, and its bytes by the index.

    They are read as a loader does: blocks as a whole, as far ahead as its budget goes.
    """
    if isinstance(order, UnboundedOrder):
        return _read_admitted(order, until)
    reader = open_reader(order.source, config.sources[order.source], order.blocks)
    from_rows = RowReader(order, reader, read_bytes=READ_BYTES)
    stretches = min(STRETCHES, order.rows_per_epoch)
    length = max(1, min(ROWS // stretches, order.rows_per_epoch // stretches))
    rows: list[tuple[int, Row]] = []
    took = Timing()
    try:
        with on_one_core():
            for number in range(stretches):
                start = number * order.rows_per_epoch // stretches
                window = order.window_at(start)
                end = window.first_ordinal + window.num_rows
                stop = min(start + length, end)
                taken, timing = timed_work(partial(from_rows.take, start, stop, limit=end), stop - start)
                took += timing
                rows += zip(range(start, stop), taken, strict=True)
                if time.monotonic() > until and len(rows) >= LEAST:
                    break
    finally:
        reader.close()
    read_s = (took.cpu_s + took.blocked_s) / max(1, from_rows.num_rows_read)
    nbytes, count = float(order.blocks.nbytes_B.sum()), max(1, int(order.blocks.num_rows_B.sum()))
    return rows, read_s, nbytes / count


def _read_admitted(order: UnboundedOrder, until: float) -> tuple[Rows, float, float]:
    """Return the first rows of a source without an end, as far as they are there, with what `_read` returns."""
    from_rows = admitted_rows(order, read_bytes=READ_BYTES)
    rows: list[tuple[int, Row]] = []
    took = Timing()
    nbytes = num_rows = 0
    try:
        end = from_rows.there_to(0, ROWS)
        with on_one_core():
            while len(rows) < end and (time.monotonic() < until or len(rows) < LEAST):
                start, admitted = len(rows), order.admitted(len(rows))
                stop = min(end, admitted.end, start + ROWS // STRETCHES)
                taken, timing = timed_work(partial(from_rows.take, start, stop, limit=stop), stop - start)
                took += timing
                rows += zip(range(start, stop), taken, strict=True)
                nbytes += admitted.blocks.nbytes * (stop - start) // max(1, admitted.blocks.num_rows)
                num_rows += stop - start
    finally:
        from_rows.close()
    read_s = (took.cpu_s + took.blocked_s) / max(1, from_rows.num_rows_read)
    return rows, read_s, nbytes / max(1, num_rows)


def _fitted(features_RF: Float64Array, seconds_R: Float64Array) -> tuple[Fitted, LinearModel]:
    used = [column for column in range(len(FEATURES)) if np.ptp(features_RF[:, column]) > 0 or column == 0]
    names = tuple(FEATURES[column] for column in used)
    if len(seconds_R) < 2 * LEAST_ROWS:
        mean = float(seconds_R.mean())
        zeros = (0.0,) * len(names)
        low, high = features_RF[:, used].min(axis=0), features_RF[:, used].max(axis=0)
        model = LinearModel(names, zeros, mean, tuple(low.tolist()), tuple(high.tolist()))
        known: Score = score(model.predict(features_RF[:, used]), seconds_R)
        block = LinearModel((BYTES,), (0.0,), mean, (float(low[0]),), (float(high[0]),))
        return Fitted("constant", model, {"constant": known}), block
    return fit(features_RF[:, used], seconds_R, names), fit_linear(features_RF[:, :1], seconds_R, (BYTES,))


def _transfer_s(samples: Sequence[Sample]) -> float:
    """Return the CPU that joining samples and copying their payload at both ends takes."""
    if not samples:
        return 0.0
    began = time.thread_time()
    slab = SampleSlab.of(samples)
    for payload in (slab.tokens, slab.pixels_PF):
        payload.copy()
        payload.copy()
    return time.thread_time() - began


def _notes(rows: Rows, timings: Timings, num_failed: int) -> list[str]:
    notes = []
    if timings.is_cut_short:
        notes.append(f"time ran out after {len(rows)} rows; give more with --seconds")
    if len(rows) < 2 * LEAST_ROWS:
        notes.append(f"{len(rows)} rows are too few for a model: the mean stands for all")
    if num_failed:
        notes.append(f"{num_failed} of {len(rows)} rows failed")
    return notes


def _outliers(rows: Rows, features_RF: Float64Array, seconds_R: Float64Array, fitted: Fitted) -> list[Outlier]:
    used = [FEATURES.index(name) for name in fitted.model.names]
    predicted_R = fitted.model.predict(features_RF[:, used])
    beyond = np.flatnonzero(seconds_R > OUTLIER * np.maximum(predicted_R, 1e-6))
    worst = beyond[np.argsort(-seconds_R[beyond], kind="stable")][:MOST_OUTLIERS]
    return [Outlier(rows[index][0], float(seconds_R[index]), float(predicted_R[index])) for index in worst.tolist()]

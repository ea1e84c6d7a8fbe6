"""The whole run in one process: deterministic, driven by whoever asks for a batch.

Nothing runs ahead of the clients. A rank that asks for a step has it planned, its rows read and its batch assembled
there and then; steps are the same whichever rank asks first. What a late rank needs and is no longer held is planned
again from a kept position and made again from its address.
"""

import itertools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from msd.build import (
    build_chains,
    build_constructor,
    build_loaders,
    build_orders,
    build_planner,
    identity,
    index_all,
    next_plan,
)
from msd.client import RankClient
from msd.config import PipelineConfig
from msd.constructor.constructor import AssembledBucket
from msd.coordinator import Generations
from msd.core.batch import RankBatch
from msd.core.mesh import Mesh
from msd.core.plan import StepPlan
from msd.core.sample import Failure, Sample, SampleId, SampleSlab
from msd.core.seeds import ORDER_VERSION
from msd.core.state import StateDict, canonical_json, expect_state, fingerprint
from msd.errors import ClosedError, ConfigError, StateError
from msd.loader.quarantine import Quarantine
from msd.planner.planner import Planner
from msd.sources.index import IndexProgress

STATE_VERSION = 1
_PLANS_KEPT = 64
_POSITION_EVERY = 64
_running: "weakref.WeakValueDictionary[str, LocalEngine]" = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


class LocalEngine:
    """A run in this process; see `msd.runtime.base.Engine`."""

    def __init__(
        self, config: PipelineConfig, *, on_index_progress: Callable[[IndexProgress], None] | None = None
    ) -> None:
        """Index the sources and get ready to plan.

        Raises:
            ConfigError: If the configuration cannot be built.
            SourceError: If a source cannot be read.
        """
        check_supported(config)
        self.config = config
        self.address = f"local://{next(_numbers)}"
        self._chains = build_chains(config)
        self.orders = build_orders(config, index_all(config, on_progress=on_index_progress))
        self._loaders = build_loaders(config, self.orders, self._chains)
        self._quarantines = {
            name: Quarantine(source.on_error.quarantine, source=name)
            for name, source in config.sources.items()
            if source.on_error.quarantine is not None
        }
        self._constructor = build_constructor(config)
        self._identity = identity(config, self.orders, self._chains)
        self._lock = threading.RLock()
        self._is_closed = False
        self._begin(build_planner(config, self.orders))
        self._generations = Generations(first_step=self._first_step, digest=fingerprint(self._start))
        _running[self.address] = self

    @property
    def dashboard_link(self) -> str | None:
        """None: a local run has no page."""
        return None

    @property
    def mesh(self) -> Mesh:
        """The trainer mesh."""
        return self.config.place

    def client(self, rank: int = 0) -> RankClient:
        """Return a client for one rank; an older client of the same rank no longer speaks for it."""
        self._check_open()
        return RankClient(self, rank=rank)

    def connect(self, rank: int) -> int:
        """Connect a rank: the transport side of `RankClient`."""
        with self._lock:
            self._check_open()
            return self._generations.connect(rank)

    def disconnect(self, rank: int, session: int) -> None:
        """Release a rank."""
        with self._lock:
            self._generations.disconnect(rank, session)

    def take(self, rank: int, session: int) -> RankBatch | None:
        """Return the next batch of a rank, or None when the run has ended."""
        with self._lock:
            self._check_open()
            step = self._generations.asked(rank, session).next_step
            plan = self._plan(step)
            if plan is None:
                return None
            batch = self._constructor.rank_batch(self._assembled(plan, plan.bucket_of(rank)), plan, rank)
            self._generations.took(rank, step)
            self._release()
            return batch

    def position(self, rank: int, session: int) -> str:
        """Return the run's position after the rank's last batch, as JSON."""
        with self._lock:
            step = self._generations.asked(rank, session).next_step
            return canonical_json(self._state_before(step))

    def load(self, rank: int, session: int, state: StateDict) -> None:
        """Move the run to a saved position; see `RankClient.load_state_dict`."""
        with self._lock:
            self._check_open()
            self._generations.asked(rank, session)
            self._check_state(state)
            planner = build_planner(self.config, self.orders)
            planner.load_state_dict(state["planner"])
            if self._generations.load(rank, step=planner.step, digest=fingerprint(state)):
                self._begin(planner)

    def stats(self) -> dict[str, Any]:
        """Return what the run has done so far."""
        with self._lock:
            self._check_open()
            return {
                "runtime": "local",
                "mesh": self.mesh.as_dict(),
                "generation": self._generations.generation,
                "steps_planned": self._planner.step - self._first_step,
                "next_step": self._planner.step,
                "watermark": self._generations.watermark,
                "fill": self._totals.mean("fill"),
                "imbalance": self._totals.mean("imbalance"),
                "imbalance_floor": self._totals.mean("imbalance_floor"),
                "lockstep": self._totals.mean("lockstep"),
                "lockstep_floor": self._totals.mean("lockstep_floor"),
                "sources": {name: self._source_stats(name) for name in self.config.sources},
            }

    def which(self, step: int) -> list[dict[str, Any]]:
        """Return one entry per document of a step: source, file, row, and where it was placed."""
        with self._lock:
            self._check_open()
            plan = self._plan(step)
            if plan is None:
                raise ConfigError(f"step {step} does not exist: the run ends at step {self._planner.step - 1}")
            return [self._provenance(plan, document) for document in range(plan.num_documents)]

    def plan(self, step: int) -> StepPlan | None:
        """Return the plan of a step of this generation, or None after the end."""
        with self._lock:
            self._check_open()
            return self._plan(step)

    def close(self) -> None:
        """End the run: files are closed, clients are refused. Closing twice is fine."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            _running.pop(self.address, None)
            for loader in self._loaders.values():
                loader.close()
            for quarantine in self._quarantines.values():
                quarantine.close()

    def __enter__(self) -> "LocalEngine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, planner: Planner) -> None:
        """Start planning from where `planner` stands: at the beginning, or from a loaded state."""
        self._planner = planner
        self._first_step = planner.step
        self._start = planner.state_dict()
        self._positions: dict[int, StateDict] = {planner.step: self._start}
        self._plans: OrderedDict[int, StepPlan] = OrderedDict()
        self._rows: OrderedDict[tuple[int, int], AssembledBucket] = OrderedDict()
        self._released = -1
        self._end: int | None = None
        self._totals = _Totals()

    def _plan(self, step: int) -> StepPlan | None:
        if step < self._first_step:
            raise StateError(
                f"step {step} lies before this generation, which starts at step {self._first_step}; "
                "load an earlier state to go there"
            )
        while self._planner.step <= step and self._end is None:
            plan = self._advance(self._planner)
            if plan is None:
                self._end = self._planner.step
            else:
                self._totals.add(plan)
        if self._end is not None and step >= self._end:
            return None
        if step not in self._plans:
            self._replan(step)
        self._plans.move_to_end(step)
        return self._plans[step]

    def _advance(self, planner: Planner) -> StepPlan | None:
        plan = next_plan(planner, self._loaders, on_failures=self._note_failures)
        if plan is not None:
            self._keep(plan)
        return plan

    def _replan(self, step: int) -> None:
        """Plan a step again that is no longer held: from the nearest kept position before it."""
        planner = build_planner(self.config, self.orders)
        planner.load_state_dict(self._positions[max(kept for kept in self._positions if kept <= step)])
        while planner.step <= step:
            if self._advance(planner) is None:
                raise StateError(f"step {step} was planned before and cannot be planned again")

    def _keep(self, plan: StepPlan) -> None:
        self._plans[plan.step] = plan
        while len(self._plans) > _PLANS_KEPT:
            self._plans.popitem(last=False)
        if (plan.step + 1) % _POSITION_EVERY == 0:
            self._positions[plan.step + 1] = plan.progress

    def _assembled(self, plan: StepPlan, bucket: int) -> AssembledBucket:
        key = (plan.step, bucket)
        if key not in self._rows:
            self._rows[key] = self._constructor.build(plan, bucket, self._fetch(plan.sample_ids(bucket)))
            # Ranks that share a bucket mostly ask one after another, so two steps' worth is enough to share.
            while len(self._rows) > 2 * plan.num_buckets:
                self._rows.popitem(last=False)
        return self._rows[key]

    def _fetch(self, ids: Iterable[SampleId]) -> Callable[[SampleId], Sample]:
        wanted: dict[str, list[SampleId]] = {}
        for sample_id in dict.fromkeys(ids):
            wanted.setdefault(sample_id.source, []).append(sample_id)
        slabs: dict[str, SampleSlab] = {name: self._loaders[name].fetch(chosen) for name, chosen in wanted.items()}
        return lambda sample_id: slabs[sample_id.source].sample(sample_id)

    def _release(self) -> None:
        """Drop payload that no connected rank will ask for again."""
        watermark = self._generations.watermark
        if watermark <= self._released or watermark not in self._plans:
            return
        self._released = watermark
        for source, ordinal in Planner.first_needed(self._plans[watermark].progress).items():
            self._loaders[source].release(ordinal)
        for key in [key for key in self._rows if key[0] <= watermark]:
            del self._rows[key]

    def _note_failures(self, source: str, failures: Iterable[Failure]) -> None:
        if source in self._quarantines:
            self._quarantines[source].write(failures)

    def _state_before(self, step: int) -> StateDict:
        return self._state(self._progress_before(step))

    def _progress_before(self, step: int) -> StateDict:
        if step in self._positions:
            return self._positions[step]
        plan = self._plan(step - 1)
        assert plan is not None
        return plan.progress

    def _state(self, progress: StateDict) -> StateDict:
        return {
            "kind": "msd",
            "version": STATE_VERSION,
            "order_version": ORDER_VERSION,
            "identity": self._identity,
            "planner": progress,
        }

    def _check_state(self, state: StateDict) -> None:
        expect_state(state, kind="msd", version=STATE_VERSION, order_version=ORDER_VERSION)
        held = state.get("identity")
        if not isinstance(held, dict) or not isinstance(state.get("planner"), dict):
            raise StateError("cannot resume: the state is incomplete; pass what state_dict() returned, unchanged")
        differing = [part for part in {**held, **self._identity} if held.get(part) != self._identity.get(part)]
        if differing:
            raise StateError(
                f"cannot resume: {', '.join(sorted(differing))} differ from the run that saved the state; "
                "use the configuration and data it was saved with"
            )

    def _source_stats(self, name: str) -> dict[str, Any]:
        counts = self._loaders[name].counts()
        return {
            **self._totals.of_source(name),
            "rows_per_epoch": self.orders[name].rows_per_epoch,
            **counts,
        }

    def _provenance(self, plan: StepPlan, document: int) -> dict[str, Any]:
        sample_id = plan.sample_id(document)
        order = self.orders[sample_id.source]
        window = order.window_at(sample_id.ordinal)
        block_N, row_N = order.window_rows(window)
        place = sample_id.ordinal - window.first_ordinal
        block = int(block_N[place])
        bucket = int(plan.bucket_D[document])
        return {
            "source": sample_id.source,
            "ordinal": sample_id.ordinal,
            "part": sample_id.part,
            "start": int(plan.start_D[document]),
            "length": int(plan.length_D[document]),
            "epoch": window.epoch,
            "shard": order.blocks.shards[order.blocks.shard_B[block]].name,
            "row": int(order.blocks.first_row_B[block] + row_N[place]),
            "bucket": bucket,
            "ranks": list(plan.consumers_B[bucket]),
            "microbatch": int(plan.slot_D[document]),
            "offset": int(plan.offset_D[document]),
        }

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the engine {self.address} is closed; start another with msd.start(config)")


class _Totals:
    """Sums over the plans of a generation."""

    def __init__(self) -> None:
        self._steps = 0
        self._sums: dict[str, float] = {}
        self._tokens: dict[str, int] = {}
        self._samples: dict[str, int] = {}

    def add(self, plan: StepPlan) -> None:
        report = plan.report
        self._steps += 1
        for name in ("fill", "imbalance", "imbalance_floor", "lockstep", "lockstep_floor"):
            self._sums[name] = self._sums.get(name, 0.0) + getattr(report, name)
        for name, tokens in report.tokens_by_source.items():
            self._tokens[name] = self._tokens.get(name, 0) + tokens
        for name, samples in report.samples_by_source.items():
            self._samples[name] = self._samples.get(name, 0) + samples

    def mean(self, name: str) -> float | None:
        return self._sums[name] / self._steps if self._steps else None

    def of_source(self, name: str) -> dict[str, Any]:
        tokens, samples = self._tokens.get(name, 0), self._samples.get(name, 0)
        return {
            "tokens": tokens,
            "samples": samples,
            "token_share": tokens / max(1, sum(self._tokens.values())),
            "sample_share": samples / max(1, sum(self._samples.values())),
        }


def running_engine(address: str) -> LocalEngine:
    """Return the engine of this process at `address`.

    Raises:
        ConfigError: If none runs there.
    """
    engine = _running.get(address)
    if engine is None:
        raise ConfigError(
            f"no engine runs at {address!r} in this process; a local engine is reached only from the process that "
            "started it: pass engine.address of a running one"
        )
    return engine


def check_supported(config: PipelineConfig) -> None:
    """Raise `ConfigError` for what a configuration may ask for and this release does not have."""
    if config.runtime.kind != "local":
        raise ConfigError(
            f"runtime.kind {config.runtime.kind} is not part of this release; set runtime.kind: local, or pass "
            'runtime="local" to msd.start'
        )
    if config.checkpoint is not None:
        raise ConfigError(
            "checkpoint is not written by this release; set checkpoint: null and keep client.state_dict() with your "
            "model's checkpoint"
        )

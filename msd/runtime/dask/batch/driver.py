"""The command of batch mode: plans as the stream does, has tasks transform and write, goes on where it was cut off."""

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import dask
from distributed import Client, Future

from msd.build import build_orders, build_planner, index_all
from msd.checkpoint.folder import Folder, open_folder
from msd.config import PipelineConfig
from msd.config.security import SecurityConfig
from msd.core.order import SourceOrder
from msd.core.plan import StepPlan
from msd.core.sample import MetaTable, Outcome
from msd.core.state import StateDict, fingerprint
from msd.core.written import MANIFEST, RUN
from msd.errors import BadSampleRateError, ConfigError, EngineError
from msd.planner.planner import Planner, Starved
from msd.runtime.dask.batch.contents import Asked, begun, content_of, totals, verify
from msd.runtime.dask.batch.tasks import WORK, Job, examine, part_name, read_note, write_steps
from msd.runtime.dask.cluster import CLOSE_S, EmbeddedCluster
from msd.runtime.dask.securing import check_security, dask_security
from msd.runtime.dask.settings import as_set
from msd.runtime.dask.travel import check_travels
from msd.runtime.dask.wire import pack, plan_to_wire, tables_from_wire, unpack
from msd.runtime.parts import SUFFIXES

CHUNK_ROWS = 512
"""Rows that a task transforms, and a window at most: enough to share what a task costs, few enough to hold."""
PART_SEQUENCES = 512
"""Sequences of a file, about."""
AHEAD = 2
"""Chunks of each source, for each worker, that are transformed ahead of planning."""
LEAST_JUDGED = 100
"""Rows from which on the rate of those that fail is judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far it is."""

    done: int
    total: int | None
    """Steps, or rows; None while that is not known."""
    written_bytes: int


@dataclass(slots=True)
class _Chunk:
    first: int
    end: int
    name: str
    future: Future


@dataclass(slots=True)
class _Lane:
    """The rows of one source on their way to the planner."""

    order: SourceOrder
    total: int | None
    next: int
    waiting: list[_Chunk] = field(default_factory=list)
    """Submitted, and not observed."""
    kept: list[_Chunk] = field(default_factory=list)
    """Observed, of which some row may still be held."""


def run_batch(config: PipelineConfig, asked: Asked, on_progress: Callable[[Progress], None]) -> dict[str, Any]:
    """Write what a configuration gives into a folder, and return its manifest.

    The same command again goes on where it was cut off, and verifies what is complete.

    Raises:
        ConfigError: If the folder holds something else, or the configuration cannot be written.
        EngineError: If a file is damaged, or a task failed.
    """
    check_travels(config)
    endless = [name for name, source in config.sources.items() if source.is_unbounded]
    if endless:
        raise ConfigError(
            f"source {endless[0]!r} has no end, and what is written has one; name its files as a source of format auto"
        )
    folder = open_folder(asked.out, asked.storage_options)
    orders = build_orders(config, index_all(config))
    said = content_of(config, asked, orders)
    manifest = begun(folder, said)
    if manifest is not None:
        verify(folder, manifest)
        return manifest
    with _connected(asked, config.security) as client:
        job = Job(secrets.token_hex(6), config, orders, asked.out, asked.storage_options, asked.kind)
        # By value, once a worker: what functions of a notebook need travels with them.
        (shared,) = client.scatter([job], broadcast=True, hash=False)
        work = _Packed if asked.format == "packed" else _Samples
        parts = work(client, shared, config, asked, orders, folder, on_progress).run()
    manifest = {**said, "parts": parts, "totals": totals(parts)}
    folder.write(MANIFEST, (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode())
    for name in folder.names():
        if name.startswith(WORK) or name == RUN:
            folder.remove(name)
    return manifest


@contextlib.contextmanager
def _connected(asked: Asked, security: SecurityConfig | None) -> Iterator[Client]:
    """Yield a client of a scheduler that is there, or of a cluster of the command's own."""
    with contextlib.ExitStack() as ending:
        address = asked.scheduler
        if security is not None:
            security.check_scheduler(address)
            check_security(security)
        if address is None:
            names = [f"msd-batch-{number}" for number in range(asked.workers)]
            own = ending.enter_context(EmbeddedCluster(names, security=security))
            own.wait()
            address = own.address
        with dask.config.set(as_set()):
            client = Client(address, set_as_default=False, name="msd-batch", security=dask_security(security))
        ending.callback(client.close, timeout=CLOSE_S)
        yield client


class _Work:
    """What both formats do."""

    def __init__(
        self,
        client: Client,
        job: Future,
        config: PipelineConfig,
        asked: Asked,
        orders: dict[str, SourceOrder],
        folder: Folder,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._client, self._job, self._config, self._asked = client, job, config, asked
        self._orders, self._folder, self._on_progress = orders, folder, on_progress
        self._written = 0

    def _examine(self, source: str, first: int, end: int, name: str) -> Future:
        return self._client.submit(
            examine, self._job, source, first, end - first, name, key=f"msd-examine-{name}", pure=False, retries=2
        )


class _Packed(_Work):
    """Sequences of steps, as ranks of the stream would receive them."""

    def run(self) -> list[dict[str, Any]]:
        """Return what is said of each file, in order."""
        parts, progress = self._finished()
        planner = build_planner(self._config, self._orders)
        if progress is not None:
            planner.load_state_dict(progress)
        self._lanes = {
            name: _Lane(order, order.total_ordinals(self._config.max_epochs(name)), planner.needs(name))
            for name, order in self._orders.items()
        }
        per_part = max(1, PART_SEQUENCES // self._config.batch.global_batch_size)
        self._writing: list[Future] = []
        self._parts = parts
        self._written = sum(part["bytes"] for part in parts)
        if not (parts and parts[-1]["is_last"]):
            self._plan_all(planner, per_part)
        while self._writing:
            self._take_first()
        return [
            {key: part[key] for key in ("name", "first_step", "steps", "rows", "tokens", "bytes", "sha256")}
            for part in self._parts
        ]

    def _finished(self) -> tuple[list[dict[str, Any]], StateDict | None]:
        """Return the files that are complete from the first one on, and where planning goes on behind them."""
        parts: list[dict[str, Any]] = []
        names = self._folder.names()
        while (note := read_note(self._folder, len(parts))) is not None:
            if part_name(len(parts), self._asked.kind) not in names:
                break
            parts.append(note)
        for name in names:
            # What lies behind a gap is made again.
            if name.startswith("part-") and name >= part_name(len(parts), self._asked.kind):
                self._folder.remove(name)
        return parts, parts[-1]["progress"] if parts else None

    def _plan_all(self, planner: Planner, per_part: int) -> None:
        steps = self._asked.steps
        held: list[StepPlan] = []
        while steps is None or planner.step < steps:
            self._look_ahead()
            outcome = planner.plan()
            if isinstance(outcome, Starved):
                self._observe(planner, outcome.source)
                continue
            if outcome is None:
                break
            held.append(outcome)
            if len(held) == per_part:
                self._submit(held)
                held = []
            if outcome.is_last:
                break
        if held:
            self._submit(held)

    def _look_ahead(self) -> None:
        """Have the next rows of every source transformed that is drawn from."""
        most = max(1, AHEAD * self._asked.workers // max(1, len(self._lanes)))
        for name, lane in self._lanes.items():
            if self._config.weights.get(name, 1.0) > 0:
                while len(lane.waiting) < most and self._submit_chunk(name, lane):
                    pass

    def _submit_chunk(self, source: str, lane: _Lane) -> bool:
        """Have the next chunk of a source transformed; return whether there is one."""
        if not lane.order.rows_per_epoch or (lane.total is not None and lane.next >= lane.total):
            return False
        first, end = _chunk(lane.order, lane.next, lane.total)
        name = f"{WORK}{source_name(source)}-{first:012d}-{end:012d}{SUFFIXES['arrow']}"
        lane.waiting.append(_Chunk(first, end, name, self._examine(source, first, end, name)))
        lane.next = end
        return True

    def _observe(self, planner: Planner, source: str) -> None:
        lane = self._lanes[source]
        if not lane.waiting and not self._submit_chunk(source, lane):
            raise EngineError(f"source {source!r} has ended and is planned with further; report this")
        chunk = lane.waiting.pop(0)
        (table,) = _tables(chunk.future.result())
        planner.observe(table)
        lane.kept.append(chunk)

    def _submit(self, plans: list[StepPlan]) -> None:
        """Have a file written; no more wait at a time than keep the workers busy."""
        number = len(self._parts) + len(self._writing)
        wanted: dict[str, set[int]] = {}
        for plan in plans:
            for index, ordinal in zip(plan.source_D.tolist(), plan.ordinal_D.tolist(), strict=True):
                wanted.setdefault(plan.source_names[index], set()).add(ordinal)
        chunks = {source: self._holding(source, ordinals) for source, ordinals in wanted.items()}
        wire = pack([plan_to_wire(plan) for plan in plans])
        self._writing.append(
            self._client.submit(
                write_steps, self._job, number, wire, chunks, key=f"msd-write-{number:06d}-{secrets.token_hex(4)}",
                pure=False, retries=2, priority=10,
            )
        )  # fmt: skip
        while len(self._writing) > 2 * self._asked.workers:
            self._take_first()

    def _holding(self, source: str, ordinals: set[int]) -> list[tuple[int, int, str]]:
        """Return the files that hold rows; those that an earlier run of the command observed are made again."""
        lane = self._lanes[source]
        missing = sorted(one for one in ordinals if not any(chunk.first <= one < chunk.end for chunk in lane.kept))
        while missing:
            # Samples that waited when the command was cut off: their rows lie before those that are planned with now.
            first, end = _chunk(lane.order, missing[0], lane.total)
            first = missing[0]
            name = f"{WORK}{source_name(source)}-{first:012d}-{end:012d}{SUFFIXES['arrow']}"
            chunk = _Chunk(first, end, name, self._examine(source, first, end, name))
            chunk.future.result()
            lane.kept.insert(0, chunk)
            missing = [one for one in missing if one >= end]
        return [
            (chunk.first, chunk.end, chunk.name)
            for chunk in lane.kept
            if any(chunk.first <= one < chunk.end for one in ordinals)
        ]

    def _take_first(self) -> None:
        """Wait for the file that was begun first, and remove what nobody needs any more."""
        said = self._writing.pop(0).result()
        self._parts.append(said)
        self._written += said["bytes"]
        for source, before in Planner.first_needed(said["progress"]).items():
            lane = self._lanes[source]
            for chunk in [chunk for chunk in lane.kept if chunk.end <= before]:
                lane.kept.remove(chunk)
                self._folder.remove(chunk.name)
        done = said["first_step"] + said["steps"]
        self._on_progress(Progress(done=done, total=self._asked.steps, written_bytes=self._written))


class _Samples(_Work):
    """Samples of all sources, as transforms give them, in the order of their rows."""

    def run(self) -> list[dict[str, Any]]:
        """Return what is said of each file, by source."""
        chunks = [
            (source, first, end, f"{source_name(source)}-{number:06d}{SUFFIXES[self._asked.kind]}")
            for source in sorted(self._orders)
            if self._config.weights.get(source, 1.0) > 0
            for number, (first, end) in enumerate(self._chunks(source))
        ]
        total = sum(end - first for _, first, end, _ in chunks)
        parts: list[dict[str, Any]] = []
        failed: dict[str, list[int]] = {}
        waiting: list[tuple[tuple[str, int, int, str], Future]] = []
        done = 0

        def take() -> None:
            nonlocal done
            (source, first, end, name), future = waiting.pop(0)
            found = future.result()
            said = unpack(found)
            self._judge(source, _tables(found), failed.setdefault(source, [0, 0]))
            done += end - first
            self._written += said["bytes"]
            figures = {key: said[key] for key in ("rows", "tokens", "bytes", "sha256")}
            parts.append({"name": name, "source": source, "first_ordinal": first, "end_ordinal": end, **figures})
            self._on_progress(Progress(done=done, total=total, written_bytes=self._written))

        for chunk in chunks:
            waiting.append((chunk, self._examine(*chunk)))
            if len(waiting) > 4 * self._asked.workers:
                take()
        while waiting:
            take()
        return parts

    def _chunks(self, source: str) -> Iterator[tuple[int, int]]:
        order = self._orders[source]
        total = int(order.rows_per_epoch * self._asked.epochs)
        first = 0
        while first < total:
            first, end = _chunk(order, first, total)
            yield first, end
            first = end

    def _judge(self, source: str, tables: list[MetaTable], counts: list[int]) -> None:
        """Raise `BadSampleRateError` if too many rows of a source fail."""
        for table in tables:
            counts[0] += table.num_rows
            counts[1] += int((table.outcome_R == Outcome.FAILED).sum())
        most = self._config.sources[source].on_error.max_rate
        if counts[0] >= LEAST_JUDGED and counts[1] > most * counts[0]:
            why = next((one.reason for table in tables for one in table.failures), "see `msd validate`")
            raise BadSampleRateError(
                f"{counts[1]} of {counts[0]} rows of source {source!r} failed, more than on_error.max_rate {most:g}: "
                f"{why}"
            )


def source_name(source: str) -> str:
    """Return the name of a source as part of the name of a file."""
    plain = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in source)
    return plain if plain == source else f"{plain}_{fingerprint(source)[:6]}"


def _chunk(order: SourceOrder, first: int, total: int | None) -> tuple[int, int]:
    """Return the rows that one task transforms: of one window, cut at the same places whoever asks."""
    window = order.window_at(first)
    inside = first - window.first_ordinal
    end = window.first_ordinal + min(window.num_rows, (inside // CHUNK_ROWS + 1) * CHUNK_ROWS)
    return first, end if total is None else min(end, total)


def _tables(wire: Any) -> list[MetaTable]:
    return tables_from_wire(unpack(wire))

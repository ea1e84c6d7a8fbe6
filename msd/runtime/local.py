"""The whole run in one process: deterministic, driven by whoever asks for a batch.

The coordinator's commands are carried out there and then, and nothing runs ahead of the clients: a rank that asks
for a step has its rows examined, the step planned and its batch assembled. Steps are the same whichever rank asks
first. What a late rank needs and is no longer held is planned again and made again from its address.
"""

import itertools
import math
import threading
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from msd.build import (
    build_chains,
    build_constructor,
    build_coordinator,
    build_loaders,
    build_orders,
    index_all,
)
from msd.client import RankClient
from msd.config import PipelineConfig
from msd.config.identity import identity
from msd.coordinator import deal
from msd.coordinator.commands import Abandon, Avoid, Command, Examine, Fail, Journal, Planned, Release
from msd.coordinator.events import Journalled, NotJournalled, RowsExamined
from msd.core.batch import RankBatch
from msd.core.journal import Edit, edits_to_state
from msd.core.mesh import Mesh
from msd.core.plan import StepPlan
from msd.core.state import StateDict, canonical_json
from msd.errors import ClosedError, ConfigError, EngineError
from msd.loader.admitted import RowsNotHere
from msd.loader.ledgers import close_orders
from msd.loader.poison.suspects import Suspects
from msd.runtime.assembly import Assembly
from msd.runtime.base import check_supported, shown, step_number, too_late
from msd.runtime.edits import TakesEdits
from msd.runtime.failures import FailureNotes
from msd.runtime.keeping import RunKeeper, needed
from msd.runtime.lacking import Lacking, Patience
from msd.runtime.origins import with_origins
from msd.runtime.record import RunRecord, of_rank, provenance, size_of
from msd.runtime.state import progress_of, run_state
from msd.sources.index import IndexProgress

_HOST = "local"
_running: "weakref.WeakValueDictionary[str, LocalEngine]" = weakref.WeakValueDictionary()
_numbers = itertools.count(1)


class LocalEngine(TakesEdits):
    """A run in this process; see `msd.runtime.base.Engine`."""

    def __init__(
        self, config: PipelineConfig, *, on_index_progress: Callable[[IndexProgress], None] | None = None
    ) -> None:
        """Index the sources and get ready to plan.

        Raises:
            ConfigError: If the configuration cannot be built.
            SourceError: If a source cannot be read.
            StateError: If it cannot go on from its checkpoint.
            LeaseError: If another run holds that.
        """
        check_supported(config)
        self.config = config
        self.address = f"local://{next(_numbers)}"
        chains = build_chains(config)
        self.orders = build_orders(config, index_all(config, on_progress=on_index_progress), consumes=True)
        constructor = build_constructor(config)
        self._identity = identity(config, self.orders, chains)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        """Told when whoever waits for rows had better look up."""
        self._is_closed = False
        self._journal_error: EngineError | None = None
        self._record = RunRecord()
        self._unread: list[Examine] = []
        """Left until somebody asks for a step: a run that is moved before has nothing to read where it was."""
        self._lacking = Lacking()
        self._suspects = Suspects()
        # What holds files comes last, so that a start that fails leaves nothing open and writes nothing.
        with ExitStack() as undo:
            self._keeper = self._kept(undo)
            point = None if self._keeper is None else self._keeper.point
            self._coordinator = build_coordinator(
                config,
                self.orders,
                placement=deal(dict.fromkeys(config.sources, 1), [_HOST]),
                constructors={},
                depth=1,
                standing=None if point is None else point.standing(),
            )
            self._loaders = build_loaders(config, self.orders, chains, suspects=self._suspects)
            undo.callback(self._close_loaders)
            self._assembly = Assembly(constructor, self._loaders)
            self._failures = FailureNotes(config.sources)
            undo.callback(self._failures.close)
            self._perform(self._coordinator.begin())
            self._note_generation()
            undo.pop_all()
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
            self.mesh.check_rank(rank)
            # Nothing is done until a rank asks: an error in the data belongs to who needs it.
            return self._coordinator.generations.connect(rank)

    def say_losses(self, rank: int, session: int, losses: dict[str, float]) -> None:
        """Say what training sees of the sources; see `RankClient.report`."""
        self.report(losses, who=f"rank {rank}")

    def disconnect(self, rank: int, session: int) -> None:
        """Release a rank."""
        with self._lock:
            self._note_last()
            self._coordinator.generations.disconnect(rank, session)

    def take(self, rank: int, session: int) -> RankBatch | None:
        """Return the next batch of a rank, or None when the run has ended."""
        with self._lock:
            plan = self._awaited(lambda: self._coordinator.generations.asked(rank, session).next_step)
            if plan is None:
                return None
            batch = self._assembly.batch(plan, rank)
            self._coordinator.generations.asks(rank, session, plan.step + 1)
            return batch

    def position(self, rank: int, session: int) -> str:
        """Return the run's position after the rank's last batch, as JSON."""
        with self._lock:
            step = self._coordinator.generations.asked(rank, session).next_step
            return canonical_json(run_state(self._position_before(step), self._identity))

    def stands(self, rank: int, session: int) -> tuple[int, int]:
        """Return the run's generation and the step that the rank gets next."""
        with self._lock:
            position = self._coordinator.generations.asked(rank, session)
            return position.generation, position.next_step

    def load(self, rank: int, session: int, state: StateDict, *, force: bool = False) -> None:
        """Move the run to a saved position; see `RankClient.load_state_dict`."""
        with self._lock:
            self._check_open()
            progress = progress_of(state, self._identity, force=force)
            self._moved(lambda: self._coordinator.load(rank, session, progress))

    def save(self) -> str:
        """Save where the slowest rank stands to the checkpoint at once, and return the snapshot's name.

        Raises:
            ConfigError: If the run keeps no checkpoint.
            EngineError: If it cannot be written.
        """
        with self._lock:
            self._check_open()
            keeper = needed(self._keeper, "save")
            return keeper.save(self._position_before(self._coordinator.generations.watermark + 1))

    def restore(self, state: StateDict | str, *, force: bool = False) -> None:
        """Move the run and all its ranks to a saved position: a new generation, which no rank has to load.

        Args:
            state: What `state_dict()` returned, or the name of a snapshot.
            force: As in `RankClient.load_state_dict`.

        Raises:
            ConfigError: If a name is given and the run keeps no checkpoint.
            StateError: If there is no such snapshot, or the run cannot go on from it.
        """
        with self._lock:
            self._check_open()
            found = needed(self._keeper, "restore").state(state) if isinstance(state, str) else state
            progress = progress_of(found, self._identity, force=force)
            self._moved(lambda: self._coordinator.restore(progress))

    def rewind(self, step: int | None = None, *, mesh: Mesh | Mapping[str, int] | None = None) -> int:
        """Refuse: what can be kept by it is held by loader hosts, and there are none."""
        raise ConfigError(
            "rewind: this is the local engine, and rewind is for runs on Dask; start a run on the other mesh and load "
            "the state there, or move this one to a state by restore()"
        )

    def stats(self) -> dict[str, Any]:
        """Return what the run has done so far."""
        with self._lock:
            self._check_open()
            generations = self._coordinator.generations
            killed = self._coordinator.num_killed()
            shares, suspended = self._coordinator.shares, self._coordinator.suspended
            losses = self._coordinator.losses
            return {
                "runtime": "local",
                "mesh": self.mesh.as_dict(),
                "generation": generations.generation,
                "steps_planned": self._record.num_steps,
                "next_step": self._coordinator.next_step,
                "watermark": generations.watermark,
                "edits": edits_to_state(self._coordinator.edits),
                "checkpoint": None if self._keeper is None else self._keeper.stats(generations.watermark + 1),
                **self._record.as_dict(self._coordinator.closing_notes),
                "sources": {
                    name: {
                        **self._record.of_source(name),
                        **size_of(self.orders[name]),
                        "killed": killed.get(name, 0),
                        "target_share": shares[name],
                        "is_suspended": name in suspended,
                        "loss": losses.get(name),
                        **self._loaders[name].counts(),
                    }
                    for name in self.config.sources
                },
            }

    def which(self, step: int, rank: int | None = None) -> list[dict[str, Any]]:
        """Return one entry per document of a step: source, file, row, and where it is placed; see `Engine.which`."""
        step = step_number(step)
        with self._lock:
            self._check_open()
            if rank is not None:
                self.mesh.check_rank(rank)
            told = of_rank(provenance(self._asked(step), self.orders), rank)
        return with_origins(self.config, self.orders, told)

    def plan(self, step: int) -> StepPlan | None:
        """Return the plan of a step of this generation, or None after the end."""
        with self._lock:
            wanted = step_number(step)
            return self._awaited(lambda: wanted)

    def close(self) -> None:
        """End the run: files are closed, clients are refused. Closing twice is fine."""
        self._end(is_orderly=True)

    def __repr__(self) -> str:
        return shown(self, "local", is_closed=self._is_closed)

    def __enter__(self) -> "LocalEngine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(is_orderly=error is None)

    def _end(self, *, is_orderly: bool) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._note_last()
            self._is_closed = True
            self._changed.notify_all()
            _running.pop(self.address, None)
            if self._keeper is not None:
                self._keeper.close(self._coordinator.progress_before if is_orderly else None)
            self._close_loaders()
            self._failures.close()

    def _kept(self, undo: ExitStack) -> RunKeeper | None:
        """Return what keeps the run, if its configuration says so."""
        if self.config.checkpoint is None:
            return None
        keeper = RunKeeper(self.config.checkpoint, run=uuid.uuid4().hex[:12], identity=self._identity)
        undo.callback(keeper.close, None)
        return keeper

    def _close_loaders(self) -> None:
        for loader in self._loaders.values():
            loader.close()
        close_orders(self.orders)

    def _edits(self) -> list[dict[str, Any]]:
        with self._lock:
            self._check_open()
            return edits_to_state(self._coordinator.edits)

    def _edit(self, edit: Edit, *, move_late: bool) -> int:
        with self._lock:
            self._check_open()
            asked, commands = self._coordinator.edit(edit, move_late=move_late)
            self._journal_error = None
            self._perform(commands)
            if self._journal_error is not None:
                raise self._journal_error
            return asked.at_step

    def _moved(self, move: Callable[[], list[Command]]) -> None:
        """Perform what may open a generation."""
        before = self._coordinator.generations.generation
        commands = move()
        if self._coordinator.generations.generation != before:
            self._record = RunRecord()
            self._assembly.clear()
            self._note_generation()
        self._perform(commands)

    def _note_generation(self) -> None:
        if self._keeper is not None:
            first_step = self._coordinator.first_step
            self._keeper.begin(self._coordinator.generations.generation, self._position_before(first_step))

    def _note_taken(self) -> None:
        """Note that a rank asks for more, and so has used what it was handed before."""
        if self._keeper is not None:
            self._keeper.note(self._coordinator.generations.slowest, self._coordinator.progress_before)

    def _note_last(self) -> None:
        if self._keeper is not None:
            self._keeper.note_last(self._coordinator.generations.slowest)

    def _position_before(self, step: int) -> StateDict:
        progress = self._coordinator.progress_before(step)
        if progress is None:
            plan = self._plan(step - 1)
            assert plan is not None, "a step that was handed out can be planned again"
            progress = self._coordinator.progress_before(step)
        assert progress is not None, "the position after a plan that is held is known"
        return progress

    def _awaited(self, wanted: Callable[[], int]) -> StepPlan | None:
        """Return the plan of a step, waiting for rows that are still to be written; others may use the run meanwhile.

        Args:
            wanted: Returns the step: the run may be moved while it is waited for.

        Raises:
            DeadlineError: If they do not come within `runtime.deadline_s`.
        """
        patience = Patience(self.config.runtime.deadline_s)
        while True:
            self._check_open()
            step = wanted()
            self._note_taken()
            plan = self._plan(step)
            if plan is not None or not self._lacking or self._coordinator.end is not None:
                return plan
            self._changed.wait(patience.pause_s(step, self._lacking.first(self._coordinator.starving)))

    def _plan(self, step: int) -> StepPlan | None:
        self._perform(self._coordinator.recall(step), reads=True)
        return self._coordinator.plan(step)

    def _asked(self, step: int) -> StepPlan:
        """Return the plan of a step that somebody asks about."""
        deadline_s = self.config.runtime.deadline_s
        plan = self._coordinator.plan(step)
        if plan is not None:
            return plan
        try:
            self._perform(self._coordinator.ask(step), reads=True, ask_until=time.monotonic() + deadline_s)
            plan = self._coordinator.answer(step)
        finally:
            self._perform(self._coordinator.ask(None))
        if plan is None and self._lacking:
            raise EngineError(f"step {step} cannot be planned yet: {self._lacking.first(None)}")
        if plan is None:
            raise too_late(step, deadline_s)
        return plan

    def _perform(self, commands: Iterable[Command], *, reads: bool = False, ask_until: float = math.inf) -> None:
        """Carry commands out, and what follows from them, until there is nothing left to do.

        Args:
            commands: Of the coordinator.
            reads: Have rows examined, also those that were left before.
            ask_until: When, of the monotonic clock, to give up what was asked.
        """
        waiting = deque(commands)
        if reads:
            waiting.extendleft(reversed(self._unread))
            self._unread.clear()
            self._lacking.clear()
        while waiting:
            if time.monotonic() > ask_until:
                ask_until = math.inf
                waiting.extend(self._coordinator.ask(None))
            match waiting.popleft():
                case Examine() as command if not reads:
                    self._unread.append(command)
                case Examine(source=source, start=start, num_rows=num_rows) as command:
                    try:
                        table = self._loaders[source].examine(start, num_rows)
                    except RowsNotHere as lack:
                        self._unread.append(command)
                        self._lacking.note(lack)
                        continue
                    self._failures.note(source, table.failures)
                    waiting.extend(self._coordinator.handle(RowsExamined(_HOST, (table,))))
                case Abandon():
                    self._unread.clear()
                    self._lacking.clear()
                case Release(source=source, before=before):
                    self._loaders[source].release(before)
                case Journal(number=number, edit=edit):
                    waiting.extend(self._coordinator.handle(self._journalled(number, edit)))
                case Avoid(source=source, first=first, last=last, reason=reason):
                    self._suspects.avoid(source, first, last, reason)
                case Planned(plan=plan):
                    self._record.add(plan)
                case Fail(error=error):
                    raise error

    def _journalled(self, number: int, edit: Edit) -> Journalled | NotJournalled:
        if self._keeper is not None:
            try:
                self._keeper.journal(edit)
            except EngineError as error:
                self._journal_error = error
                return NotJournalled(number, error)
        return Journalled(number)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError(f"the engine {self.address} is closed; start another with msd.start(config)")
        if self._keeper is not None:
            self._keeper.check()


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

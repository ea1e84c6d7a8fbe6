"""Which step is under way where: events in, commands out. No I/O, no clock, no thread.

The planner says what goes where; this says when. A step is planned while no connected rank is more than `depth` steps
behind it, assigned to the constructors whose connected ranks come to it next, and dropped when all of those have
taken it. A rank that comes late has the steps it missed planned again from a kept position.
"""

from collections.abc import Callable, Iterable, Mapping

from msd.coordinator.commands import Command, Examine, Fail, Planned, Release
from msd.coordinator.events import BytesHeld, Event, HostLost, HostSilent, RowsExamined, RunFailed, StepAsked
from msd.coordinator.generations import Generations, Position
from msd.coordinator.handout import Handout
from msd.coordinator.history import History
from msd.coordinator.lane import Lane
from msd.coordinator.lookahead import RowRequest
from msd.coordinator.placement import Placement
from msd.core.order import SourceOrder
from msd.core.plan import StepPlan
from msd.core.sample import MetaTable
from msd.core.state import StateDict, fingerprint
from msd.errors import EngineError, StateError
from msd.planner.planner import Planner, Starved


class Coordinator:
    """Drives one run. The shells feed it events and perform its commands."""

    def __init__(
        self,
        *,
        new_planner: Callable[[StateDict | None], Planner],
        orders: Mapping[str, SourceOrder],
        totals: Mapping[str, int | None],
        placement: Placement,
        constructors: Mapping[str, tuple[int, ...]],
        depth: int = 3,
        share_bytes: int = 16 << 20,
        held_bytes: int = 256 << 20,
    ) -> None:
        """Stand before the first step.

        Args:
            new_planner: Returns a planner at a saved progress, or before the first step.
            orders: The sequence of each source.
            totals: Ordinals in all of each source, None without end.
            placement: Which host owns which windows.
            constructors: The ranks that each constructor serves; none where the shell assembles what it recalls.
            depth: Steps planned from the one on that the slowest connected rank asks for. Without constructors
                nothing is planned ahead: only what is recalled.
            share_bytes: Payload that one source may have waiting.
            held_bytes: Payload above which a constructor is given no step that is not asked for yet.
        """
        self._new_planner = new_planner
        self._orders = orders
        self._totals = totals
        self._depth = depth
        self._share_bytes = share_bytes
        self._handout = Handout(constructors, depth=depth, held_bytes=held_bytes)
        self.placement = placement
        self.error: Exception | None = None
        planner = new_planner(None)
        self.generations = Generations(
            first_step=planner.step, digest=fingerprint(planner.state_dict()), groups=constructors
        )
        self._begin(planner)

    @property
    def waits_for(self) -> str | None:
        """What planning waits for, in words: a row with its source and host, or the ranks that hold the others."""
        for lane in (self._main, self._replay):
            if lane is not None and lane.starved is not None:
                starved = lane.starved
                host = self.placement.host_of(self._orders[starved.source], starved.ordinal)
                return f"row {starved.ordinal} of source {starved.source!r} on loader host {host}"
        slowest = self.generations.slowest
        if slowest is None or self.end is not None or self.generations.fastest == slowest:
            return None
        ranks = self.generations.ranks_at(slowest)
        some = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
        return f"rank {some} to take step {slowest}"

    @property
    def next_step(self) -> int:
        """The step that is planned next."""
        return self._main.step

    def begin(self) -> list[Command]:
        """Return what to do before anything has happened."""
        return self._go_on()

    def connect(self, rank: int, at: Position | None = None) -> tuple[int, list[Command]]:
        """Connect a rank; return its session and what to do.

        Args:
            rank: Of the mesh.
            at: Where a rank that was connected before stands.

        Raises:
            StateError: If this run cannot have brought it there.
        """
        if at is not None and at.generation == self.generations.generation and at.next_step > self._main.step:
            raise StateError(
                f"rank {rank} stands at step {at.next_step}, but this run has planned {self._main.step} steps; it "
                "belongs to another run: load the state that was saved last on every rank"
            )
        session = self.generations.connect(rank, at)
        self._stir(rank)
        return session, self._go_on()

    def disconnect(self, rank: int, session: int) -> list[Command]:
        """Release a rank."""
        self.generations.disconnect(rank, session)
        self._stir(rank)
        return self._go_on()

    def load(self, rank: int, session: int, state: StateDict) -> list[Command]:
        """Move the run to a saved progress, or join the others there.

        Raises:
            StateError: If the state does not fit, or differs from what another rank loaded.
        """
        self.generations.asked(rank, session)
        planner = self._new_planner(state)
        if not self.generations.load(rank, step=planner.step, digest=fingerprint(state)):
            self._stir(rank)
            return self._go_on()
        self._begin(planner)
        return self._handout.rewind(self.generations.generation) + self._go_on()

    def recall(self, step: int) -> list[Command]:
        """Return what to do so that the plan of a step, past or to come, is held."""
        self._recalled = step
        return self._go_on()

    def handle(self, event: Event) -> list[Command]:
        """Take what happened and return what to do."""
        return self.handle_all([event])

    def handle_all(self, events: Iterable[Event]) -> list[Command]:
        """Take all that happened, then decide once: much cheaper than one by one."""
        if self.error is not None:
            return []
        try:
            for event in events:
                self._note(event)
        except Exception as error:
            return self._fail(error)
        return self._go_on()

    def progress_before(self, step: int) -> StateDict | None:
        """Return the run's position before a step of this generation, if it is still known."""
        return self._history.position_before(step)

    def plan(self, step: int) -> StepPlan | None:
        """Return the plan of a step, if it is still held."""
        return self._history.plan(step)

    @property
    def closing_notes(self) -> tuple[str, ...]:
        """Why the run ended and what stayed undelivered, once its end is known."""
        return self._main.closing_notes

    def exists(self, step: int) -> bool:
        """Return whether a step may come: it does not lie after the end."""
        return self.end is None or step < self.end

    def _begin(self, planner: Planner) -> None:
        self.first_step = planner.step
        self.end: int | None = None
        self._history = History(planner.step, planner.state_dict())
        self._released: dict[str, int] = {}
        self._released_through = planner.step - 1
        self._recalled = -1
        self._main = self._lane(planner)
        self._replay: Lane | None = None

    def _lane(self, planner: Planner) -> Lane:
        return Lane(planner, self._orders, self._totals, share_bytes=self._share_bytes)

    def _lanes(self) -> list[Lane]:
        return [lane for lane in (self._main, self._replay) if lane is not None]

    def _stir(self, rank: int) -> None:
        group = self.generations.group_of(rank)
        if group is not None:
            self._handout.stir(group)

    def _note(self, event: Event) -> None:
        match event:
            case RowsExamined(tables=tables):
                self._arrive(tables)
            case StepAsked(rank=rank, session=session, generation=generation, step=step):
                if self.generations.speaks(rank, session, generation):
                    self.generations.asks(rank, session, step)
                    self._stir(rank)
            case BytesHeld(constructor=name, nbytes=nbytes):
                self._handout.hold(name, nbytes)
            case HostLost(host=host):
                self._lose(host)
            case HostSilent(host=host):
                self._ask_again(host)
            case RunFailed(error=error):
                raise error

    def _arrive(self, tables: Iterable[MetaTable]) -> None:
        for table in tables:
            for lane in self._lanes():
                lane.arrive(table)

    def _go_on(self) -> list[Command]:
        if self.error is not None:
            return [Fail(self.error)]
        try:
            commands = [*self._plan_main(), *self._plan_missed()]
        except Exception as error:
            # Strategies and cost functions are the user's: whatever they raise ends the run for every rank.
            return self._fail(error)
        commands += self._handout.commands(
            self.generations,
            self._history.plan,
            self.end,
            self.placement,
            lambda plan: self.placement.owners(plan, self._orders),
        )
        commands += self._release()
        self._handout.forget(self._history.forget(self._needed()))
        return commands

    def _plan_main(self) -> list[Command]:
        if self.end is not None:
            return []
        slowest = self.generations.slowest if len(self._handout) else None
        limit = max(self._recalled + 1, 0 if slowest is None else slowest + self._depth)
        commands: list[Command] = []
        while self._main.step < limit:
            outcome = self._main.plan()
            if isinstance(outcome, Starved):
                break
            if outcome is None:
                self.end = self._main.step
                self._handout.stir()
                return commands
            self._keep(outcome)
            commands.append(Planned(outcome))
        return commands + self._examine(self._main)

    def _plan_missed(self) -> list[Command]:
        """Plan steps again that a late rank needs and nobody holds."""
        while True:
            needed = [step for step in self._needed() if self.first_step <= step < self._main.step]
            missing = min((step for step in needed if step not in self._history), default=None)
            if missing is None:
                self._let_replay_go()
                return []
            start, position = self._history.nearest(missing)
            if self._replay is None or not start <= self._replay.step <= missing:
                self._replay = self._lane(self._new_planner(position))
            while self._replay.step <= missing:
                outcome = self._replay.plan()
                if isinstance(outcome, Starved):
                    return self._examine(self._replay)
                if outcome is None:
                    raise StateError(f"step {missing} was planned before and cannot be planned again")
                self._keep(outcome)

    def _let_replay_go(self) -> None:
        """Drop the second lane once no rank is behind the first any more."""
        slowest = self.generations.slowest
        if len(self._handout) and (slowest is None or slowest + self._depth >= self._main.step):
            self._replay = None

    def _needed(self) -> set[int]:
        """Return the steps that connected ranks come to next, and the one that is recalled."""
        if not len(self._handout):
            return {self._recalled}
        soonest = self.generations.next_steps()
        return {self._recalled, *(step for first in soonest for step in range(first, first + self._depth))}

    def _keep(self, plan: StepPlan) -> None:
        self._history.keep(plan)
        self._handout.stir()

    def _examine(self, lane: Lane) -> list[Command]:
        return [self._placed(request) for request in lane.requests()]

    def _placed(self, request: RowRequest) -> Examine:
        partition = self.placement.partition_of(self._orders[request.source], request.start)
        host = self.placement.hosts[request.source][partition]
        return Examine(host, request.source, partition, request.start, request.num_rows)

    def _release(self) -> list[Command]:
        watermark = self.generations.watermark - 1
        if watermark <= self._released_through:
            return []
        position = self._history.position_before(watermark + 1)
        if position is None:
            return []
        self._released_through = watermark
        commands: list[Command] = []
        for source, before in Planner.first_needed(position).items():
            if before > self._released.get(source, 0):
                self._released[source] = before
                commands.append(Release(source, before))
        return commands

    def _lose(self, host: str) -> None:
        if host not in self.placement.alive:
            return
        if len(self.placement.alive) == 1:
            raise EngineError(
                f"loader host {host} is gone and no other is left; start the run again from the last saved state"
                f"{self._suspects()}"
            )
        self._ask_again(host)
        self.placement = self.placement.without(host)
        self._handout.move()

    def _suspects(self) -> str:
        """Return which rows the lost hosts may have ended at: one after the other meets a row that ends processes."""
        rows = [request for lane in self._lanes() for request in lane.unanswered()]
        if not rows:
            return ""
        some = ", ".join(f"{one.start} to {one.start + one.num_rows} of source {one.source!r}" for one in rows[:3])
        more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
        return (
            f". It was asked for rows {some}{more}: if a transform ends its process there, it is named under "
            "`transform_in: processes`"
        )

    def _ask_again(self, host: str) -> None:
        placement = self.placement
        for lane in self._lanes():
            lane.ask_again(lambda request: placement.host_of(self._orders[request.source], request.start) == host)

    def _fail(self, error: Exception) -> list[Command]:
        self.error = error
        return [Fail(error)]

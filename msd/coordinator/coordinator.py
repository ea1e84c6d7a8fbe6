"""Which step is under way where: events in, commands out. No I/O, no clock, no thread.

The planner says what goes where; this says when. A step is planned while no connected rank is more than `depth` steps
behind it, assigned to the constructors whose connected ranks come to it next, and dropped when all of those have
taken it. A rank that comes late has the steps it missed planned again from a kept position.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from msd.coordinator.commands import Assign, Command, Drop, Examine, Fail, Finish, Planned, Release, Rewind
from msd.coordinator.events import BytesHeld, Event, HostLost, RowsExamined, RunFailed, StepAsked
from msd.coordinator.generations import Generations
from msd.coordinator.lane import Lane
from msd.coordinator.lookahead import RowRequest
from msd.coordinator.placement import Placement
from msd.core.order import SourceOrder
from msd.core.plan import StepPlan
from msd.core.sample import MetaTable
from msd.core.state import StateDict, fingerprint
from msd.errors import EngineError, MsdError, StateError
from msd.planner.planner import Planner, Starved

PLANS_KEPT = 64
POSITION_EVERY = 64


@dataclass(slots=True)
class _Constructor:
    ranks: tuple[int, ...]
    held_bytes: int = 0
    assigned: set[int] = field(default_factory=set)
    dropped_through: int = -1
    is_told_of_end: bool = False


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
        self.placement = placement
        self._constructors = {name: _Constructor(ranks) for name, ranks in constructors.items()}
        self._depth = depth
        self._share_bytes = share_bytes
        self._held_bytes = held_bytes
        self.error: Exception | None = None
        planner = new_planner(None)
        self.generations = Generations(first_step=planner.step, digest=fingerprint(planner.state_dict()))
        self._begin(planner)

    @property
    def waits_for(self) -> str | None:
        """What planning waits for, in words that name the source and its host."""
        for lane in (self._main, self._replay):
            if lane is not None and lane.starved is not None:
                starved = lane.starved
                host = self.placement.host_of(self._orders[starved.source], starved.ordinal)
                return f"row {starved.ordinal} of source {starved.source!r} on loader host {host}"
        return None

    @property
    def next_step(self) -> int:
        """The step that is planned next."""
        return self._main.step

    def begin(self) -> list[Command]:
        """Return what to do before anything has happened."""
        return self._go_on()

    def connect(self, rank: int) -> tuple[int, list[Command]]:
        """Connect a rank; return its session and what to do."""
        session = self.generations.connect(rank)
        return session, self._go_on()

    def disconnect(self, rank: int, session: int) -> list[Command]:
        """Release a rank."""
        self.generations.disconnect(rank, session)
        return self._go_on()

    def load(self, rank: int, session: int, state: StateDict) -> list[Command]:
        """Move the run to a saved progress, or join the others there.

        Raises:
            StateError: If the state does not fit, or differs from what another rank loaded.
        """
        self.generations.asked(rank, session)
        planner = self._new_planner(state)
        if not self.generations.load(rank, step=planner.step, digest=fingerprint(state)):
            return self._go_on()
        self._begin(planner)
        rewinds: list[Command] = []
        for name, constructor in self._constructors.items():
            constructor.assigned.clear()
            constructor.dropped_through, constructor.is_told_of_end = -1, False
            rewinds.append(Rewind(name, self.generations.generation))
        return rewinds + self._go_on()

    def recall(self, step: int) -> list[Command]:
        """Return what to do so that the plan of a step, past or to come, is held."""
        self._recalled = step
        return self._go_on()

    def handle(self, event: Event) -> list[Command]:
        """Take what happened and return what to do."""
        if self.error is not None:
            return []
        match event:
            case RowsExamined(tables=tables):
                self._arrive(tables)
            case StepAsked(rank=rank, session=session, step=step):
                self.generations.asks(rank, session, step)
            case BytesHeld(constructor=name, nbytes=nbytes):
                self._constructors[name].held_bytes = nbytes
            case HostLost(host=host):
                return self._lose(host)
            case RunFailed(error=error):
                return self._fail(error)
        return self._go_on()

    def progress_before(self, step: int) -> StateDict | None:
        """Return the run's position before a step of this generation, if it is still known."""
        if step in self._positions:
            return self._positions[step]
        plan = self._plans.get(step - 1)
        return None if plan is None else plan.progress

    def plan(self, step: int) -> StepPlan | None:
        """Return the plan of a step, if it is still held."""
        return self._plans.get(step)

    def exists(self, step: int) -> bool:
        """Return whether a step may come: it does not lie after the end."""
        return self.end is None or step < self.end

    def _begin(self, planner: Planner) -> None:
        self.first_step = planner.step
        self.end: int | None = None
        self._positions: dict[int, StateDict] = {planner.step: planner.state_dict()}
        self._plans: OrderedDict[int, StepPlan] = OrderedDict()
        self._released: dict[str, int] = {}
        self._recalled = -1
        self._main = self._lane(planner)
        self._replay: Lane | None = None

    def _lane(self, planner: Planner) -> Lane:
        return Lane(planner, self._orders, self._totals, share_bytes=self._share_bytes)

    def _arrive(self, tables: Iterable[MetaTable]) -> None:
        for table in tables:
            for lane in (self._main, self._replay):
                if lane is not None:
                    lane.arrive(table)

    def _go_on(self) -> list[Command]:
        try:
            commands = [*self._plan_main(), *self._plan_missed()]
        except MsdError as error:
            return self._fail(error)
        commands += [*self._hand_out(), *self._let_go()]
        self._forget_plans()
        return commands

    def _plan_main(self) -> list[Command]:
        slowest = self.generations.slowest if self._constructors else None
        limit = max(self._recalled + 1, 0 if slowest is None else slowest + self._depth)
        commands: list[Command] = []
        while self.end is None and self._main.step < limit:
            outcome = self._main.plan()
            if isinstance(outcome, Starved):
                break
            if outcome is None:
                self.end = self._main.step
            else:
                self._keep(outcome)
                commands.append(Planned(outcome))
        return commands + (self._examine(self._main) if self.end is None else [])

    def _plan_missed(self) -> list[Command]:
        """Plan steps again that a late rank needs and nobody holds."""
        needed = {self._recalled, *(step for _, step in self._wanted())}
        missing = min(
            (step for step in needed if self.first_step <= step < self._main.step and step not in self._plans),
            default=None,
        )
        if missing is None:
            return []
        if self._replay is None or self._replay.step > missing:
            start = max(kept for kept in self._positions if kept <= missing)
            self._replay = self._lane(self._new_planner(self._positions[start]))
        while self._replay.step <= missing:
            outcome = self._replay.plan()
            if isinstance(outcome, Starved):
                return self._examine(self._replay)
            if outcome is None:
                raise StateError(f"step {missing} was planned before and cannot be planned again")
            self._keep(outcome)
        return self._plan_missed()

    def _keep(self, plan: StepPlan) -> None:
        self._plans[plan.step] = plan
        self._plans.move_to_end(plan.step)
        if (plan.step + 1) % POSITION_EVERY == 0:
            self._positions[plan.step + 1] = plan.progress

    def _forget_plans(self) -> None:
        """Hold the plans that somebody comes to next, and some of the newest; others can be planned again."""
        wanted = {self._recalled, *(step for _, step in self._wanted())}
        spare = [step for step in self._plans if step not in wanted]
        for step in spare[: max(0, len(self._plans) - PLANS_KEPT)]:
            del self._plans[step]

    def _examine(self, lane: Lane) -> list[Command]:
        return [self._placed(request) for request in lane.requests()]

    def _placed(self, request: RowRequest) -> Examine:
        order = self._orders[request.source]
        partition = self.placement.partition_of(order, request.start)
        host = self.placement.hosts[request.source][partition]
        return Examine(host, request.source, partition, request.start, request.num_rows)

    def _wanted(self) -> list[tuple[str, int]]:
        """Return (constructor, step) that connected ranks come to next, soonest first."""
        wanted = []
        for name, constructor in self._constructors.items():
            soonest = self.generations.next_steps(constructor.ranks)
            steps = {step for first in soonest for step in range(first, first + self._depth)}
            wanted += [(name, step) for step in steps if self.exists(step)]
        return sorted(wanted, key=lambda pair: (pair[1], pair[0]))

    def _hand_out(self) -> list[Command]:
        commands: list[Command] = []
        for name, step in self._wanted():
            constructor = self._constructors[name]
            plan = self._plans.get(step)
            if plan is None or step in constructor.assigned:
                continue
            is_asked = step in self.generations.next_steps(constructor.ranks)
            if constructor.held_bytes > self._held_bytes and not is_asked:
                continue
            constructor.assigned.add(step)
            commands.append(
                Assign(name, self.generations.generation, plan, self._owners(plan, constructor), self.placement.version)
            )
        if self.end is not None:
            for name, constructor in self._constructors.items():
                if not constructor.is_told_of_end:
                    constructor.is_told_of_end = True
                    commands.append(Finish(name, self.generations.generation, self.end))
        return commands

    def _owners(self, plan: StepPlan, constructor: _Constructor) -> dict[str, dict[int, tuple[str, int]]]:
        owners: dict[str, dict[int, tuple[str, int]]] = {}
        for bucket in {plan.bucket_of(rank) for rank in constructor.ranks}:
            for sample_id in plan.sample_ids(bucket):
                of_source = owners.setdefault(sample_id.source, {})
                if sample_id.ordinal not in of_source:
                    partition = self.placement.partition_of(self._orders[sample_id.source], sample_id.ordinal)
                    of_source[sample_id.ordinal] = (self.placement.hosts[sample_id.source][partition], partition)
        return owners

    def _let_go(self) -> list[Command]:
        commands: list[Command] = []
        for name, constructor in self._constructors.items():
            soonest = self.generations.next_steps(constructor.ranks)
            through = min(soonest) - 2 if soonest else -1
            if through > constructor.dropped_through:
                constructor.dropped_through = through
                constructor.assigned = {step for step in constructor.assigned if step > through}
                commands.append(Drop(name, self.generations.generation, through))
        watermark = self.generations.watermark - 1
        if watermark in self._plans:
            for source, before in Planner.first_needed(self._plans[watermark].progress).items():
                if before > self._released.get(source, 0):
                    self._released[source] = before
                    commands.append(Release(source, before))
        return commands

    def _lose(self, host: str) -> list[Command]:
        remaining = sorted({name for names in self.placement.hosts.values() for name in names} - {host})
        if not remaining:
            return self._fail(EngineError(f"loader host {host} is gone and no other is left; the run cannot go on"))
        self.placement = self.placement.without(host, remaining)
        for lane in (self._main, self._replay):
            if lane is not None:
                lane.ask_again()
        for constructor in self._constructors.values():
            constructor.assigned.clear()
        return self._go_on()

    def _fail(self, error: Exception) -> list[Command]:
        self.error = error
        return [Fail(error)]

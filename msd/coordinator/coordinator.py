"""Which step is under way where: events in, commands out. No I/O, no clock, no thread.

The planner says what goes where; this says when, and who is alive. A step is planned while no connected rank is more
than `depth` steps behind it, assigned to the constructors whose connected ranks come to it next, and dropped when all
of those have taken it. A rank that comes late has the steps it missed planned again from a kept position; a run whose
planner was lost is born again from what the survivors know.
"""

from collections.abc import Callable, Iterable, Mapping

from msd.coordinator.commands import Abandon, Command, Fail, Isolate, Journal, Replicate, Rewind
from msd.coordinator.copies import replica_of, standing_of
from msd.coordinator.course import Course
from msd.coordinator.door import Door
from msd.coordinator.edits import Edits
from msd.coordinator.events import (
    BytesHeld,
    ConstructorJoined,
    ConstructorLost,
    Event,
    HostJoined,
    HostLost,
    HostSilent,
    Journalled,
    NotJournalled,
    RanksStand,
    RowKilled,
    RowsEnded,
    RowsExamined,
    RowsLacking,
    RunFailed,
    StepAsked,
    TimePassed,
)
from msd.coordinator.gauges import SourceGauge
from msd.coordinator.generations import Generations
from msd.coordinator.handout import Handout
from msd.coordinator.hosts import Hosts
from msd.coordinator.incidents import Incidents
from msd.coordinator.placement import Placement
from msd.coordinator.stalls import StallTerms, Watch
from msd.coordinator.standing import RankStanding, Stall, Standing
from msd.coordinator.suspects import Suspects
from msd.core.allocation import Allocation
from msd.core.journal import Edit, Report, with_pending
from msd.core.order import SourceOrder
from msd.core.plan import StepPlan
from msd.core.state import StateDict, fingerprint
from msd.planner.planner import Planner


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
        shadows: Iterable[str] = (),
        depth: int = 3,
        ahead_bytes: int = 128 << 20,
        held_bytes: int = 256 << 20,
        stalls: Mapping[str, StallTerms] | None = None,
        deadline_s: float = 300.0,
        standing: Standing | None = None,
    ) -> None:
        """Stand before the first step, or where a standing says.

        Args:
            new_planner: Returns a planner at a saved progress, or before the first step.
            orders: The sequence of each source.
            totals: Ordinals in all of each source, None without end.
            placement: Which host owns which windows.
            constructors: The ranks that each constructor serves; none where the shell assembles what it recalls.
            shadows: Hosts that stand by.
            depth: Steps planned from the one on that the slowest connected rank asks for. Without constructors
                nothing is planned ahead: only what is recalled.
            ahead_bytes: Payload that rows of all sources may have waiting together.
            held_bytes: Payload above which a constructor is given no step that is not asked for yet.
            stalls: What happens when a source does not deliver; waited for without end if it is left out.
            deadline_s: For how long a run without a loader host waits for another.
            standing: What survivors of the run's planner know, or a store.
        """
        self._new_planner = new_planner
        self._orders = orders
        self._handout = Handout(constructors, depth=depth, held_bytes=held_bytes)
        self._hosts = Hosts(placement, shadows)
        self._edits = Edits()
        self._suspects = Suspects(() if standing is None else standing.isolated)
        self._is_born_again = standing is not None
        self._is_resumed = standing is not None and standing.is_resumed
        self.error: Exception | None = None
        planner = new_planner(None if standing is None else standing.start)
        digest = fingerprint(planner.state_dict()) if standing is None else standing.digest
        self.generations = Generations(first_step=planner.step, digest=digest, groups=constructors, standing=standing)
        if standing is not None:
            self._edits.begin(standing.edits, num_forgotten=standing.num_forgotten)
        self._course = Course(
            new_planner=new_planner,
            orders=orders,
            totals=totals,
            generations=self.generations,
            hosts=self._hosts,
            handout=self._handout,
            edits=self._edits,
            depth=depth,
            ahead_bytes=ahead_bytes,
        )
        stall = None if standing is None else standing.stall
        watch = Watch(stalls or {}, deadline_s=deadline_s, stall=stall)
        self._incidents = Incidents(self._course, self._hosts, self._edits, self._suspects, watch)
        self._door = Door(
            new_planner=new_planner,
            generations=self.generations,
            course=self._course,
            handout=self._handout,
            edits=self._edits,
            depth=depth,
            is_survived=self._is_born_again and not self._is_resumed,
        )
        self._course.begin(
            planner,
            None if standing is None else standing.positions,
            was_planned=standing is not None and not standing.is_resumed,
        )
        if standing is not None and not standing.is_resumed:
            self._door.note_brought(standing)

    @property
    def placement(self) -> Placement:
        """Which host owns which windows."""
        return self._hosts.placement

    @property
    def shadows(self) -> tuple[str, ...]:
        """Loader hosts that stand by."""
        return self._hosts.shadows

    @property
    def waits_for(self) -> str | None:
        """What planning waits for, in words, None for nothing."""
        return self._course.waits_for

    @property
    def starving(self) -> str | None:
        """The source whose rows planning waits for, None while it waits for none."""
        starved = self._course.planning.main.starved
        return None if starved is None else starved.source

    @property
    def first_step(self) -> int:
        """The first step of the generation."""
        return self.generations.first_step

    @property
    def end(self) -> int | None:
        """The first step that does not exist, once it is known."""
        return self._course.planning.end

    @property
    def next_step(self) -> int:
        """The step that is planned next."""
        return self._course.planning.main.step

    @property
    def closing_notes(self) -> tuple[str, ...]:
        """Why the run ended and what stayed undelivered, once its end is known."""
        return self._course.planning.main.closing_notes

    @property
    def shares(self) -> dict[str, float]:
        """The share of each source that the step begins with which is planned next, of what the mixture counts."""
        return self._course.planning.main.shares

    def shares_ahead(self, steps: int) -> list[dict[str, float]]:
        """Return the shares at the step that is planned next, wherever they turn within `steps` after it, and then."""
        return self._course.planning.main.shares_ahead(steps)

    @property
    def suspended(self) -> frozenset[str]:
        """Sources that are not drawn from at that step."""
        return self._course.planning.main.suspended

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits of this generation that are durable, in order, without reports."""
        return tuple(edit for edit in self._edits.durable if not isinstance(edit, Report))

    @property
    def losses(self) -> dict[str, float]:
        """The newest that was reported of each source, also for a step to come."""
        return self._course.planning.main.losses | self._edits.losses

    @property
    def stall(self) -> Stall | None:
        """The row that planning waits for, and for how long."""
        return self._incidents.stall

    def begin(self) -> list[Command]:
        """Return what to do before anything has happened."""
        commands: list[Command] = [self._replicate()] if len(self._handout) else []
        commands += self._course.seats()
        if self._is_born_again:
            commands = [
                *self._handout.rewind(self.generations.generation),
                *self._door.refusals(),
                *self._told_to_hosts(),
                *self._course.seats(),
            ]
        return commands + self._go_on()

    def connect(self, rank: int, at: RankStanding | None = None) -> tuple[int, list[Command]]:
        """Connect a rank; return its session and what to do.

        Args:
            rank: Of the mesh.
            at: Where a rank that was connected before stands, with its position. A run that has not begun goes on
                from there.

        Raises:
            StateError: If this run cannot have brought it there. Of no consequence to the others.
        """
        commands = [] if at is None or self.error is not None else self._door.admit(at)
        # From the first rank on, whoever is born from a copy waits for ranks to say where they stand.
        is_first = self.error is None and not self.generations.num_sessions
        session = self.generations.connect(rank, at)
        commands += [self._replicate()] if is_first and len(self._handout) else []
        commands += self._door.refusals(rank)
        self._stir(rank)
        return session, self._replicated(commands) + self._go_on()

    def disconnect(self, rank: int, session: int) -> list[Command]:
        """Release a rank."""
        self.generations.disconnect(rank, session)
        self._stir(rank)
        return self._go_on()

    def load(self, rank: int, session: int, state: StateDict, *, number: int | None = None) -> list[Command]:
        """Move the run to a saved progress, or join the others there.

        Args:
            rank: That loads.
            session: Of its client.
            state: The progress.
            number: Of the load, as the client counts them from 1: the same load twice is one.

        Raises:
            StateError: If the state does not fit, or differs from what another rank loaded.
        """
        if (rank, session) not in self.generations.held(rank):
            self.generations.asked(rank, session)
        planner = self._new_planner(state)
        opens = self.generations.load(rank, step=planner.step, digest=fingerprint(state), number=number)
        self._stir(rank)
        return self._opened(planner) if opens else self._go_on()

    def restore(self, state: StateDict) -> list[Command]:
        """Move the run and all its ranks to a saved progress, in a generation that no rank asked for.

        Raises:
            StateError: If the state does not fit.
        """
        planner = self._new_planner(state)
        self.generations.open(step=planner.step, digest=fingerprint(state))
        return self._opened(planner)

    def num_killed(self) -> dict[str, int]:
        """Return how many rows of each source ended or hung their process twice, as far as its position remembers."""
        return self._incidents.num_killed()

    def edit(self, edit: Edit, *, move_late: bool = False) -> tuple[Edit, list[Command]]:
        """Return an edit as it is journalled, and what to do; it takes effect once it is durable.

        Args:
            edit: What somebody wants.
            move_late: Whether an edit of a step that is planned already is to take effect at the first that is not.

        Raises:
            ConfigError: If it is of a step that is planned already, or cannot mean anything.
        """
        if isinstance(edit, Report):
            self._course.forget_reports()
        asked, journal = self._incidents.edit(edit, move_late=move_late)
        return asked, [journal, self._replicate(), *self._go_on()]

    def seat(self, changes: Allocation) -> list[Command]:
        """Give sources other loaders, from the first row of each on that nobody was asked for.

        Args:
            changes: By source. A number that stood for a loader on one host must not stand for one on another.
        """
        return [*self._course.seat(changes), *self._go_on()]

    def drain(self, host: str) -> list[Command]:
        """Note that a host is to go, which was given no seat any more; `Drained` says when nothing of it is needed."""
        return [*self._course.drain(host), *self._go_on()]

    def gauges(self) -> dict[str, SourceGauge]:
        """Return how each source keeps up."""
        lane = self._course.planning.main
        return {source: lane.gauge(source) for source in self._orders}

    def recall(self, step: int) -> list[Command]:
        """Return what to do so that the plan of a step, past or to come, is held."""
        self._course.recalled = step
        return self._go_on()

    def ask(self, step: int | None) -> list[Command]:
        """Return what to do so that `answer` comes; None when nobody asks any more. The run itself does not move."""
        if step is None or step >= self.first_step:
            self._course.planning.ask(step)
        return self._go_on()

    def answer(self, step: int) -> StepPlan | None:
        """Return the plan of the step that was asked for, past or to come, or None while it is not there.

        Raises:
            ConfigError: If the step lies before this generation, or after the end of the run.
            MsdError: If it cannot be planned, as things stand.
        """
        return self._course.answer(step)

    def handle(self, event: Event) -> list[Command]:
        """Take what happened and return what to do."""
        return self.handle_all([event])

    def handle_all(self, events: Iterable[Event]) -> list[Command]:
        """Take all that happened, then decide once: much cheaper than one by one."""
        if self.error is not None:
            return []
        commands: list[Command] = []
        try:
            for event in events:
                commands += self._note(event)
        except Exception as error:
            return self._fail(error)
        return commands + self._go_on()

    def standing(self) -> Standing:
        """Return where the run stands: another coordinator that is given it goes on from there."""
        return standing_of(
            self.generations,
            self._course.history,
            edits=self._edits,
            isolated=self._suspects.isolated,
            is_resumed=self._is_resumed,
            stall=self.stall,
        )

    def rank_standing(self, rank: int) -> RankStanding:
        """Return where a rank stands that was connected."""
        return self.generations.standing_of(rank)

    def progress_before(self, step: int) -> StateDict | None:
        """Return the position before a step of this generation with all edits that wait, if it is still known."""
        position = self._course.history.position_before(step)
        return None if position is None else with_pending(position, self._edits.noted_from(step))

    def plan(self, step: int) -> StepPlan | None:
        """Return the plan of a step, if it is still held."""
        return self._course.history.plan(step)

    def exists(self, step: int) -> bool:
        """Return whether a step may come: it does not lie after the end."""
        return self.end is None or step < self.end

    def _opened(self, planner: Planner) -> list[Command]:
        """Return what to do at the beginning of a generation."""
        self._incidents.begin()
        self._edits.begin()
        self._course.begin(planner)
        generation = self.generations.generation
        moved: list[Command] = [Abandon(generation), *self._handout.rewind(generation)]
        return [*moved, *self._told_to_hosts(), *self._go_on()]

    def _replicate(self) -> Replicate:
        """Return what has loader hosts keep how the generation began: where ranks stand they say themselves."""
        return replica_of(self.standing())

    def _told_to_hosts(self) -> list[Command]:
        """Return what a loader host must know that was told nothing."""
        return [self._replicate(), *self._incidents.told_to_hosts()]

    def _stir(self, rank: int) -> None:
        group = self.generations.group_of(rank)
        if group is not None:
            self._handout.stir(group)

    def _note(self, event: Event) -> list[Command]:
        incidents = self._incidents
        match event:
            case RowsExamined(tables=tables):
                for table in tables:
                    self._course.arrive(table)
            case RowsLacking(host=host, rows=lacking_rows):
                self._course.lacking[host] = lacking_rows
            case StepAsked(rank=rank, session=session, generation=generation, step=step, lacking=lacking):
                if self.generations.speaks(rank, session, generation):
                    if lacking is not None:
                        self._course.note_lacking(rank, lacking)
                    self.generations.asks(rank, session, step)
                    self._stir(rank)
            case RanksStand(ranks=ranks):
                commands = [command for stands in ranks for command in self._door.seat(stands)]
                for stands in ranks:
                    self._stir(stands.rank)
                return self._replicated(commands)
            case BytesHeld(constructor=name, nbytes=nbytes):
                self._handout.hold(name, nbytes)
            case HostLost(host=host):
                return self._course.lose_host(host)
            case HostSilent(host=host):
                self._course.ask_host_again(host)
            case HostJoined(host=host, is_shadow=is_shadow):
                return [*self._told_to_hosts(), *self._course.join_host(host, is_shadow=is_shadow)]
            case ConstructorLost(constructor=name):
                self._handout.lose(name)
            case ConstructorJoined(constructor=name):
                return [*self._handout.join(name, self.generations.generation), *self._door.refusals(constructor=name)]
            case RowsEnded(rows=rows):
                return self._replicated(incidents.rows_ended(rows))
            case RowKilled(source=source, ordinal=ordinal, how=how):
                return self._replicated(incidents.row_killed(source, ordinal, how))
            case Journalled(through=through):
                return incidents.journalled(through)
            case NotJournalled(number=number, error=error):
                incidents.not_journalled(number, error)
                return [self._replicate()]
            case TimePassed(now_s=now_s):
                return self._replicated(incidents.time_passed(now_s))
            case RunFailed(error=error):
                raise error
        return []

    def _replicated(self, commands: list[Command]) -> list[Command]:
        """Return commands, with what has loader hosts keep what they change."""
        if any(isinstance(command, Rewind) for command in commands):
            return [*commands, *self._told_to_hosts()]
        changes = any(isinstance(command, Journal | Isolate) for command in commands)
        return [*commands, self._replicate()] if changes else commands

    def _go_on(self) -> list[Command]:
        if self.error is not None:
            return [Fail(self.error)]
        try:
            return self._course.go_on()
        except Exception as error:
            # Strategies and cost functions are the user's: whatever they raise ends the run for every rank.
            return self._fail(error)

    def _fail(self, error: Exception) -> list[Command]:
        self.error = error
        return [Fail(error)]

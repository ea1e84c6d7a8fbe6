"""The course of a run: steps planned, handed out and let go of, on the hosts and constructors that there are."""

from collections.abc import Callable, Mapping

from msd.coordinator.commands import Command, Drained, Examine, Follow, Planned, Release, Seats
from msd.coordinator.edits import Edits
from msd.coordinator.generations import Generations, some_ranks
from msd.coordinator.handout import Handout
from msd.coordinator.history import History
from msd.coordinator.hosts import Hosts
from msd.coordinator.lane import Lane
from msd.coordinator.lookahead import RowRequest
from msd.coordinator.placement import Placement
from msd.coordinator.planning import Planning
from msd.coordinator.question import no_step
from msd.core.allocation import Allocation
from msd.core.journal import Edit
from msd.core.order import SourceOrder
from msd.core.plan import StepPlan
from msd.core.sample import MetaTable
from msd.core.state import StateDict
from msd.errors import ConfigError
from msd.planner.planner import Planner, Starved

MOST_REPORTS = 64
"""Reports that are kept though no rank needs them: with them steps of long ago can be planned again."""


class Course:
    """What is done for where ranks stand. Pure bookkeeping: whoever changes one of its parts calls `go_on` after."""

    def __init__(
        self,
        *,
        new_planner: Callable[[StateDict | None], Planner],
        orders: Mapping[str, SourceOrder],
        totals: Mapping[str, int | None],
        generations: Generations,
        hosts: Hosts,
        handout: Handout,
        edits: Edits,
        depth: int,
        ahead_bytes: int,
    ) -> None:
        """Take the parts; `begin` says from where.

        Args:
            new_planner: Returns a planner at a saved progress, or before the first step.
            orders: The sequence of each source.
            totals: Ordinals in all of each source, None without end.
            generations: Where ranks stand.
            hosts: Which loader hosts there are.
            handout: What constructors were told.
            edits: The journal.
            depth: Steps planned from the one on that the slowest connected rank asks for.
            ahead_bytes: Payload that rows of all sources may have waiting together.
        """
        self._new_planner = new_planner
        self.orders = orders
        self.totals = totals
        self._generations = generations
        self._hosts = hosts
        self._handout = handout
        self._edits = edits
        self._depth = depth
        self._ahead_bytes = ahead_bytes
        self.recalled = -1
        """The step whose plan somebody wants held."""
        self.lacking: dict[str, Mapping[str, tuple[int, str]]] = {}
        """By host: rows of sources without an end that it waits to be written, and where it looks for them."""

    def begin(
        self, start: Planner, positions: Mapping[int, StateDict] | None = None, *, was_planned: bool = False
    ) -> None:
        """Begin a generation, or stand in one.

        Args:
            start: A planner that stands before its first step.
            positions: Others that are known.
            was_planned: Whether ranks may hold steps that another planner planned, with plans that are to stay;
                `note_brought` says how far.
        """
        self._planned_before = None if was_planned else start.step
        self._is_known = not was_planned
        """Whether no step was planned from `_planned_before` on, rather than: perhaps none."""
        self._lacking: dict[int, int] = {}
        """By rank: the first step that no planner before this one can have given it."""
        self.history = History(self._generations.first_step, start.state_dict(), positions)
        self.planning = Planning(self._lane_at, self.history, self._lane(start))
        self.recalled = -1
        self._asked_of: dict[RowRequest, set[str]] = {}
        """Hosts that were asked for rows which have not arrived: owners may have changed since."""
        self._released: dict[str, int] = {}
        self._released_through = self._followed_through = self._generations.first_step - 1

    def note_brought(self, step: int) -> None:
        """Note a rank that another planner brought to a step: no step was planned that is further ahead than `depth`.

        A rank that came long after the others says less than they do: of several the furthest counts.
        """
        if not self._is_known:
            self._planned_before = max(self._planned_before or 0, step + self._depth)

    def note_lacking(self, rank: int, step: int) -> None:
        """Note that a rank and its constructor had nothing from a step on when they first followed this planner.

        Once all ranks have said so, it is known how far others can have planned that anybody heard of.
        """
        if self._is_known:
            return
        self._lacking.setdefault(rank, step)
        if self._generations.all_ranks <= self._lacking.keys():
            self._is_known, self._planned_before = True, max(self._lacking.values())

    def first_free(self) -> int | None:
        """Return the first step that nobody can have planned, None while no rank says where it stands."""
        before = self._planned_before
        if before is None:
            fastest = self._generations.fastest
            if fastest is None:
                return None
            before = fastest + self._depth
        return max(self.planning.main.step, before, *(edit.noted_at for edit in self._edits.all))

    def arrive(self, table: MetaTable) -> None:
        """Take metadata, in any order, perhaps twice."""
        answered = RowRequest(table.source, table.start, table.num_rows)
        if self._asked_of.pop(answered, None) is None and self.orders[table.source].is_unbounded:
            # The first rows of what was asked: the others are asked for as what they are.
            for asked in [one for one in self._asked_of if (one.source, one.start) == (table.source, table.start)]:
                del self._asked_of[asked]
        self.planning.arrive(table)

    @property
    def waits_for(self) -> str | None:
        """What planning waits for, in words: a host, a row with its source and host, or the ranks that hold others."""
        if self._hosts.orphaned_by is not None:
            return f"a loader host in the place of {self._hosts.orphaned_by}, which was the last one"
        if self._edits.holds(self.planning.main.step):
            return "an edit to be written to the journal"
        starved = self.planning.starved
        lack = None if starved is None else self._lack_of(starved)
        if starved is not None and lack is not None:
            return f"row {starved.ordinal} of source {starved.source!r} to be written{f': {lack}' if lack else ''}"
        if starved is not None:
            host = self._hosts.placement.host_of(self.orders[starved.source], starved.ordinal)
            return f"row {starved.ordinal} of source {starved.source!r} on loader host {host}"
        slowest = self._generations.slowest
        if slowest is None or self.planning.end is not None or self._generations.fastest == slowest:
            return None
        return f"rank {some_ranks(self._generations.ranks_at(slowest))} to take step {slowest}"

    def _lack_of(self, starved: Starved) -> str | None:
        """Return where a row is looked for that is still to be written, None if it is to be prepared."""
        for rows in self.lacking.values():
            ordinal, why = rows.get(starved.source, (None, ""))
            if ordinal is not None and ordinal <= starved.ordinal:
                return why
        return None

    def go_on(self) -> list[Command]:
        """Return what is to be done now: plan, have rows examined, hand steps out, let go of what was taken."""
        before = self.history.num_kept, self.planning.end
        planned = self.planning.plan_to(self._limit(), self._edits.holds)
        commands: list[Command] = [Planned(plan) for plan in planned]
        self._plan_missed()
        if self.planning.question is not None:
            self.planning.question.go_on()
        if (self.history.num_kept, self.planning.end) != before:
            self._handout.stir()
        commands += self._examine()
        commands += self._handout.commands(
            self._generations,
            self._plan_to_hand_out,
            self.planning.end,
            self._hosts.placement,
            lambda plan: self._hosts.placement.owners(plan, self.orders),
        )
        commands += self._release()
        self._handout.forget(self.history.forget(self._needed()))
        return commands

    def lose_host(self, host: str) -> list[Command]:
        """Note that a host is gone: what it owed is asked of others, and its steps are assigned with other owners."""
        self.lacking.pop(host, None)
        if host in self._hosts.placement.alive:
            self.ask_host_again(host)
            for asked in self._asked_of.values():
                asked.discard(host)
        was = self._hosts.placement
        if not self._hosts.lose(host):
            return []
        self._handout.move()
        return self._seats(was)

    def join_host(self, host: str, *, is_shadow: bool) -> list[Command]:
        """Note that a host came which holds nothing; return what it is to follow, or to hold."""
        commands: list[Command] = []
        if host in self._hosts.all:
            # Another process of one that nobody said was lost.
            commands = self.lose_host(host)
        was = self._hosts.placement
        if self._hosts.join(host, is_shadow=is_shadow):
            self._handout.move()
        if host in self._hosts.placement.alive:
            others = self._changed(was) - {host}
            commands += self.seats(host, *sorted(others))
        return [*commands, *(self._follow(host) if host in self._hosts.shadows else [])]

    def seat(self, changes: Allocation) -> list[Command]:
        """Give sources other loaders, from the first row of each on that nobody was asked for."""
        was = self._hosts.placement
        lane = self.planning.main
        self._hosts.seat({source: (lane.asked(source), seating) for source, seating in changes.items()})
        return self._seats(was)

    def drain(self, host: str) -> list[Command]:
        """Note that a host is to go."""
        self._hosts.drain(host)
        return [Drained(done) for done in self._hosts.drained()]

    def seats(self, *hosts: str) -> list[Command]:
        """Return what tells hosts which loaders they have, if somebody says how many workers those have."""
        if not self._hosts.is_sized:
            return []
        placement = self._hosts.placement
        return [Seats(host, placement.seats_of(host)) for host in hosts or placement.alive]

    def ask_host_again(self, host: str) -> None:
        """Ask once more for what a host owes, of whoever owns it now."""
        self.planning.ask_again(lambda request: host in self._asked_of.get(request, ()))

    def ask_row_again(self, source: str, ordinal: int) -> None:
        """Ask once more for what is owed of a row."""
        self.planning.ask_again(
            lambda request: request.source == source and request.start <= ordinal < request.start + request.num_rows
        )

    def is_owed(self, source: str, ordinal: int) -> bool:
        """Return whether a row was asked for and has not come."""
        return any(
            request.source == source and request.start <= ordinal < request.start + request.num_rows
            for lane in self.planning.lanes
            for request in lane.unanswered()
        )

    def answer(self, step: int) -> StepPlan | None:
        """Return what was asked for with `planning.ask`, or None while it is not there; see `Coordinator.answer`."""
        planning, first, plan = self.planning, self._generations.first_step, self.history.plan(step)
        if plan is not None:
            return plan
        if step < first:
            raise ConfigError(
                f"step {step} lies before step {first}, where this run began or was moved to, or from where on it "
                "keeps what was reported; `msd which` plans any step from the configuration and a state before it"
            )
        if planning.end is not None and step >= planning.end:
            raise ConfigError(no_step(step, planning.end, *planning.main.closing_notes))
        question = planning.question
        return None if question is None or question.step != step else question.answer()

    def forget_reports(self) -> None:
        """Forget what was reported long ago, once there is much of it: the generation begins where ranks stand now.

        Positions from there on contain it. Only with all ranks here: who comes fresh later than that must load.
        """
        begin = self._generations.watermark + 1
        if self._edits.reports_before(begin) < MOST_REPORTS or not self._generations.are_all_here:
            return
        if self.history.position_before(begin) is None:
            return
        self._edits.forget_reports(begin)
        self.history.begin_at(begin)
        self._generations.begin_at(begin)
        self.planning.replay = None

    def expect_edit(self, edit: Edit) -> None:
        """Raise `ConfigError` unless the planner will take an edit."""
        planner = self._new_planner(self.planning.main.position)
        for waiting in self._edits.waiting:
            planner.apply(waiting)
        planner.apply(edit)

    def suspects(self) -> str:
        """Return which rows the lost hosts may have ended at: one after the other meets a row that ends processes."""
        rows = [request for lane in self.planning.lanes for request in lane.unanswered()]
        if not rows:
            return ""
        some = ", ".join(f"{one.start} to {one.start + one.num_rows} of source {one.source!r}" for one in rows[:3])
        more = f" and {len(rows) - 3} more" if len(rows) > 3 else ""
        return f". It was asked for rows {some}{more}; see the log for what ended it"

    def _lane_at(self, position: StateDict) -> Lane:
        return self._lane(self._new_planner(position))

    def _lane(self, planner: Planner) -> Lane:
        noted = self._edits.noted_from(planner.step)
        return Lane(planner, self.orders, self.totals, ahead_bytes=self._ahead_bytes, edits=noted)

    def _limit(self) -> int:
        """Return the step before which steps are planned."""
        slowest = self._generations.slowest if len(self._handout) else None
        if slowest is None:
            return self.recalled + 1
        self.planning.reach(slowest)
        return max(self.recalled + 1, slowest + self._depth)

    def _plan_missed(self) -> None:
        """Plan steps again that a late rank needs and nobody holds; let the second lane go when none is behind."""
        first = self._generations.first_step
        is_done = self.planning.plan_missed([step for step in self._needed() if step >= first])
        slowest = self._generations.slowest
        behind = slowest is not None and slowest + self._depth < self.planning.main.step
        if is_done and not (len(self._handout) and behind):
            self.planning.replay = None

    def _needed(self) -> set[int]:
        """Return the steps that connected ranks come to next, and the one that is recalled."""
        if not len(self._handout):
            return {self.recalled}
        soonest = self._generations.next_steps()
        return {self.recalled, *(step for first in soonest for step in range(first, first + self._depth))}

    def _examine(self) -> list[Command]:
        if not self._hosts.placement.alive:
            return []
        return [self._placed(request) for request in self.planning.requests()]

    def _placed(self, request: RowRequest) -> Examine:
        seat = self._hosts.placement.seat_of(self.orders[request.source], request.start)
        self._asked_of.setdefault(request, set()).add(seat.host)
        return Examine(seat.host, request.source, seat.partition, request.start, request.num_rows)

    def _plan_to_hand_out(self, step: int) -> StepPlan | None:
        """Return the plan of a step that can be handed out: somebody must prepare its rows."""
        return self.history.plan(step) if self._hosts.placement.alive else None

    def _release(self) -> list[Command]:
        watermark = self._generations.watermark - 1
        if watermark <= self._released_through:
            return []
        position = self.history.position_before(watermark + 1)
        if position is None:
            return []
        self._released_through = watermark
        commands: list[Command] = []
        for source, before in Planner.first_needed(position).items():
            if before > self._released.get(source, 0):
                self._released[source] = before
                commands.append(Release(source, before))
        was = self._hosts.placement
        if self._hosts.prune(self._released):
            commands += self._seats(was)
        if watermark >= self._followed_through + self._depth:
            self._followed_through = watermark
            commands += [command for shadow in self._hosts.shadows for command in self._follow(shadow)]
        return commands

    def _seats(self, was: Placement) -> list[Command]:
        """Return what tells hosts of a change, and which hosts need not be there any more."""
        changed = sorted(self._changed(was))
        return [*(self.seats(*changed) if changed else []), *(Drained(host) for host in self._hosts.drained())]

    def _changed(self, was: Placement) -> set[str]:
        """Return the hosts whose loaders are others than before."""
        placement = self._hosts.placement
        return {host for host in placement.alive if was.seats_of(host) != placement.seats_of(host)}

    def _follow(self, shadow: str) -> list[Command]:
        """Return what tells a shadow where the rows of the next steps begin."""
        position = self.history.position_before(self._generations.watermark + 1)
        return [] if position is None else [Follow(shadow, Planner.first_needed(position))]

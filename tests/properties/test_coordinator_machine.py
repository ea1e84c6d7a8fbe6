"""Any order of messages, any coming and going: what the coordinator says still brings every rank its steps."""

import json
from contextlib import suppress
from dataclasses import replace
from functools import cache
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from msd.constructor.constructor import DataConstructor
from msd.constructor.shelf import Shelf
from msd.coordinator import RankStanding, deal, merged
from msd.coordinator.commands import (
    Assign,
    Drained,
    Drop,
    Examine,
    Fail,
    Finish,
    Follow,
    Journal,
    Planned,
    Release,
    Replicate,
    Rewind,
    Seats,
)
from msd.coordinator.events import (
    BytesHeld,
    ConstructorJoined,
    ConstructorLost,
    HostJoined,
    HostLost,
    HostSilent,
    Journalled,
    RanksStand,
    StepAsked,
)
from msd.core.allocation import Seat, Seating
from msd.core.journal import SetWeights, SkipRows, edits_from_state, edits_to_state
from msd.core.mesh import Mesh
from msd.core.state import canonical_json
from msd.errors import ConfigError
from msd.testing.runs import MadeUpRun
from msd.testing.tables import failed_row, feed_of, row, steps_of

SOURCES = {
    "web": [row(20), row(31, 7), row(), row(5)] * 12,
    "books": [row(50), row(60), failed_row()] * 9,
    "code": [row(9)] * 150,
}
RANKS = {"c0": (0, 1), "c1": (2, 3)}
CONSTRUCTOR_OF = {rank: name for name, ranks in RANKS.items() for rank in ranks}
DEPTH = 3
ENDS = {"max_epochs": {"web": 2, "books": 2, "code": 2}, "end": {"web": "drop", "books": "drop", "code": "stop"}}


def new_run() -> MadeUpRun:
    return MadeUpRun(
        SOURCES,
        RANKS,
        hosts=("a", "b", "c"),
        depth=DEPTH,
        ahead_bytes=400,
        held_bytes=1000,
        mesh=Mesh.of(tp=4),  # One bucket: it is planned ten times as fast as two.
        terms={"books": {"max_rate": 0.9}},
        sequence_length=64,
        global_batch_size=4,
        batch={"last": "pad"},
        **ENDS,
    )


def undisturbed(edits: tuple = ()) -> list:
    """The plans of the run that nothing disturbs, but for edits."""
    return _undisturbed(canonical_json(edits_to_state(edits)))


@cache
def _undisturbed(journal: str) -> list:
    run, edits = new_run(), edits_from_state(json.loads(journal))
    planner, plans = run.new_planner(None), []
    steps, waiting = steps_of(planner, feed_of(SOURCES, run.settings)), list(edits)
    while True:
        while waiting and waiting[0].noted_at == planner.step:
            planner.apply(waiting.pop(0))
        plan = next(steps, None)
        if plan is None:
            return plans
        plans.append(plan)


def first_rows_from(step: int, edits: tuple) -> dict[str, int]:
    """The first row of each source that a step or a later one holds."""
    first: dict[str, int] = {}
    for plan in undisturbed(edits)[step:]:
        for sample_id in plan.sample_ids():
            first[sample_id.source] = min(sample_id.ordinal, first.get(sample_id.source, sample_id.ordinal))
    return first


@cache
def start() -> dict:
    return new_run().new_planner(None).state_dict()


def new_shelf(name: str) -> Shelf:
    return Shelf(DataConstructor(pad_token_id=0), RANKS[name])


class CoordinatorMachine(RuleBasedStateMachine):
    """The world around a coordinator: whatever it says arrives in any order, perhaps twice."""

    def __init__(self) -> None:
        super().__init__()
        # So little is kept that most of what a late rank needs must be planned again.
        self.kept = mock.patch.multiple("msd.coordinator.history", PLANS_KEPT=2, POSITION_EVERY=2, POSITIONS_KEPT=4)
        self.kept.start()
        self.run = new_run()
        self.coordinator = self.run.coordinator
        self.shelves = {name: new_shelf(name) for name in RANKS}
        self.under_way: list = []
        self.sessions: dict[int, int] = {}
        self.next_step: dict[int, int] = {}
        self.cut_off: set[int] = set()
        """Ranks whose constructor is gone, or whose planner does not know them: they say HELLO again."""
        self.lacking: dict[int, int] = {}
        """By rank: the first step that neither it nor its constructor had when the planner was replaced last."""
        self.alive = {"a", "b", "c"}
        self.shadows: set[str] = set()
        self.term = 0
        self.copies: dict[str, tuple[int, Replicate]] = {}
        """By host: the newest copy that it was given."""
        self.is_blind = False
        """A planner was born that does not know all that constructors hold."""
        self.edits: tuple = ()
        """In force, or about to be."""
        self.first_step = 0
        self.num_loaders = 10
        """Above the number of any loader so far."""
        self._note(self.coordinator.begin())

    def teardown(self) -> None:
        self.kept.stop()

    def _note(self, commands) -> None:
        for command in commands:
            assert not isinstance(command, Fail), command
            if isinstance(command, Planned | Assign):
                expected = undisturbed(self.edits)[command.plan.step]
                assert (command.plan.digest, command.plan.progress) == (expected.digest, expected.progress)
            if isinstance(command, Examine):
                assert command.host in self.alive
            if isinstance(command, Release):
                slowest = min(self.next_step[rank] for rank in self.sessions)
                first = first_rows_from(slowest, self.edits)
                assert command.before <= first.get(command.source, command.before)
            elif isinstance(command, Drop):
                standing = [self.next_step[rank] for rank in RANKS[command.constructor] if rank in self.sessions]
                assert command.through < min(standing) - 1, "a step that may be asked for once more is dropped"
            elif isinstance(command, Follow):
                assert command.host in self.coordinator.shadows
            elif isinstance(command, Drained):
                # It is closed: nobody may be sent there any more.
                assert not self.coordinator.placement.seats_of(command.host)
                self.alive.discard(command.host)
                self.copies.pop(command.host, None)
            elif isinstance(command, Seats):
                assert command.seats == self.coordinator.placement.seats_of(command.host)
            if isinstance(command, Assign | Drop | Rewind | Finish | Examine | Journal | Replicate):
                self.under_way.append(command)

    def _arrive(self, command) -> None:
        if isinstance(command, Examine):
            # A host that is gone answers no more.
            if command.host in self.alive:
                self._note(self.coordinator.handle(self.run.answer(command)))
            return
        if isinstance(command, Journal):
            self._note(self.coordinator.handle(Journalled(command.number)))
            return
        if isinstance(command, Replicate):
            # Copies are numbered: an older one that comes late is not taken.
            number = len(command.standing.edits) + 1000 * command.standing.generation
            for host in self.alive:
                if self.copies.get(host, (-1,))[0] <= number:
                    self.copies[host] = number, command
            return
        shelf, term = self.shelves[command.constructor], self.term
        match command:
            case Assign():
                shelf.assign(
                    command.generation,
                    command.plan,
                    command.owners,
                    command.placement_version,
                    number=command.number,
                    term=term,
                )
            case Drop():
                shelf.drop(command.generation, command.through, number=command.number, term=term)
            case Rewind():
                shelf.rewind(command.generation)
            case Finish():
                shelf.finish(command.generation, command.step)

    def _has(self, rank: int) -> bool:
        shelf, step = self.shelves[CONSTRUCTOR_OF[rank]], self.next_step[rank]
        return shelf.generation == self.coordinator.generations.generation and step in shelf.held_steps

    def _is_over(self, rank: int) -> bool:
        shelf = self.shelves[CONSTRUCTOR_OF[rank]]
        return (
            shelf.generation == self.coordinator.generations.generation
            and shelf.end is not None
            and self.next_step[rank] >= shelf.end
        )

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), twice=st.booleans(), count=st.integers(1, 8))
    def some_arrive(self, data, twice, count):
        for _ in range(min(count, len(self.under_way))):
            index = data.draw(st.integers(0, len(self.under_way) - 1))
            command = self.under_way[index] if twice else self.under_way.pop(index)
            self._arrive(command)

    @rule(rank=st.sampled_from(sorted(CONSTRUCTOR_OF)))
    def a_rank_takes_or_comes(self, rank):
        self._take_or_come(rank)

    @rule(
        backwards=st.booleans(),
        rounds=st.integers(1, 6),
        ranks=st.sets(st.sampled_from(sorted(CONSTRUCTOR_OF)), min_size=1),
    )
    def some_run_on(self, backwards, rounds, ranks):
        for _ in range(rounds):
            for rank in sorted(ranks):
                self._all_arrives(backwards)
                self._take_or_come(rank)

    def _stands(self, rank: int) -> RankStanding:
        """What a rank says of itself."""
        step = self.next_step[rank]
        progress = undisturbed(self.edits)[step - 1].progress if step else start()
        generation = self.coordinator.generations.generation
        return RankStanding(rank=rank, generation=generation, next_step=step, progress=progress, num_loads=generation)

    def _take_or_come(self, rank) -> None:
        if rank in self.cut_off:
            self.cut_off.discard(rank)
            # It is counted from now on where it says it stands.
            self.sessions[rank] = 0
            self.sessions[rank], commands = self.coordinator.connect(rank, self._stands(rank))
            self._note(commands)
        elif rank not in self.sessions:
            # Drops that follow are judged by where the rank stands then.
            self.next_step[rank] = self.first_step
            self.sessions[rank], commands = self.coordinator.connect(rank)
            self._note(commands)
        elif self._has(rank):
            generation = self.coordinator.generations.generation
            self.next_step[rank] += 1
            lacking = self.lacking.get(rank)
            asked = StepAsked(rank, self.sessions[rank], generation, self.next_step[rank], lacking)
            stale = StepAsked(rank, self.sessions[rank], generation, self.next_step[rank] - 1)
            self._note(self.coordinator.handle_all([asked, stale]))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def a_rank_leaves(self, data):
        rank = data.draw(st.sampled_from(sorted(self.sessions)))
        self.cut_off.discard(rank)
        session = self.sessions.pop(rank)
        self._note(self.coordinator.disconnect(rank, session))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), is_dead=st.booleans())
    def a_host_is_lost_or_silent(self, data, is_dead):
        host = data.draw(st.sampled_from(sorted(self.alive)))
        if is_dead:
            self.alive.discard(host)
            self.copies.pop(host, None)
            self._note(self.coordinator.handle_all([HostLost(host), HostLost(host)]))
        else:
            self._note(self.coordinator.handle(HostSilent(host)))

    @precondition(lambda self: self.coordinator.placement.alive)
    @rule(data=st.data(), source=st.sampled_from(sorted(SOURCES)), is_striped=st.booleans())
    def somebody_seats_a_source_anew(self, data, source, is_striped):
        owners = st.sampled_from(sorted(self.coordinator.placement.alive))
        hosts = data.draw(st.lists(owners, min_size=1, max_size=3))
        self._note(self.coordinator.seat({source: self._seating(hosts, is_striped=is_striped)}))

    @precondition(lambda self: len(self.coordinator.placement.alive) > 1)
    @rule(data=st.data())
    def a_host_is_drained(self, data):
        going, other = data.draw(st.permutations(sorted(self.coordinator.placement.alive)))[:2]
        changes = {
            source: self._seating([other if seat.host == going else seat.host for seat in seating.seats])
            for source, seating in self.coordinator.placement.allocation.items()
            if any(seat.host == going for seat in seating.seats)
        }
        self._note(self.coordinator.seat(changes))
        self._note(self.coordinator.drain(going))

    def _seating(self, hosts, *, is_striped=False) -> Seating:
        first, self.num_loaders = self.num_loaders, self.num_loaders + len(hosts)
        seats = (Seat(first + number, host, 1 + number) for number, host in enumerate(hosts))
        return Seating(tuple(seats), is_striped)

    @rule(host=st.sampled_from("abcde"), is_shadow=st.booleans())
    def a_host_comes(self, host, is_shadow):
        self.alive.add(host)
        self._note(self.coordinator.handle(HostJoined(host, is_shadow)))

    @rule(name=st.sampled_from(sorted(RANKS)), late=st.booleans())
    def a_constructor_is_lost_and_another_comes(self, name, late):
        self.shelves[name] = new_shelf(name)
        self.under_way = [one for one in self.under_way if getattr(one, "constructor", None) != name]
        self.cut_off |= {rank for rank in RANKS[name] if rank in self.sessions}
        self._note(self.coordinator.handle(ConstructorLost(name)))
        if late:
            self._all_arrives(backwards=False, checks=False)
        self._note(self.coordinator.handle(ConstructorJoined(name)))

    @rule(
        constructors_too=st.booleans(),
        hosts_answer=st.booleans(),
        is_late=st.booleans(),
        shadows=st.integers(0, 1),
    )
    def the_planner_is_lost_and_another_is_born(self, constructors_too, hosts_answer, is_late, shadows):
        """From what constructors and hosts know, as far as they are left and answer in time."""
        if self.next_step or self.edits or not constructors_too:
            # Of a run that ranks were of, somebody knows how it began: without, late ranks would have to load.
            hosts_answer = True
        if not self.alive:
            return
        if hosts_answer:
            # What a load or an edit waits for has come to somebody before it counts.
            self._deliver(Replicate)
        copies = [copy.standing for _, copy in self.copies.values()] if hosts_answer else []
        ranks = tuple(replace(self._stands(rank), session=self.sessions[rank]) for rank in sorted(self.sessions))
        ranks = tuple(stands for stands in ranks if stands.rank not in self.cut_off)
        held = {step: plan for shelf in self.shelves.values() for step, plan in shelf.positions().items()}
        is_heard = not (constructors_too or is_late)
        words = [replace(copy, ranks=ranks, positions=held) for copy in copies[:1] if is_heard]
        self.is_blind = self.is_blind or is_late
        if constructors_too:
            self.shelves = {name: new_shelf(name) for name in RANKS}
            self.cut_off |= set(self.sessions)
        standing = merged([*copies, *words])
        self.lacking = {
            rank: max([step, *(held + 1 for held in self.shelves[CONSTRUCTOR_OF[rank]].held_steps)])
            for rank, step in self.next_step.items()
        }
        self.under_way = []
        self.term += 1
        hosts = sorted(self.alive)
        owners = hosts[: max(1, len(hosts) - shadows)]
        if standing is None or not words:
            known = {}
        else:
            known = {stands.rank: self.sessions[stands.rank] for stands in ranks}
        counted, self.sessions = self.sessions, known
        self.edits = () if standing is None else standing.edits
        self.coordinator = self.run.born_again(
            standing,
            placement=deal(dict.fromkeys(SOURCES, 2), owners),
            shadows=[host for host in hosts if host not in owners],
        )
        self._note(self.coordinator.begin())
        if constructors_too:
            for name in RANKS:
                self._note(self.coordinator.handle(ConstructorJoined(name)))
            return
        for stands in ranks:
            self.sessions[stands.rank] = counted[stands.rank]
        if ranks:
            self._note(self.coordinator.handle(RanksStand(ranks)))

    @rule(source=st.sampled_from([None, *sorted(SOURCES)]), ahead=st.integers(0, 4))
    def somebody_edits(self, source, ahead):
        """Rows of a source are skipped, or without one all weights change."""
        if len(self.edits) >= 2 or self.coordinator.end is not None or self.first_step or self.cut_off or self.is_blind:
            return
        self._deliver(Journal)
        at_step = self.coordinator.next_step + ahead
        wanted = SetWeights(at_step=at_step, weights={"web": 1, "books": 3, "code": 2}, ramp=ahead)
        if source is not None:
            wanted = SkipRows(at_step=at_step, source=source, first=10 * ahead, last=10 * ahead + 12)
        asked = None
        with suppress(ConfigError):
            asked = self.coordinator.edit(wanted, move_late=True)
        if asked is None:
            assert self.term, "only a planner that was born again may not know which step is free"
            assert not self.sessions
            return
        edit, commands = asked
        self.edits = (*self.edits, edit)
        self._note(commands)

    @rule()
    def what_is_saved_is_what_another_stands_at(self):
        standing = self.coordinator.standing()
        if any(isinstance(one, Journal) for one in self.under_way):
            return
        again = new_run().born_again(standing).standing()
        assert replace(again, num_sessions=standing.num_sessions) == standing

    @rule(name=st.sampled_from(sorted(RANKS)), nbytes=st.sampled_from([0, 900, 5000]))
    def a_constructor_says_what_it_holds(self, name, nbytes):
        self._note(self.coordinator.handle(BytesHeld(name, nbytes)))

    @precondition(lambda self: len(self.sessions) == 4 and not self.cut_off)
    @rule(step=st.integers(0, 6), followers=st.integers(0, 1))
    def all_load(self, step, followers):
        """All but `followers` load the position before a step; those that do not follow."""
        state = undisturbed()[step].progress
        generation = self.coordinator.generations.generation
        for rank in sorted(self.sessions)[followers:]:
            if self.coordinator.generations.generation == generation:
                self.first_step, self.edits = step + 1, ()
                self.next_step = dict.fromkeys(self.next_step, step + 1)
            commands = self.coordinator.load(rank, self.sessions[rank], state)
            self._note(commands)
        if followers:
            # The follower's own load of that number joins, so that all have loaded as often.
            self._note(self.coordinator.load(0, self.sessions[0], state))
        assert self.coordinator.generations.generation == generation + 1

    @rule(backwards=st.booleans())
    def all_arrives(self, backwards):
        """When nothing is under way any more, every rank that may go on has its step, or knows of the end."""
        self._all_arrives(backwards)

    def _deliver(self, kind) -> None:
        """Have all of one kind arrive that is under way, in order."""
        while any(isinstance(one, kind) for one in self.under_way):
            first = next(one for one in self.under_way if isinstance(one, kind))
            self.under_way.remove(first)
            self._arrive(first)

    def _all_arrives(self, backwards, checks=True) -> None:
        while self.under_way:
            self._arrive(self.under_way.pop(-1 if backwards else 0))
        there = [rank for rank in self.sessions if rank not in self.cut_off]
        if not checks or not there or not self.alive:
            return
        slowest = min(self.next_step[rank] for rank in self.sessions)
        for rank in there:
            if self.next_step[rank] < slowest + DEPTH:
                is_asked = self._has(rank) or self._is_over(rank)
                assert is_asked, (rank, self.next_step[rank], slowest, self.coordinator.waits_for)
                owners = self.shelves[CONSTRUCTOR_OF[rank]].needed(self.next_step[rank])
                assert {host for host, _ in owners} <= self.alive
        for name, shelf in self.shelves.items():
            standing = [self.next_step[rank] for rank in RANKS[name] if rank in self.sessions]
            if standing and shelf.held_steps:
                assert shelf.held_steps[0] >= min(standing) - 1, "what all ranks have taken is still held"

    @invariant()
    def ranks_stand_where_they_are_known_to_stand(self):
        standing = {self.next_step[rank] for rank in self.sessions}
        if standing:
            known = set(self.coordinator.generations.next_steps())
            assert known == standing, (known, self.next_step, self.coordinator.generations.standings())
            assert self.coordinator.generations.watermark == min(standing) - 1


TestCoordinatorMachine = CoordinatorMachine.TestCase
TestCoordinatorMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_the_undisturbed_run_is_long_enough_to_tell():
    plans = undisturbed()
    assert len(plans) > 20
    assert len({canonical_json(plan.progress) for plan in plans}) == len(plans)

"""Any order of messages, any coming and going: what the coordinator says still brings every rank its steps."""

from functools import cache
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from msd.constructor.constructor import DataConstructor
from msd.constructor.shelf import Shelf
from msd.coordinator.commands import Assign, Drop, Examine, Fail, Finish, Planned, Release, Replicate, Rewind
from msd.coordinator.events import BytesHeld, HostLost, HostSilent, StepAsked
from msd.core.mesh import Mesh
from msd.core.state import canonical_json
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
        share_bytes=400,
        held_bytes=1000,
        mesh=Mesh.of(dp=2, tp=2),
        terms={"books": {"max_rate": 0.9}},
        sequence_length=64,
        global_batch_size=4,
        batch={"last": "pad"},
        **ENDS,
    )


@cache
def undisturbed() -> list:
    run = new_run()
    return list(steps_of(run.new_planner(None), feed_of(SOURCES, run.settings)))


@cache
def digests() -> list[str]:
    return [plan.digest for plan in undisturbed()]


@cache
def first_rows_from(step: int) -> dict[str, int]:
    """The first row of each source that a step or a later one holds."""
    first: dict[str, int] = {}
    for plan in undisturbed()[step:]:
        for sample_id in plan.sample_ids():
            first[sample_id.source] = min(sample_id.ordinal, first.get(sample_id.source, sample_id.ordinal))
    return first


class CoordinatorMachine(RuleBasedStateMachine):
    """The world around a coordinator: whatever it says arrives in any order, perhaps twice."""

    def __init__(self) -> None:
        super().__init__()
        # So little is kept that most of what a late rank needs must be planned again.
        self.kept = mock.patch.multiple("msd.coordinator.history", PLANS_KEPT=2, POSITION_EVERY=2, POSITIONS_KEPT=4)
        self.kept.start()
        self.run = new_run()
        self.coordinator = self.run.coordinator
        self.shelves = {name: Shelf(DataConstructor(pad_token_id=0), ranks) for name, ranks in RANKS.items()}
        self.under_way: list = []
        self.sessions: dict[int, int] = {}
        self.next_step: dict[int, int] = {}
        self.alive = {"a", "b", "c"}
        self.first_step = 0
        self._note(self.coordinator.begin())

    def teardown(self) -> None:
        self.kept.stop()

    def _note(self, commands) -> None:
        for command in commands:
            assert not isinstance(command, Fail), command
            if isinstance(command, Planned | Assign):
                assert command.plan.digest == digests()[command.plan.step]
            if isinstance(command, Examine):
                assert command.host in self.alive
            if isinstance(command, Release):
                slowest = min(self.next_step[rank] for rank in self.sessions)
                assert command.before <= first_rows_from(slowest).get(command.source, command.before)
            elif isinstance(command, Drop):
                standing = [self.next_step[rank] for rank in RANKS[command.constructor] if rank in self.sessions]
                assert command.through < min(standing) - 1, "a step that may be asked for once more is dropped"
            if not isinstance(command, Planned | Release | Replicate):
                self.under_way.append(command)

    def _arrive(self, command) -> None:
        if isinstance(command, Examine):
            # A host that is gone answers no more.
            if command.host in self.alive:
                self._note(self.coordinator.handle(self.run.answer(command)))
            return
        shelf = self.shelves[command.constructor]
        match command:
            case Assign():
                assert {host for places in command.owners.values() for host, _ in places.values()} <= {"a", "b", "c"}
                shelf.assign(
                    command.generation,
                    command.plan,
                    command.owners,
                    command.placement_version,
                    number=command.number,
                )
            case Drop():
                shelf.drop(command.generation, command.through, number=command.number)
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

    def _take_or_come(self, rank) -> None:
        if rank not in self.sessions:
            # Drops that follow are judged by where the rank stands then.
            self.next_step[rank] = self.first_step
            self.sessions[rank], commands = self.coordinator.connect(rank)
            self._note(commands)
        elif self._has(rank):
            generation = self.coordinator.generations.generation
            self.next_step[rank] += 1
            asked = StepAsked(rank, self.sessions[rank], generation, self.next_step[rank])
            stale = StepAsked(rank, self.sessions[rank], generation, self.next_step[rank] - 1)
            self._note(self.coordinator.handle_all([asked, stale]))

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def a_rank_leaves(self, data):
        rank = data.draw(st.sampled_from(sorted(self.sessions)))
        session = self.sessions.pop(rank)
        self._note(self.coordinator.disconnect(rank, session))

    @precondition(lambda self: len(self.alive) > 1)
    @rule(data=st.data(), is_dead=st.booleans())
    def a_host_is_lost_or_silent(self, data, is_dead):
        host = data.draw(st.sampled_from(sorted(self.alive)))
        if is_dead:
            self.alive.discard(host)
            self._note(self.coordinator.handle_all([HostLost(host), HostLost(host)]))
        else:
            self._note(self.coordinator.handle(HostSilent(host)))

    @rule(name=st.sampled_from(sorted(RANKS)), nbytes=st.sampled_from([0, 900, 5000]))
    def a_constructor_says_what_it_holds(self, name, nbytes):
        self._note(self.coordinator.handle(BytesHeld(name, nbytes)))

    @precondition(lambda self: len(self.sessions) == 4)
    @rule(step=st.integers(0, 6), followers=st.integers(0, 1))
    def all_load(self, step, followers):
        """All but `followers` load the position before a step; those that do not follow."""
        state = undisturbed()[step].progress
        generation = self.coordinator.generations.generation
        for rank in sorted(self.sessions)[followers:]:
            if self.coordinator.generations.generation == generation:
                self.first_step = step + 1
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

    def _all_arrives(self, backwards) -> None:
        while self.under_way:
            self._arrive(self.under_way.pop(-1 if backwards else 0))
        if not self.sessions:
            return
        slowest = min(self.next_step[rank] for rank in self.sessions)
        for rank in self.sessions:
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
            assert set(self.coordinator.generations.next_steps()) == standing
            assert self.coordinator.generations.watermark == min(standing) - 1


TestCoordinatorMachine = CoordinatorMachine.TestCase
TestCoordinatorMachine.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


def test_the_undisturbed_run_is_long_enough_to_tell():
    plans = undisturbed()
    assert len(plans) > 20
    assert len({canonical_json(plan.progress) for plan in plans}) == len(plans)

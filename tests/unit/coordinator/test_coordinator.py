from dataclasses import replace
from itertools import chain

import pytest
from driven_ranks import SOURCES, Ranks, make, of_kind

from msd.coordinator import RankStanding
from msd.coordinator.commands import Abandon, Assign, Drop, Examine, Fail, Finish, Planned, Release, Rewind
from msd.coordinator.events import BytesHeld, HostLost, HostSilent, RowsLacking, RunFailed, StepAsked, TimePassed
from msd.core.state import canonical_json
from msd.errors import EngineError, StateError
from msd.testing.tables import feed_of, steps_of


def test_before_a_rank_came_the_first_steps_are_planned_and_handed_out():
    ranks = Ranks(make(), ranks=())
    assert [command.plan.step for command in of_kind(Planned, ranks.met)] == [0, 1, 2]
    assert ranks.assigned("c0") == ranks.assigned("c1") == [0, 1, 2]


def test_plans_are_those_of_the_planner_alone():
    run = make()
    ranks = Ranks(run)
    for step in range(6):
        for rank in (0, 1):
            ranks.asks(rank, step)
    alone = steps_of(run.new_planner(None), feed_of(SOURCES, run.settings))
    planned = [command.plan.digest for command in of_kind(Planned, ranks.met)]
    assert planned == [next(alone).digest for _ in planned]
    assert len(planned) == 8


def test_no_step_is_planned_further_ahead_of_the_slowest_than_the_depth():
    ranks = Ranks(make(depth=2))
    assert not of_kind(Planned, ranks.asks(0, 1))
    assert ranks.run.coordinator.next_step == 2
    assert ranks.run.coordinator.waits_for == "rank 1 to take step 0"
    assert [command.plan.step for command in of_kind(Planned, ranks.asks(1, 1))] == [2]


def test_a_rank_that_leaves_holds_nobody():
    ranks = Ranks(make(depth=2))
    ranks.asks(0, 1)
    assert [command.plan.step for command in of_kind(Planned, ranks.leaves(1))] == [2]


def test_a_step_is_assigned_with_the_owners_of_its_rows():
    run = make(partitions=3, hosts=("a", "b", "c"))
    (assign,) = [c for c in of_kind(Assign, Ranks(run).met) if (c.constructor, c.plan.step) == ("c1", 0)]
    bucket = assign.plan.bucket_of(1)
    assert {(source, ordinal) for source in assign.owners for ordinal in assign.owners[source]} == {
        (sample_id.source, sample_id.ordinal) for sample_id in assign.plan.sample_ids(bucket)
    }
    for source, places in assign.owners.items():
        for host, partition in places.values():
            assert run.coordinator.placement.hosts[source][partition] == host


def test_a_constructor_of_several_buckets_is_told_the_owners_of_all():
    (assign,) = of_kind(Assign, Ranks(make({"c0": (0, 1)}), ranks=()).met)[:1]
    assert sum(map(len, assign.owners.values())) == len({(i.source, i.ordinal) for i in assign.plan.sample_ids()})


def test_a_step_is_dropped_when_the_next_was_taken_by_all_ranks_of_its_constructor():
    ranks = Ranks(make())
    assert not of_kind(Drop, ranks.asks(0, 1))
    (drop,) = of_kind(Drop, ranks.asks(0, 2))
    assert (drop.constructor, drop.through) == ("c0", 0)


def test_rows_are_released_behind_the_slowest_rank():
    ranks = Ranks(make())
    assert not of_kind(Release, chain(ranks.asks(0, 1), ranks.asks(0, 2)))
    ranks.asks(1, 1)
    released = {command.source: command.before for command in of_kind(Release, ranks.asks(1, 2))}
    plan = ranks.run.coordinator.plan(0)
    first_needed = ranks.run.new_planner(None).first_needed(plan.progress)
    assert released == {source: before for source, before in first_needed.items() if before}


def test_a_late_rank_gets_the_steps_it_missed_and_they_are_dropped_behind_it(monkeypatch):
    monkeypatch.setattr("msd.coordinator.history.PLANS_KEPT", 3)
    ranks = Ranks(make({"c0": (0, 1)}, depth=2), ranks=(0,))
    for step in range(12):
        ranks.asks(0, step)
    expected = {command.plan.step: command.plan.digest for command in of_kind(Planned, ranks.met)}
    met = ranks.connect(1)
    for step in range(1, 12):
        met += ranks.asks(1, step)
    # Steps 10 to 12 are held already, for the rank that stands at 11.
    assert {c.plan.step: c.plan.digest for c in of_kind(Assign, met)} == {step: expected[step] for step in range(10)}
    through = [drop.through for drop in of_kind(Drop, met)]
    assert through == sorted(through)
    assert through[0] < 3
    assert not of_kind(Planned, met)


def test_a_drop_is_numbered_before_what_is_assigned_after_it():
    ranks = Ranks(make({"c0": (0, 1)}), ranks=(0,))
    for step in range(8):
        ranks.asks(0, step)
    last_drop = of_kind(Drop, ranks.met)[-1]
    again = [c for c in of_kind(Assign, ranks.connect(1)) if c.plan.step <= last_drop.through]
    assert again
    assert all(assign.number > last_drop.number for assign in again)


def test_past_its_bytes_a_constructor_is_given_only_what_is_asked_for():
    run = make(held_bytes=100)
    ranks = Ranks(run)
    run.coordinator.handle(BytesHeld("c0", 101))
    for step in range(1, 4):
        ranks.asks(1, step)
        ranks.asks(0, step)
    assert ranks.assigned("c0") == [0, 1, 2, 3]
    assert ranks.assigned("c1") == [0, 1, 2, 3, 4, 5]
    assert [c.plan.step for c in of_kind(Assign, run.coordinator.handle(BytesHeld("c0", 99)))] == [4, 5]


def test_the_end_is_told_once_to_every_constructor():
    run = make(max_epochs={"web": 1, "books": 1}, end={"web": "drop", "books": "drop"}, batch={"last": "pad"})
    ranks = Ranks(run)
    for step in range(1, 30):
        for rank in (0, 1):
            ranks.asks(rank, step)
    ends = of_kind(Finish, ranks.met)
    assert sorted(finish.constructor for finish in ends) == ["c0", "c1"]
    assert {finish.step for finish in ends} == {run.coordinator.end}
    assert not run.coordinator.exists(run.coordinator.end)


def test_a_load_rewinds_every_constructor_and_hands_out_from_there():
    ranks = Ranks(make())
    for step in range(1, 5):
        for rank in (0, 1):
            ranks.asks(rank, step)
    state = ranks.run.coordinator.plan(1).progress
    commands = ranks.run.coordinator.load(0, ranks.sessions[0], state)
    met = ranks.run.settle(commands)
    assert {(c.constructor, c.generation) for c in of_kind(Rewind, met)} == {("c0", 1), ("c1", 1)}
    assert met[0] == Abandon(1)
    assert isinstance(met[1], Rewind)
    assert [(c.generation, c.plan.step) for c in of_kind(Assign, met) if c.constructor == "c1"] == [
        (1, step) for step in (2, 3, 4)
    ]
    assert canonical_json(ranks.run.coordinator.progress_before(2)) == canonical_json(state)


def test_what_was_said_before_a_load_or_by_an_older_client_changes_nothing():
    ranks = Ranks(make())
    ranks.asks(0, 4)
    old_session = ranks.sessions[0]
    ranks.connect(0)
    state = ranks.run.coordinator.plan(1).progress
    ranks.run.settle(ranks.run.coordinator.load(0, ranks.sessions[0], state))
    for stale in (StepAsked(0, old_session, 1, 9), StepAsked(0, ranks.sessions[0], 0, 9)):
        assert ranks.run.coordinator.handle(stale) == []
    assert ranks.run.coordinator.generations.slowest == 2


def test_a_rank_that_was_connected_before_goes_on_where_it_stands():
    ranks = Ranks(make())
    for step in range(1, 6):
        ranks.asks(0, step)
        ranks.asks(1, step)
    ranks.leaves(0)
    assert not of_kind(Assign, ranks.connect(0, RankStanding(rank=0, generation=0, next_step=5)))
    assert ranks.run.coordinator.generations.slowest == 5


def test_a_rank_that_stands_ahead_of_the_run_is_refused():
    ranks = Ranks(make())
    with pytest.raises(StateError, match="rank 0 stands at step 40, but this run has planned 3 steps"):
        ranks.run.coordinator.connect(0, RankStanding(rank=0, generation=0, next_step=40))


def test_rows_of_a_lost_host_are_asked_of_another_and_its_steps_assigned_anew():
    run = make()
    ranks = Ranks(run)
    run.coordinator.connect(0)
    asked = of_kind(Examine, run.coordinator.handle(StepAsked(1, ranks.sessions[1], 0, 1)))
    assert not asked
    commands = run.coordinator.handle(HostLost("a"))
    assert run.coordinator.placement.alive == ("b",)
    assigns = of_kind(Assign, commands)
    assert {(c.constructor, c.plan.step, c.placement_version) for c in assigns} >= {("c0", 0, 2), ("c1", 1, 2)}
    assert {host for c in assigns for places in c.owners.values() for host, _ in places.values()} == {"b"}
    assert run.coordinator.handle(HostLost("a")) == []


def test_only_what_a_lost_host_owed_is_asked_again():
    run = make()
    begun = of_kind(Examine, run.coordinator.begin())
    owed = {(c.source, c.start, c.num_rows) for c in begun if c.host == "a"}
    assert owed
    again = of_kind(Examine, run.coordinator.handle(HostLost("a")))
    assert {(c.source, c.start, c.num_rows) for c in again} == owed
    assert {c.host for c in again} == {"b"}


def test_a_silent_host_is_asked_again():
    run = make()
    begun = [c for c in of_kind(Examine, run.coordinator.begin()) if c.host == "a"]
    assert run.coordinator.handle(HostSilent("a")) == begun


def test_the_last_host_gone_is_the_end_of_the_run_once_no_other_came_until_the_deadline():
    run = make(hosts=("a",))
    run.coordinator.begin()
    assert not of_kind(Fail, run.coordinator.handle_all([HostLost("a"), TimePassed(10.0), TimePassed(309.0)]))
    assert run.coordinator.waits_for == "a loader host in the place of a, which was the last one"
    (fail,) = run.coordinator.handle(TimePassed(310.0))
    assert isinstance(fail, Fail)
    assert str(fail.error).startswith("loader host a is gone and no other is left; start the run again")


def test_the_last_host_gone_names_the_rows_that_it_was_asked_for():
    run = make(hosts=("a",))
    asked = of_kind(Examine, run.coordinator.begin())
    run.coordinator.handle_all([HostLost("a"), TimePassed(0.0)])
    (fail,) = run.coordinator.handle(TimePassed(300.0))
    assert {request.source for request in asked} == {"web", "books"}
    for request in asked:
        assert f"{request.start} to {request.start + request.num_rows} of source {request.source!r}" in str(fail.error)
    assert str(fail.error).endswith("; see the log for what ended it")


def test_a_failed_run_stays_failed():
    run = make()
    run.coordinator.begin()
    error = EngineError("the disk is full")
    assert run.coordinator.handle(RunFailed(error)) == [Fail(error)]
    assert run.coordinator.handle(HostLost("a")) == []
    assert run.coordinator.recall(3) == [Fail(error)]
    assert run.coordinator.connect(0)[1] == [Fail(error)]


def test_an_error_of_the_users_code_while_planning_ends_the_run():
    def broken(num_tokens_D, num_patches_D):
        raise ZeroDivisionError("of the user")

    broken.is_flops, broken.flops_per_s = False, None
    run = make(cost={"backbone": broken})
    (fail,) = of_kind(Fail, run.settle(run.coordinator.begin()))
    assert "of the user" in str(fail.error)


def test_waiting_names_the_row_its_source_and_its_host():
    run = make()
    run.coordinator.begin()
    assert run.coordinator.waits_for == "row 0 of source 'books' on loader host a"


def test_waiting_for_what_is_to_be_written_says_where_it_is_looked_for():
    run = make(unending=["books"])
    asked = [one for one in of_kind(Examine, run.coordinator.begin()) if one.source == "books"]
    host = asked[0].host
    lacks = {"books": (0, "it waits for files to appear in /books")}
    run.coordinator.handle(RowsLacking(host, lacks))
    assert run.coordinator.waits_for == "row 0 of source 'books' to be written: it waits for files to appear in /books"
    run.coordinator.handle(RowsLacking(host, {}))
    assert run.coordinator.waits_for == f"row 0 of source 'books' on loader host {host}"
    run.coordinator.handle(RowsLacking(host, lacks))
    run.coordinator.handle(HostLost(host))
    assert "to be written" not in run.coordinator.waits_for


def test_rows_that_come_in_parts_make_the_same_steps():
    whole, parts = make(unending=["books"]), make(unending=["books"])
    expected = of_kind(Planned, whole.settle(whole.coordinator.begin()))
    found, waiting = [], parts.coordinator.begin()
    while waiting:
        command = waiting.pop(0)
        found += of_kind(Planned, [command])
        if isinstance(command, Examine):
            part = replace(command, num_rows=1) if command.source == "books" else command
            waiting += parts.coordinator.handle(parts.answer(part))
    assert [one.plan.digest for one in found] == [one.plan.digest for one in expected]
    assert len(found) == 3


def test_many_events_at_once_come_to_what_they_come_to_one_by_one():
    runs = [make(), make()]
    (one, other) = (Ranks(run) for run in runs)
    events = [StepAsked(rank, one.sessions[rank], 0, step) for step in (1, 2) for rank in (0, 1)]
    one_by_one = [command for event in events for command in runs[0].settle(runs[0].coordinator.handle(event))]
    at_once = other.run.settle(runs[1].coordinator.handle_all(events))

    def assigned(commands):
        return [(c.constructor, c.plan.step, c.plan.digest) for c in of_kind(Assign, commands)]

    assert sorted(assigned(at_once)) == sorted(assigned(one_by_one))
    assert runs[0].coordinator.next_step == runs[1].coordinator.next_step


def test_without_constructors_only_what_is_recalled_is_planned():
    run = make({})
    assert run.settle(run.coordinator.begin()) == []
    run.coordinator.connect(0)
    assert [c.plan.step for c in of_kind(Planned, run.settle(run.coordinator.recall(1)))] == [0, 1]
    assert run.coordinator.next_step == 2


def test_a_long_run_keeps_few_plans_and_positions_and_any_step_can_be_planned_again(monkeypatch):
    for name, value in (("PLANS_KEPT", 4), ("POSITION_EVERY", 2), ("POSITIONS_KEPT", 6)):
        monkeypatch.setattr(f"msd.coordinator.history.{name}", value)
    run = make({})
    digests = [command.plan.digest for command in of_kind(Planned, run.settle(run.coordinator.recall(60)))]
    assert sum(run.coordinator.plan(step) is not None for step in range(61)) <= 5
    assert sum(run.coordinator.progress_before(step) is not None for step in range(61)) <= 6 + 5
    for step in (0, 33, 7, 59):
        run.settle(run.coordinator.recall(step))
        assert run.coordinator.plan(step).digest == digests[step]


def test_tables_that_come_twice_or_unasked_change_nothing():
    run = make()
    begun = run.coordinator.begin()
    unasked = Examine("a", "web", 0, 40, 8)
    met = run.settle([begun[0], begun[0], unasked, *begun])
    assert [command.plan.step for command in of_kind(Planned, met)] == [0, 1, 2]

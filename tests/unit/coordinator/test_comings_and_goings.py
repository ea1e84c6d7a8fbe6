"""Hosts, shadows and constructors that are lost and that come: who is asked, and who is told again."""

from driven_ranks import Ranks, make, of_kind

from msd.coordinator.commands import Assign, Drained, Examine, Follow, Isolate, Replicate, Rewind, Seats
from msd.coordinator.events import (
    ConstructorJoined,
    ConstructorLost,
    HostJoined,
    HostLost,
    HostSilent,
    RowsEnded,
    StepAsked,
)
from msd.coordinator.placement import Placement
from msd.core.allocation import Seat, Seating


def owners(assigns) -> set[str]:
    return {host for assign in assigns for places in assign.owners.values() for host, _ in places.values()}


def asked(commands) -> set:
    return {(c.source, c.start, c.num_rows) for c in of_kind(Examine, commands)}


def test_a_lost_host_is_followed_by_a_shadow_that_gets_all_it_held():
    run = make(hosts=("a", "b"), shadows=("s",))
    held = {
        source: [i for i, name in enumerate(of) if name == "a"]
        for source, of in run.coordinator.placement.hosts.items()
    }
    owed = asked(c for c in of_kind(Examine, run.coordinator.begin()) if c.host == "a")
    commands = run.coordinator.handle(HostLost("a"))
    placement = run.coordinator.placement
    assert (placement.alive, run.coordinator.shadows) == (("b", "s"), ())
    assert {source: [i for i, name in enumerate(of) if name == "s"] for source, of in placement.hosts.items()} == held
    assert asked(commands) == owed
    assert {c.host for c in of_kind(Examine, commands)} == {"s"}


def test_a_shadow_holds_nothing_and_is_told_where_the_next_steps_begin():
    ranks = Ranks(make())
    (follow,) = of_kind(Follow, ranks.happens(HostJoined("s", is_shadow=True)))
    assert follow.host == "s"
    assert set(follow.cursors.values()) == {0}
    assert ranks.run.coordinator.shadows == ("s",)
    assert "s" not in {name for of in ranks.run.coordinator.placement.hosts.values() for name in of}
    later = of_kind(Follow, ranks.ask_all(range(1, 9)))
    assert later
    assert later[-1].cursors == ranks.run.new_planner(None).first_needed(ranks.run.coordinator.plan(6).progress)


def test_a_lost_shadow_changes_nothing():
    run = make(shadows=("s",))
    run.coordinator.begin()
    assert run.coordinator.handle(HostLost("s")) == []
    assert (run.coordinator.shadows, run.coordinator.placement.version) == ((), 1)


def test_a_host_that_comes_gets_its_share_and_knows_what_the_others_know():
    ranks = Ranks(make(partitions=3))
    ranks.happens(RowsEnded((("web", 70),), "SIGSEGV"))
    met = ranks.happens(HostJoined("c"))
    placement = ranks.run.coordinator.placement
    load = {host: sum(of.count(host) for of in placement.hosts.values()) for host in "abc"}
    assert load == {"a": 2, "b": 2, "c": 2}
    assert of_kind(Isolate, met) == [Isolate((("web", 70),))]
    assert len(of_kind(Replicate, met)) == 1
    assert not of_kind(Assign, met), "what was assigned is where it was"


def test_what_was_asked_of_a_host_before_it_gave_windows_away_is_asked_again_when_it_is_lost():
    run = make(partitions=3)
    begun = of_kind(Examine, run.coordinator.begin())
    owed = asked(c for c in begun if c.host == "a")
    assert not of_kind(Examine, run.coordinator.handle(HostJoined("c")))
    assert asked(run.coordinator.handle(HostLost("a"))) == owed


def test_two_hosts_lost_at_once_are_both_asked_for_again():
    run = make(hosts=("a", "b", "c", "d"))
    begun = of_kind(Examine, run.coordinator.begin())
    owed = asked(c for c in begun if c.host in "ab")
    again = of_kind(Examine, run.coordinator.handle_all([HostLost("a"), HostLost("b")]))
    assert asked(again) == owed
    assert {c.host for c in again} <= {"c", "d"}


def test_a_host_that_comes_again_unnoticed_is_asked_for_what_it_owed_and_its_steps_are_assigned_anew():
    run = make(hosts=("a",))
    begun = asked(run.coordinator.begin())
    commands = run.coordinator.handle(HostJoined("a"))
    assert asked(commands) == begun
    assert run.coordinator.placement.alive == ("a",)
    ranks = Ranks(make(hosts=("a",)))
    assert {assign.plan.step for assign in of_kind(Assign, ranks.happens(HostJoined("a")))} == {0, 1, 2}


def test_without_a_host_nothing_is_asked_or_assigned_until_one_comes():
    ranks = Ranks(make())
    lost = ranks.happens(HostLost("a"), HostLost("b"))
    assert not of_kind(Assign, lost)
    quiet = ranks.run.coordinator.handle_all([StepAsked(rank, ranks.sessions[rank], 0, 1) for rank in (0, 1)])
    assert not of_kind(Examine, quiet) + of_kind(Assign, quiet)
    assert ranks.run.coordinator.waits_for == "a loader host in the place of b, which was the last one"
    met = ranks.happens(HostJoined("s", is_shadow=True))
    assert owners(of_kind(Assign, met)) == {"s"}
    assert {c.plan.step for c in of_kind(Assign, met)} >= {1, 2, 3}
    assert ranks.run.coordinator.shadows == ()


def test_a_host_that_nobody_knows_is_no_loss():
    run = make()
    run.coordinator.begin()
    assert (
        run.coordinator.handle_all([HostLost("x"), HostSilent("x"), ConstructorLost("x"), ConstructorJoined("x")]) == []
    )


def test_a_lost_constructor_is_told_nothing_and_the_next_one_all_that_its_ranks_need():
    ranks = Ranks(make())
    ranks.ask_all(range(1, 4))
    lost = ranks.happens(ConstructorLost("c0"))
    lost += ranks.ask_all(range(4, 6))
    assert {c.constructor for c in of_kind(Assign, lost)} == {"c1"}
    (first, *rest) = ranks.run.coordinator.handle(ConstructorJoined("c0"))
    assert first == Rewind("c0", 0)
    assert [(c.constructor, c.plan.step) for c in of_kind(Assign, rest)] == [("c0", 5), ("c0", 6), ("c0", 7)]


def test_ranks_of_a_lost_constructor_hold_the_others_until_they_come_again():
    ranks = Ranks(make(depth=2))
    ranks.happens(ConstructorLost("c0"))
    ranks.asks(1, 1)
    assert ranks.run.coordinator.waits_for == "rank 0 to take step 0"
    standing = ranks.run.coordinator.rank_standing(0)
    met = ranks.happens(ConstructorJoined("c0")) + ranks.connect(0, standing)
    assert [c.plan.step for c in of_kind(Assign, met) if c.constructor == "c0"] == [0, 1]
    assert ranks.run.coordinator.rank_standing(0).session > standing.session


def test_a_source_that_is_seated_anew_is_asked_of_its_new_loaders_from_there_on():
    ranks = Ranks(make(hosts=("a", "b", "c"), partitions=1))
    before = asked(ranks.run.coordinator.begin())
    told = of_kind(Seats, ranks.run.coordinator.seat({"web": Seating((Seat(7, "c", 3),))}))
    assert {command.host: command.seats.get("web", ()) for command in told}["c"] == (Seat(7, "c", 3),)
    examines = [
        command
        for step in range(1, 30)
        for rank in ranks.sessions
        for command in ranks.run.coordinator.handle(StepAsked(rank, ranks.sessions[rank], 0, step))
    ]
    later = [c for c in of_kind(Examine, examines) if c.source == "web"]
    assert later
    assert {(c.host, c.partition) for c in later} == {("c", 7)}
    assert not before & asked(later)


def test_a_host_that_is_drained_is_done_when_its_last_row_was_let_go():
    ranks = Ranks(make(hosts=("a", "b"), partitions=1))
    allocation = ranks.run.coordinator.placement.allocation
    moves = {source: Seating((Seat(5, "b", 1),)) for source, of in allocation.items() if of.seats[0].host == "a"}
    ranks.note(ranks.run.coordinator.seat(moves))
    assert of_kind(Drained, ranks.note(ranks.run.coordinator.drain("a"))) == []
    met = ranks.ask_all(range(1, 40))
    assert of_kind(Drained, met) == [Drained("a")]
    assert ranks.run.coordinator.placement.alive == ("b",)
    assert owners(of_kind(Assign, met)[-4:]) == {"b"}


def test_what_a_lost_host_had_does_not_come_to_one_that_is_drained():
    ranks = Ranks(make(hosts=("a", "b", "c"), partitions=2))
    ranks.note(ranks.run.coordinator.drain("b"))
    ranks.happens(HostLost("a"))
    hosts = ranks.run.coordinator.placement.hosts
    assert {name for of in hosts.values() for name in of} <= {"b", "c"}
    assert sum(of.count("c") for of in hosts.values()) >= 3


def test_a_host_that_comes_to_a_run_that_is_sized_holds_what_it_is_given():
    ranks = Ranks(make(hosts=("a", "b"), partitions=2))
    ranks.note(ranks.run.coordinator.seat({"web": Seating((Seat(5, "b", 2),))}))
    met = ranks.happens(HostJoined("c"))
    assert of_kind(Seats, met) == [Seats("c", {})]
    assert "c" not in {name for of in ranks.run.coordinator.placement.hosts.values() for name in of}


def test_gauges_say_how_each_source_keeps_up():
    ranks = Ranks(make())
    ranks.ask_all(range(1, 4))
    gauges = ranks.run.coordinator.gauges()
    assert set(gauges) == {"web", "books"}
    assert all(gauge.consumed > 0 and gauge.wanted >= gauge.ready >= 0 for gauge in gauges.values())
    assert not any(gauge.is_starved for gauge in gauges.values())


def test_where_loaders_were_sized_once_a_host_that_comes_back_gets_its_share_with_its_workers():
    sized = {source: Seating((Seat(0, "a", 2), Seat(1, "b", 3))) for source in ("web", "books")}
    run = make(placement=Placement.seated(1, sized, ("a", "b")))
    told = of_kind(Seats, run.coordinator.begin())
    assert {command.host for command in told} == {"a", "b"}
    run.coordinator.handle(HostLost("b"))
    assert run.coordinator.placement.hosts == {"web": ("a", "a"), "books": ("a", "a")}
    met = of_kind(Seats, run.coordinator.handle(HostJoined("b")))
    assert {command.host for command in met} == {"a", "b"}
    placement = run.coordinator.placement
    assert sum(of.count("b") for of in placement.hosts.values()) == 2
    assert {seating.workers for seating in placement.allocation.values()} == {5}


def test_a_seat_on_a_host_that_is_gone_by_now_is_left_out():
    ranks = Ranks(make(hosts=("a", "b"), partitions=1))
    ranks.happens(HostLost("b"))
    before = ranks.run.coordinator.placement.hosts["books"]
    ranks.note(ranks.run.coordinator.seat({
        "web": Seating((Seat(5, "a", 1), Seat(6, "b", 2))),
        "books": Seating((Seat(5, "b", 1),)),
    }))  # fmt: skip
    assert ranks.run.coordinator.placement.hosts == {"web": ("a",), "books": before}

from dataclasses import replace

import pytest

from msd.core.allocation import Seat, Seating
from msd.core.demand import HostBudget, RowCost, SourceDemand
from msd.scaling.autoscale import decide
from msd.scaling.config import ScalingConfig
from msd.scaling.reading import Decision, HostReading, Reading, ScalerMemory, SourceReading

MIB = 1 << 20
SETTINGS = ScalingConfig(headroom=1.0, up_after=2, down_after=3, interval_s=1.0, cool_down_s=5.0)


def demand(*, share=1.0, prepare_s=0.01, source="web") -> SourceDemand:
    cost = RowCost(prepare_s=prepare_s, cpu_s=prepare_s, transfer_s=0.0, payload_bytes=1000.0)
    return SourceDemand(source=source, share=share, rows_per_sample=1.0, cost=cost, loader_bytes=MIB)


def source(*seats: Seat, now=None, ahead=None, occupancy=0.2, starved_s=0.0) -> SourceReading:
    now = now or demand()
    return SourceReading(
        seating=Seating(seats or (Seat(0, "a", 1),)),
        now=now,
        ahead=ahead or now,
        occupancy=occupancy,
        starved_s=starved_s,
    )


def host(*, cpus=8.0, held=0, state="up", **others) -> HostReading:
    budget = HostBudget(host="a", cpus=cpus, memory_bytes=100 * MIB, **others)
    return HostReading(budget=budget, memory_bytes=held, state=state)


def hosts(**found: HostReading) -> dict[str, HostReading]:
    return {name: replace(one, budget=replace(one.budget, host=name)) for name, one in found.items()}


def reading(rate=100.0, *, at=0.0, sources=None, **of_hosts: HostReading) -> Reading:
    found = hosts(**(of_hosts or {"a": host()}))
    return Reading(now_s=at, rate=rate, sources=sources or {"web": source()}, hosts=found)


def looks(readings: list[Reading], settings=SETTINGS) -> list[Decision]:
    memory, decisions = ScalerMemory(), []
    for one in readings:
        memory, decision = decide(memory, one, settings)
        decisions.append(decision)
    return decisions


def seats(decision: Decision, name="web") -> dict[str, int | None]:
    return {seat.host: seat.workers for seat in decision.seatings[name].seats}


def test_nothing_changes_where_workers_are_as_many_as_are_kept_busy():
    assert all(decision.is_empty for decision in looks([reading(at=n) for n in range(50)]))


def test_more_is_given_after_some_looks_in_a_row():
    first, second = looks([reading(300, at=n) for n in range(2)])
    assert first.is_empty
    assert seats(second) == {"a": 3}
    assert "1 -> 3 workers, for 2 looks: 300.0 samples/s" in second.reasons[0].text


def test_what_the_schedule_announces_is_given_at_once():
    coming = {"web": source(now=demand(share=0.1), ahead=demand(share=0.4))}
    (decision,) = looks([reading(1000, sources=coming)])
    assert seats(decision) == {"a": 4}
    assert "announced" in decision.reasons[0].text


@pytest.mark.parametrize("times", [2, 4])
def test_seconds_predicted_for_the_rows_that_come_scale_the_allocation(times):
    def workers(prepare_s):
        ahead = {"web": source(ahead=demand(prepare_s=prepare_s))}
        return seats(looks([reading(100, sources=ahead, a=host(cpus=64.0))])[0])["a"]

    assert workers(0.04 * times) == times * workers(0.04)


def test_a_source_whose_buffer_is_full_keeps_up_whatever_the_model_says():
    full = {"web": source(occupancy=1.0)}
    assert all(decision.is_empty for decision in looks([reading(300, at=n, sources=full) for n in range(5)]))
    starved = {"web": source(occupancy=1.0, starved_s=0.2)}
    assert not looks([reading(300, at=n, sources=starved) for n in range(2)])[1].is_empty


def test_less_is_given_later_and_only_when_it_would_not_be_missed_soon():
    many = {"web": source(Seat(0, "a", 8))}
    decisions = looks([reading(300, at=n, sources=many) for n in range(3)])
    assert [decision.is_empty for decision in decisions] == [True, True, False]
    assert seats(decisions[2]) == {"a": 5}
    near = {"web": source(Seat(0, "a", 4))}
    assert all(decision.is_empty for decision in looks([reading(300, at=n, sources=near) for n in range(20)]))


def test_after_a_change_nothing_is_taken_until_it_has_cooled_down():
    memory, given = ScalerMemory(), Seating((Seat(0, "a", 1),))
    changes = []
    for at, rate in enumerate([300, 300, 50, 50, 50, 50, 50, 50, 50]):
        one = {"web": replace(source(), seating=given)}
        memory, decision = decide(memory, reading(rate, at=at, sources=one), replace_settings(cool_down_s=6.0))
        if decision.seatings:
            given = decision.seatings["web"]
            changes.append((at, given.workers))
    assert changes[0] == (1, 3)
    assert all(at >= 7 for at, _ in changes[1:])


def replace_settings(**changes) -> ScalingConfig:
    values = {name: getattr(SETTINGS, name) for name in SETTINGS.__struct_fields__}
    return ScalingConfig(**{**values, **changes})


def test_workers_beyond_a_host_go_to_the_next_with_a_number_never_used():
    wants = {"web": source(Seat(3, "a", 2))}
    decision = looks([reading(500, at=n, sources=wants, a=host(cpus=3.0), b=host()) for n in range(2)])[1]
    assert decision.seatings["web"].seats == (Seat(3, "a", 3), Seat(4, "b", 2))


def test_hosts_are_started_for_workers_without_room_as_far_as_is_allowed():
    readings = [reading(500, at=n, a=host(cpus=2.0)) for n in range(2)]
    decision = looks(readings, replace_settings(max_hosts=3))[1]
    assert (seats(decision), decision.add_hosts) == ({"a": 2}, 2)
    refused = looks(readings)[1]
    assert refused.add_hosts == 0
    assert "2 loader hosts are lacking; scaling.max_hosts allows no more" in refused.reasons[-1].text


def test_hosts_that_come_already_are_not_started_again():
    readings = [reading(500, at=n, a=host(cpus=2.0), b=host(cpus=2.0, state="coming")) for n in range(2)]
    assert looks(readings, replace_settings(max_hosts=9))[1].add_hosts == 1


def test_a_host_above_its_memory_is_drained_at_once_and_what_it_had_moves():
    (decision,) = looks([reading(a=host(held=101 * MIB), b=host())])
    assert decision.drain == ("a",)
    assert decision.seatings["web"].seats == (Seat(1, "b", 1),)


def test_a_host_that_is_not_needed_is_drained_after_some_looks_a_training_host_last():
    both = {"web": source(Seat(0, "a", 1), Seat(1, "b", 1))}
    readings = [reading(100, at=n, sources=both, a=host(is_training=True), b=host()) for n in range(3)]
    decisions = looks(readings, replace_settings(min_hosts=1))
    assert [decision.drain for decision in decisions] == [(), (), ("b",)]
    assert {seat.host for seat in decisions[2].seatings["web"].seats} == {"a"}


def test_a_host_stays_where_the_others_would_be_too_full():
    both = {"web": source(Seat(0, "a", 2), Seat(1, "b", 1))}
    readings = [reading(250, at=n, sources=both, a=host(cpus=3.0), b=host(cpus=3.0)) for n in range(9)]
    assert all(decision.drain == () for decision in looks(readings, replace_settings(min_hosts=1)))


def test_a_loader_that_had_whatever_was_idle_has_workers_of_its_own_from_now_on():
    (decision,) = looks([reading(300, sources={"web": source(Seat(0, "a"))})])
    assert seats(decision) == {"a": 3}

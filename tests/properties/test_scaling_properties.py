"""Whatever sources cost and hosts have: budgets hold, more is never refused for less, and nothing swings."""

import itertools
import math

import hypothesis.strategies as st
from hypothesis import given, settings

from msd.core.allocation import Seat, Seating
from msd.core.demand import HostBudget, RowCost, SourceDemand
from msd.errors import ConfigError
from msd.scaling.autoscale import decide
from msd.scaling.config import ScalingConfig
from msd.scaling.need import memory_of
from msd.scaling.partition import partition_sources, sustained
from msd.scaling.reading import HostReading, Reading, ScalerMemory, SourceReading

MIB = 1 << 20
costs = st.builds(
    lambda prepare_ms, compute: RowCost(
        prepare_s=prepare_ms / 1000, cpu_s=prepare_ms * compute / 1000, transfer_s=0.0, payload_bytes=1000.0
    ),
    st.floats(0.01, 500.0),
    st.floats(0.05, 1.0),
)


def demands_of(number: int, share: float, rows: float, cost: RowCost, loader: int, worker: int) -> SourceDemand:
    return SourceDemand(
        source=f"s{number}", share=share, rows_per_sample=rows, cost=cost, loader_bytes=loader * MIB,
        worker_bytes=worker * MIB,
    )  # fmt: skip


one_demand = st.tuples(
    st.floats(0.01, 1.0), st.sampled_from([0.5, 1.0, 3.0]), costs, st.integers(1, 40), st.integers(0, 40)
)
demands = st.lists(one_demand, min_size=1, max_size=6).map(
    lambda many: [demands_of(number, *one) for number, one in enumerate(many)]
)
one_host = st.tuples(st.floats(0.25, 8.0), st.integers(50, 2000), st.booleans(), st.integers(1, 96))
hosts = st.lists(one_host, min_size=1, max_size=4).map(
    lambda many: [
        HostBudget(host=f"h{number}", cpus=cpus, memory_bytes=memory * MIB, is_training=near, most_workers=most)
        for number, (cpus, memory, near, most) in enumerate(many)
    ]
)
rates = st.floats(0.01, 10_000.0)


def sized(of, on, rate, headroom=1.25):
    """Return what is found, None where not even idle loaders fit."""
    try:
        return partition_sources(of, on, rate=rate, headroom=headroom)
    except ConfigError as error:
        if "not even idle loaders" not in str(error):
            raise
        return None


@settings(max_examples=150, deadline=None)
@given(demands, hosts, st.one_of(st.none(), rates))
def test_budgets_are_never_broken_and_what_is_promised_is_sustained(of, on, rate):
    sizing = sized(of, on, rate)
    if sizing is None:
        return
    by_name = {demand.source: demand for demand in of}
    assert sizing.allocation.keys() == by_name.keys()
    for budget, use in zip(on, sizing.hosts, strict=True):
        seats = [
            (source, seat)
            for source, seating in sizing.allocation.items()
            for seat in seating.seats
            if seat.host == budget.host
        ]
        assert sum(memory_of(by_name[source], seat.workers) for source, seat in seats) == use.memory_bytes
        assert use.memory_bytes <= budget.memory_bytes
        assert use.cpus <= budget.cpus * (1 + 1e-6) + 1e-9
        assert use.workers <= budget.most_workers
    assert sustained(sizing.allocation, of, on, busy=1.0) >= sizing.rate * sizing.headroom * (1 - 1e-6)
    assert sizing.is_met == (rate is None or sizing.rate == rate)
    assert rate is None or sizing.rate <= rate
    assert partition_sources(of, on, rate=rate) == sizing, "the same question has the same answer"


@settings(max_examples=100, deadline=None)
@given(demands, hosts, rates, rates)
def test_a_higher_rate_never_gets_fewer_workers_nor_is_met_where_a_lower_is_not(of, on, one, other):
    low, high = sorted((one, other))
    at_low, at_high = sized(of, on, low), sized(of, on, high)
    if at_low is None or at_high is None:
        assert at_low is at_high
        return
    assert at_high.rate >= at_low.rate
    assert at_low.is_met or not at_high.is_met
    for source, seating in at_low.allocation.items():
        assert (seating.workers or 0) <= (at_high.allocation[source].workers or 0)


SETTINGS = ScalingConfig(interval_s=1.0, up_after=2, down_after=3, cool_down_s=0.0, min_hosts=1, max_hosts=4)


def reading(at_s, of, seatings, on, rate) -> Reading:
    return Reading(
        now_s=float(at_s),
        rate=rate,
        sources={
            one.source: SourceReading(seating=seatings[one.source], now=one, ahead=one, occupancy=0.5) for one in of
        },
        hosts={budget.host: HostReading(budget=budget, memory_bytes=0) for budget in on},
    )


@settings(max_examples=100, deadline=None)
@given(demands, hosts, rates, st.integers(1, 40))
def test_a_constant_need_is_met_and_then_nothing_changes_any_more(of, on, rate, workers):
    """Whatever the sizes are at first: they go one way, once, and stay."""
    seatings = {one.source: Seating((Seat(0, on[0].host, workers),)) for one in of}
    # What they begin with fits, as in a run.
    first = sum(memory_of(one, workers) for one in of)
    on = [HostBudget(host=on[0].host, cpus=1e4, memory_bytes=first + (8 << 40)), *on[1:]]
    memory, there = ScalerMemory(), on
    history = {source: [seating.workers] for source, seating in seatings.items()}
    last_change = 0
    for at in range(40):
        memory, decision = decide(memory, reading(at, of, seatings, there, rate), SETTINGS)
        there = [budget for budget in there if budget.host not in decision.drain]
        for source, seating in decision.seatings.items():
            seatings[source] = seating
            history[source].append(seating.workers)
            last_change = at
    for source, counts in history.items():
        steps = [later - earlier for earlier, later in itertools.pairwise(counts) if later != earlier]
        assert all(step > 0 for step in steps) or all(step < 0 for step in steps), (source, counts)
    assert last_change < 30
    for one in of:
        wanted = SETTINGS.headroom * rate * one.share * one.rows_per_sample * one.cost.prepare_s
        assert seatings[one.source].workers >= min(math.floor(wanted), 90)


@settings(max_examples=60, deadline=None)
@given(demands, hosts, rates, st.integers(1, 8))
def test_scaling_never_puts_more_on_a_host_than_it_has(of, on, rate, looks):
    sizing = sized(of, on, rate / 10)
    if sizing is None:
        return
    seatings, memory = dict(sizing.allocation), ScalerMemory()
    by_name = {demand.source: demand for demand in of}
    for at in range(looks):
        memory, decision = decide(memory, reading(at, of, seatings, on, rate), SETTINGS)
        seatings.update(decision.seatings)
        on = [budget for budget in on if budget.host not in decision.drain]
        for budget in on:
            held = [
                (by_name[source], seat.workers)
                for source, seating in seatings.items()
                for seat in seating.seats
                if seat.host == budget.host
            ]
            assert sum(memory_of(*one) for one in held) <= budget.memory_bytes

import random

import pytest

from msd.core.demand import HostBudget
from msd.scaling.baselines import uniform
from msd.scaling.config import ScalingConfig
from msd.scaling.partition import partition_sources, sustained
from msd.simulator.scaling import SimulatedSource, _Simulation, simulate_scaling

GIB = 1 << 30
SETTINGS = ScalingConfig(max_hosts=4, min_hosts=1, lookahead_s=20.0)


def host(name="a", cpus=8.0) -> HostBudget:
    return HostBudget(host=name, cpus=cpus, memory_bytes=GIB)


def source(name="web", *, share=1.0, row_s=0.01, **others) -> SimulatedSource:
    def constant(value):
        return value if callable(value) else lambda _: value

    return SimulatedSource(name=name, share=constant(share), row_s=constant(row_s), **others)


def moved(at_s, *, over_s=100.0, begins_s=30.0) -> float:
    """The share that has moved from text to images by a time."""
    return 0.8 * min(1.0, max(0.0, (at_s - begins_s) / over_s))


CURRICULUM = [
    source("text", share=lambda at_s: 0.9 - moved(at_s), row_s=0.001),
    source("images", share=lambda at_s: 0.1 + moved(at_s), row_s=0.04),
]


def test_a_curriculum_is_followed_in_time_and_stalls_without_scaling():
    scaled = simulate_scaling(CURRICULUM, [host()], rate=150, seconds=240, settings=SETTINGS)
    fixed = simulate_scaling(CURRICULUM, [host()], rate=150, seconds=240, settings=None)
    assert scaled.waited < 0.005
    assert fixed.waited > 0.4
    assert {look.limited_by for look in fixed.looks[-50:]} == {"images"}
    assert scaled.allocation["images"].workers > 3 * fixed.allocation["images"].workers
    assert any("announced" in why for _, about, why in scaled.decisions if about == "images")


def test_hosts_are_started_where_one_is_not_enough_and_go_again():
    burst = [source("images", share=1.0, row_s=lambda row: 0.08 if 3_000 < row < 20_000 else 0.01)]
    run = simulate_scaling(burst, [host(cpus=4.0)], rate=100, seconds=600, settings=SETTINGS)
    counts = [look.hosts for look in run.looks]
    assert max(counts) == 3
    assert counts[-1] < 3
    assert run.waited < 0.01


def test_images_that_grow_along_their_shards_are_met_in_time_where_their_mean_is_late():
    def grows(row: float) -> float:
        return 0.005 + 0.045 * min(1.0, row / 12_000)

    exact = source("photos", row_s=grows)
    by_mean = source("photos", row_s=grows, predicted_s=lambda _: 0.0275)
    # Both begin with what the first rows need.
    start = partition_sources(_demands([exact]), [host()], rate=100).allocation
    runs = [
        simulate_scaling([one], [host()], rate=100, seconds=200, settings=SETTINGS, start=start)
        for one in (exact, by_mean)
    ]
    assert runs[0].waited < 0.005
    assert runs[1].waited > 5 * max(runs[0].waited, 0.005)


def _demands(sources):
    simulation = _Simulation(sources, [host()], rate=1.0, settings=None, start={}, tick_s=0.1, host_start_s=1.0)
    return [simulation._demand(flow, 0.0, 0.0) for flow in simulation._flows.values()]


def test_constant_need_is_met_once_and_nothing_changes_after():
    run = simulate_scaling([source()], [host()], rate=250, seconds=300, settings=SETTINGS)
    assert run.waited == 0.0
    assert run.decisions == ()
    assert len({look.workers["web"] for look in run.looks}) == 1


@pytest.mark.parametrize("seed", range(4))
def test_noise_turns_no_decision_around_more_than_once_in_a_thousand_looks(seed):
    draw = random.Random(seed)
    noisy = source("web", share=lambda _: draw.lognormvariate(0.0, 0.15), row_s=0.02)
    settings = ScalingConfig(max_hosts=1, interval_s=1.0)
    run = simulate_scaling([noisy], [host(cpus=16.0)], rate=150, seconds=1000, settings=settings, tick_s=0.5)
    assert len(run.looks) >= 999
    assert run.reversals("web") <= 1


def test_what_a_division_is_predicted_to_sustain_it_sustains():
    sources = [
        source("text", share=0.7, row_s=0.002, buffer_rows=16),
        source("photos", share=0.25, row_s=0.05, cpu_share=0.2, buffer_rows=16),
        source("films", share=0.05, row_s=0.4, cpu_share=0.1, buffer_rows=16),
    ]
    hosts = [host("a", 2.0), host("b", 2.0)]
    demands = _demands(sources)
    sized = partition_sources(demands, hosts, rate=100).allocation
    workers = sum(seating.workers for seating in sized.values())
    rates = {}
    for name, allocation in (("sized", sized), ("uniform", uniform(demands, hosts, workers))):
        run = simulate_scaling(sources, hosts, rate=10_000, seconds=60, settings=None, start=allocation)
        rates[name] = sum(look.rate for look in run.looks[-20:]) / 20
        assert rates[name] == pytest.approx(sustained(allocation, demands, hosts, busy=1.0), rel=0.1)
    assert rates["sized"] >= 1.3 * rates["uniform"]


def test_a_run_is_a_table():
    run = simulate_scaling(CURRICULUM, [host()], rate=50, seconds=10, settings=SETTINGS)
    assert len(run.table()) == 2 * len(run.looks)
    assert {"at_s", "source", "workers", "waited"} <= run.table()[0].keys()


def test_hundreds_of_sources_are_no_trouble():
    many = [source(f"s{n}", share=1 / 306, row_s=0.001 * (1 + n % 50)) for n in range(306)]
    hosts = [host(f"h{n}", 32.0) for n in range(16)]
    run = simulate_scaling(many, hosts, rate=5000, seconds=4, settings=ScalingConfig(max_hosts=16), tick_s=0.5)
    assert run.waited == 0.0

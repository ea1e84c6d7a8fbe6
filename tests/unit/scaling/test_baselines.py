from msd.core.demand import HostBudget, RowCost, SourceDemand
from msd.scaling.baselines import one_each, uniform

COST = RowCost(prepare_s=0.01, cpu_s=0.01, transfer_s=0.0, payload_bytes=1.0)
DEMANDS = [
    SourceDemand(source=name, share=1 / 3, rows_per_sample=1.0, cost=COST, loader_bytes=1) for name in ("a", "b", "c")
]
HOSTS = [HostBudget(host=name, cpus=1.0, memory_bytes=1) for name in ("h", "i")]


def test_one_each_deals_a_loader_of_one_worker_to_hosts_in_turn():
    found = one_each(DEMANDS, HOSTS)
    assert [(seat.host, seat.workers) for one in found.values() for seat in one.seats] == [("h", 1), ("i", 1), ("h", 1)]


def test_uniform_gives_every_source_as_many_workers_and_what_is_over_to_the_first():
    found = uniform(DEMANDS, HOSTS, 8)
    assert {source: one.workers for source, one in found.items()} == {"a": 3, "b": 3, "c": 2}
    assert {seat.host: seat.workers for seat in found["a"].seats} == {"h": 2, "i": 1}


def test_uniform_gives_one_each_at_least():
    assert {one.workers for one in uniform(DEMANDS, HOSTS, 1).values()} == {1}

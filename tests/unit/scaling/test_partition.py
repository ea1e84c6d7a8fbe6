import dataclasses
import math

import pytest

from msd.core.allocation import Seat, Seating
from msd.core.demand import HostBudget, RowCost, SourceDemand
from msd.errors import ConfigError
from msd.scaling.partition import partition_sources, sustained

MIB = 1 << 20


def demand(source="web", *, share=1.0, prepare_s=0.01, cpu_s=0.01, loader_mib=10, **others) -> SourceDemand:
    cost = RowCost(prepare_s=prepare_s, cpu_s=cpu_s, transfer_s=0.0, payload_bytes=1000.0)
    return SourceDemand(
        source=source, share=share, rows_per_sample=1.0, cost=cost, loader_bytes=loader_mib * MIB, **others
    )


def host(name="a", *, cpus=2.0, mib=1000, **others) -> HostBudget:
    return HostBudget(host=name, cpus=cpus, memory_bytes=mib * MIB, **others)


def test_a_source_gets_the_workers_that_its_rate_times_its_seconds_keep_busy():
    sizing = partition_sources([demand()], [host()], rate=120, headroom=1.25)
    assert sizing.is_met
    assert sizing.allocation == {"web": Seating((Seat(0, "a", 2),))}
    assert sizing.needs["web"].workers == pytest.approx(1.5)
    assert sizing.hosts[0].cpus == pytest.approx(1.5)


def test_a_source_that_waits_gets_more_workers_than_there_are_cores():
    sizing = partition_sources([demand(prepare_s=0.1)], [host()], rate=100, headroom=1.0)
    assert sizing.allocation["web"].workers == 10
    assert sizing.hosts[0].cpus == pytest.approx(1.0)


def test_a_source_that_no_host_has_room_for_is_divided():
    sizing = partition_sources([demand()], [host("a"), host("b")], rate=300, headroom=1.0)
    assert sizing.allocation["web"].seats == (Seat(0, "a", 2), Seat(1, "b", 1))
    assert sustained(sizing.allocation, [demand()], [host("a"), host("b")], busy=1.0) == pytest.approx(300)


def test_training_hosts_are_filled_before_others():
    hosts = [host("far"), host("near", is_training=True)]
    near = partition_sources([demand()], hosts, rate=100, headroom=1.0)
    assert {seat.host for seat in near.allocation["web"].seats} == {"near"}
    both = partition_sources([demand()], hosts, rate=300, headroom=1.0)
    assert {seat.host: seat.workers for seat in both.allocation["web"].seats} == {"near": 2, "far": 1}


def test_a_rate_that_cannot_be_met_names_what_is_short_and_the_highest_that_can():
    sizing = partition_sources([demand()], [host()], rate=1000, headroom=1.25)
    (short,) = sizing.shortfalls
    assert (short.what, short.available) == ("cores", 2.0)
    assert short.needed == pytest.approx(12.5)
    assert sizing.rate == pytest.approx(160, rel=1e-3)


def test_without_a_rate_the_highest_that_fits_is_found():
    sizing = partition_sources([demand(), demand("books", share=1.0)], [host()], rate=None, headroom=1.0)
    assert sizing.rate == pytest.approx(100, rel=1e-3)
    assert sizing.is_met


def test_memory_is_never_overrun():
    demands = [demand(f"s{n}", share=1 / 8, loader_mib=100) for n in range(8)]
    sizing = partition_sources(demands, [host("a", mib=450), host("b", mib=450)], rate=10, headroom=1.0)
    assert [use.memory_bytes for use in sizing.hosts] == [400 * MIB, 400 * MIB]
    with pytest.raises(ConfigError, match="memory: 800 MiB needed, 700 there"):
        partition_sources(demands, [host("a", mib=350), host("b", mib=350)], rate=10, headroom=1.0)


def test_processes_are_paid_for_in_memory():
    heavy = demand(runs_in="processes", worker_bytes=100 * MIB)
    sizing = partition_sources([heavy], [host(cpus=64, mib=320)], rate=10_000, headroom=1.0)
    assert sizing.allocation["web"].workers == 4
    assert not sizing.is_met


@pytest.mark.parametrize(
    ("rate", "hosts", "shares", "message"),
    [
        (0.0, [host()], 1.0, "above 0"),
        (math.nan, [host()], 1.0, "above 0"),
        (1.0, [], 1.0, "at least one loader host"),
        (1.0, [host(cpus=0.0)], 1.0, "not even idle loaders"),
        (1.0, [host()], 0.0, "no source is drawn"),
    ],
)
def test_what_cannot_mean_anything_is_said(rate, hosts, shares, message):
    with pytest.raises(ConfigError, match=message):
        partition_sources([demand(share=shares)], hosts, rate=rate)


def test_what_is_sustained_is_bounded_by_workers_and_by_cores():
    one = {"web": Seating((Seat(0, "a", 1),))}
    assert sustained(one, [demand()], [host()], busy=1.0) == pytest.approx(100)
    four = {"web": Seating((Seat(0, "a", 4),))}
    assert sustained(four, [demand()], [host()], busy=1.0) == pytest.approx(200)
    assert sustained(four, [dataclasses.replace(demand(), share=0.0)], [host()], busy=1.0) == math.inf

import pytest

from msd.core.allocation import Seat, Seating
from msd.core.demand import HostBudget
from msd.scaling.gauges import Counters, Gauges, SourceCounters
from msd.scaling.reading import HostReading

HOSTS = {"a": HostReading(budget=HostBudget(host="a", cpus=2.0, memory_bytes=5000), memory_bytes=1000)}
SEATS = {name: Seating((Seat(0, "a", 1),)) for name in ("web", "photos")}


def of_source(**changes) -> SourceCounters:
    zeros = dict.fromkeys(SourceCounters.__dataclass_fields__, 0)
    return SourceCounters(**{**zeros, "wanted": 100, "ready": 50, **changes})


def counters(at_s, web=None, photos=None, *, waited_s=0.0) -> Counters:
    sources = {"web": web or of_source(), "photos": photos or of_source()}
    return Counters(now_s=at_s, sources=sources, seats=SEATS, hosts=HOSTS, waited_s=waited_s)


def gauges(profiled=None) -> Gauges:
    return Gauges(profiled or {}, most_loaders={"web": 4, "photos": 4})


def read(gauge, now, *, ahead=lambda name, share: share, grows=lambda name: 1.0):
    return gauge.reading(now, ahead, grows)


def test_rates_shares_and_costs_are_those_since_the_look_before():
    gauge = gauges()
    assert read(gauge, counters(10.0)) is None
    web = of_source(samples=300, rows_examined=150, parts=300, rows_transformed=150, transform_s=0.3)
    photos = of_source(samples=100, rows_examined=120, parts=100, rows_transformed=120, transform_s=6.0, ready=100)
    found = read(gauge, counters(12.0, web, photos))
    assert found.rate == pytest.approx(200.0)
    assert {name: one.now.share for name, one in found.sources.items()} == {"web": 0.75, "photos": 0.25}
    assert found.sources["photos"].now.cost.prepare_s == pytest.approx(0.05)
    assert found.sources["photos"].now.rows_per_sample == pytest.approx(1.2)
    assert (found.sources["web"].occupancy, found.sources["photos"].occupancy) == (0.5, 1.0)
    assert found.hosts["a"].memory_bytes == 1000


def test_ranks_that_waited_are_taken_to_ask_for_more():
    gauge = gauges()
    read(gauge, counters(0.0))
    rows = {"samples": 100, "rows_transformed": 100, "transform_s": 1.0}
    found = read(gauge, counters(2.0, of_source(**rows), of_source(**rows, starved_s=1.5), waited_s=1.0))
    assert found.rate == pytest.approx(200.0)
    assert found.sources["photos"].starved_s == 1.5


def test_what_lies_ahead_is_the_peak_share_and_rows_that_grow():
    gauge = gauges()
    read(gauge, counters(0.0))
    rows = {"samples": 100, "rows_transformed": 100, "transform_s": 1.0}
    found = read(
        gauge,
        counters(1.0, of_source(**rows), of_source(**rows)),
        ahead=lambda name, share: 0.9,
        grows=lambda name: 3.0,
    )
    later = found.sources["photos"].ahead
    assert later.share == 0.9
    assert later.cost.prepare_s == pytest.approx(0.03)


def test_counters_that_began_anew_say_nothing_until_the_next_look():
    gauge = gauges()
    rows = {"samples": 100, "rows_transformed": 100, "transform_s": 1.0}
    read(gauge, counters(0.0, of_source(**rows), of_source(**rows)))
    assert read(gauge, counters(1.0)) is None
    assert read(gauge, counters(2.0, of_source(**rows), of_source(**rows))) is not None


def test_a_source_of_which_nothing_is_known_is_left_alone():
    gauge = gauges()
    read(gauge, counters(0.0))
    found = read(gauge, counters(1.0, of_source(samples=10), of_source(samples=1)))
    assert found.sources == {}

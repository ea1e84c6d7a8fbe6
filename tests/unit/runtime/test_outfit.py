from types import SimpleNamespace
from typing import Any

from msd.core.allocation import Seat, Seating
from msd.runtime.dask.outfit import placement_of

RUN: Any = SimpleNamespace(
    config=SimpleNamespace(sources={"web": None, "photos": None}, loaders=1, runtime=SimpleNamespace(workers=2)),
    orders={},
    demands=(),
)
KNOWN = {
    "web": Seating((Seat(0, "a", 1),)),
    "photos": Seating((Seat(3, "b", 4), Seat(5, "c", 2)), is_striped=True),
}


def test_a_first_placement_deals_loaders_to_the_hosts_there_are():
    placement = placement_of(RUN, ["b", "a"], {})
    assert placement.hosts == {"web": ("a",), "photos": ("b",)}
    assert placement.alive == ("a", "b")


def test_a_planner_that_is_made_anew_begins_with_the_loaders_there_were():
    placement = placement_of(RUN, ["c", "b", "a", "d"], KNOWN)
    assert dict(placement.allocation) == KNOWN
    assert set(placement.alive) == {"a", "b", "c", "d"}, "also a host that holds nothing yet"


def test_loaders_of_hosts_that_are_gone_go_to_others():
    placement = placement_of(RUN, ["a", "c"], KNOWN)
    assert placement.alive == ("a", "c")
    assert placement.allocation["web"] == KNOWN["web"]
    (moved, stays) = placement.allocation["photos"].seats
    assert moved.workers == 4
    assert moved.host in {"a", "c"}
    assert stays == Seat(5, "c", 2)


def test_loaders_of_other_sources_are_not_taken_over():
    assert placement_of(RUN, ["a"], {"web": KNOWN["web"]}).hosts == {"web": ("a",), "photos": ("a",)}

import numpy as np
import pytest

from msd.coordinator import Placement, deal
from msd.core.allocation import Seat, Seating
from msd.core.order import SourceOrder
from msd.testing.blocks import made_up_blocks
from msd.testing.tables import feed_of, row, settings_of, steps_of


def order_of(rows_B=(3, 0, 5, 2, 4), *, source="web", window_blocks=2) -> SourceOrder:
    return SourceOrder(seed=1, source=source, blocks=made_up_blocks(rows_B), shuffle=True, window_blocks=window_blocks)


def test_partitions_are_dealt_so_that_hosts_hold_about_the_same_number():
    placement = deal({f"s{n}": 1 + n % 3 for n in range(10)}, ["a", "b", "c"])
    held = [sum(names.count(host) for names in placement.hosts.values()) for host in "abc"]
    assert max(held) - min(held) <= 1
    assert placement.alive == ("a", "b", "c")


def test_windows_are_dealt_to_partitions_in_turn_through_all_epochs():
    placement = deal({"web": 2}, ["a", "b"])
    order = order_of(window_blocks=1, rows_B=(4, 4, 4))
    owners = [placement.partition_of(order, ordinal) for ordinal in range(0, 24, 4)]
    assert owners == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("window_blocks", [1, 2, 5])
def test_numbers_of_many_windows_are_those_of_each(window_blocks):
    order = order_of(window_blocks=window_blocks)
    ordinal_N = np.array([40, 0, 3, 13, 14, 27, 28, 2, 2])
    expected = [
        (window := order.window_at(ordinal)).epoch * order.windows_per_epoch + window.number
        for ordinal in ordinal_N.tolist()
    ]
    assert order.window_numbers(ordinal_N).tolist() == expected


def test_numbers_of_no_window_are_none():
    assert order_of(()).window_numbers(np.empty(0, dtype=np.int64)).tolist() == []


def test_owners_of_a_plan_are_those_of_its_rows_bucket_by_bucket():
    sources = {"web": [row(20)] * 14, "books": [row(50)] * 14}
    settings = settings_of(sources)
    from msd.planner.planner import Planner

    plan = next(steps_of(Planner(settings), feed_of(sources, settings)))
    orders = {name: order_of(source=name) for name in sources}
    placement = deal({"web": 3, "books": 1}, ["a", "b"])
    owners = placement.owners(plan, orders)
    assert len(owners) == plan.num_buckets
    for bucket, of_bucket in enumerate(owners):
        expected: dict[str, dict[int, tuple[str, int]]] = {}
        for sample_id in plan.sample_ids(bucket):
            order = orders[sample_id.source]
            place = (placement.host_of(order, sample_id.ordinal), placement.partition_of(order, sample_id.ordinal))
            expected.setdefault(sample_id.source, {})[sample_id.ordinal] = place
        assert of_bucket == expected


def test_partitions_of_a_lost_host_go_to_those_that_hold_least():
    placement = Placement.of(1, {"web": ("a", "b", "b"), "books": ("a",)}, ("a", "b", "c"))
    moved = placement.without("a")
    assert moved.hosts == {"web": ("c", "b", "b"), "books": ("c",)}
    assert (moved.version, moved.alive) == (2, ("b", "c"))


def test_a_host_that_held_nothing_takes_over_when_the_others_are_gone():
    placement = deal({"web": 1}, ["a", "b", "c"]).without("a").without("b")
    assert placement.hosts == {"web": ("c",)}


def test_what_the_last_host_held_goes_to_the_next_that_comes():
    placement = deal({"web": 2, "books": 1}, ["a"]).without("a")
    assert (placement.alive, placement.hosts) == ((), {"web": ("a", "a"), "books": ("a",)})
    placement = placement.with_host("b")
    assert (placement.alive, placement.hosts) == (("b",), {"web": ("b", "b"), "books": ("b",)})
    assert placement.version == 3


def test_a_host_that_comes_gets_its_share_from_those_that_hold_most():
    placement = Placement.of(1, {"web": ("a", "a", "a"), "books": ("b",), "code": ("a", "b")}, ("a", "b"))
    joined = placement.with_host("c")
    load = {name: sum(names.count(name) for names in joined.hosts.values()) for name in "abc"}
    assert load == {"a": 2, "b": 2, "c": 2}
    moved = [
        (s, i) for s, names in placement.hosts.items() for i, name in enumerate(names) if joined.hosts[s][i] != name
    ]
    assert {joined.hosts[source][index] for source, index in moved} == {"c"}
    assert joined.with_host("d").version == 3


def test_a_shadow_takes_over_all_that_a_lost_host_held():
    placement = Placement.of(1, {"web": ("a", "b"), "books": ("a",)}, ("a", "b")).handed_over("a", "s")
    assert (placement.hosts, placement.alive) == ({"web": ("s", "b"), "books": ("s",)}, ("b", "s"))


def seating(*hosts: str, first: int = 0, is_striped: bool = False) -> Seating:
    return Seating(tuple(Seat(first + number, host) for number, host in enumerate(hosts)), is_striped)


def test_a_change_holds_from_its_ordinal_on_and_rows_before_stay_where_they_are():
    order = order_of(rows_B=(4, 4, 4), window_blocks=1)
    before = Placement.of(1, {"web": ("a", "b")}, ("a", "b"))
    changed = before.changed("web", seating("c", "a", first=7), start=6)
    assert [changed.host_of(order, n) for n in range(6)] == [before.host_of(order, n) for n in range(6)]
    assert [changed.host_of(order, n) for n in (6, 8, 12)] == ["a", "c", "a"]
    assert (changed.version, changed.hosts) == (2, {"web": ("c", "a")})
    assert set(changed.seats_of("a")["web"]) == {Seat(0, "a"), Seat(8, "a")}


def test_an_era_goes_when_its_last_row_was_let_go():
    placement = Placement.of(1, {"web": ("a",)}, ("a", "b")).changed("web", seating("b", first=1), start=10)
    assert placement.pruned({"web": 9}) is placement
    pruned = placement.pruned({"web": 10})
    assert pruned.seats_of("a") == {}
    assert (pruned.version, pruned.eras["web"][0].start) == (2, 0)


def test_owners_over_a_change_are_those_of_each_row():
    order = order_of(rows_B=(4, 4, 4), window_blocks=1)
    placement = Placement.of(1, {"web": ("a", "b")}, ("a", "b")).changed("web", seating("c", first=5), start=6)
    ordinal_N = np.array([0, 11, 4, 6, 5])
    expected = [(placement.host_of(order, n), placement.partition_of(order, n)) for n in ordinal_N.tolist()]
    assert placement._places(order, ordinal_N) == expected


def test_stripes_divide_one_window_among_all_loaders():
    order = order_of(rows_B=(1000,), window_blocks=1)
    striped = Placement.seated(1, {"web": seating("a", "b", is_striped=True)}, ("a", "b"))
    assert [striped.host_of(order, n) for n in (0, 63, 64, 127, 128)] == ["a", "a", "b", "b", "a"]
    whole = Placement.seated(1, {"web": seating("a", "b")}, ("a", "b"))
    assert {whole.host_of(order, n) for n in range(0, 1000, 64)} == {"a"}


def test_a_lost_host_is_replaced_in_every_era_by_the_same_one():
    placement = Placement.of(1, {"web": ("a", "b")}, ("a", "b", "c"))
    changed = placement.changed("web", Seating((Seat(0, "a", 2), Seat(2, "c"))), start=10).without("a")
    seats = [seat for era in changed.eras["web"] for seat in era.seating.seats if seat.partition == 0]
    assert [seat.host for seat in seats] == ["b", "b"]
    assert seats[1].workers == 2


def test_loaders_have_turns_in_proportion_to_their_workers():
    seats = (Seat(0, "a", 4), Seat(1, "b", 2), Seat(2, "c", 6))
    assert Seating(seats).turns == (0, 1, 2, 0, 2, 2)
    assert Seating((Seat(0, "a"), Seat(1, "b"))).turns == (0, 1)

import numpy as np
import pytest

from msd.coordinator import Placement, deal
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
    placement = Placement(1, {"web": ("a", "b", "b"), "books": ("a",)}, ("a", "b", "c"))
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
    placement = Placement(1, {"web": ("a", "a", "a"), "books": ("b",), "code": ("a", "b")}, ("a", "b"))
    joined = placement.with_host("c")
    load = {name: sum(names.count(name) for names in joined.hosts.values()) for name in "abc"}
    assert load == {"a": 2, "b": 2, "c": 2}
    moved = [
        (s, i) for s, names in placement.hosts.items() for i, name in enumerate(names) if joined.hosts[s][i] != name
    ]
    assert {joined.hosts[source][index] for source, index in moved} == {"c"}
    assert joined.with_host("d").version == 3


def test_a_shadow_takes_over_all_that_a_lost_host_held():
    placement = Placement(1, {"web": ("a", "b"), "books": ("a",)}, ("a", "b")).handed_over("a", "s")
    assert (placement.hosts, placement.alive) == ({"web": ("s", "b"), "books": ("s",)}, ("b", "s"))

"""Batches of a run in one process: rows are shared by ranks, and not held longer than they are."""

import pytest

from msd.build import build_constructor, build_loaders, build_orders, build_planner, index_all, plan_steps
from msd.runtime.assembly import Assembly
from msd.testing.scenarios import SCENARIOS


@pytest.fixture
def made():
    config = SCENARIOS["text"](mesh={"dp": 2, "tp": 2})
    orders = build_orders(config, index_all(config))
    loaders = build_loaders(config, orders)
    yield (
        Assembly(build_constructor(config), loaders),
        list(plan_steps(build_planner(config, orders), loaders, steps=4)),
    )
    for loader in loaders.values():
        loader.close()


def test_ranks_of_one_bucket_share_its_rows_and_others_have_their_own(made):
    assembly, plans = made
    batches = [assembly.batch(plans[0], rank) for rank in range(4)]
    rows = [batch.microbatches[0].input_ids for batch in batches]
    assert [rows[0] is other for other in rows] == [True, True, False, False]
    assert rows[2] is rows[3]


def test_two_steps_are_held_and_what_was_dropped_is_made_again_alike(made):
    assembly, plans = made
    first = assembly.batch(plans[0], 0).microbatches[0].input_ids
    for plan in plans[1:]:
        for rank in range(4):
            assembly.batch(plan, rank)
    again = assembly.batch(plans[0], 0).microbatches[0].input_ids
    assert again is not first
    assert (again == first).all()


def test_nothing_is_shared_with_what_came_before_another_generation(made):
    assembly, plans = made
    first = assembly.batch(plans[0], 0).microbatches[0].input_ids
    assembly.clear()
    assert assembly.batch(plans[0], 0).microbatches[0].input_ids is not first

"""Long documents lie in as few slots as the sequences that hold them fill."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msd.core.mesh import Mesh
from msd.errors import ConfigError
from msd.planner.check import check_plan
from msd.planner.planner import Planner
from msd.planner.strategy import balance_and_broadcast, mix_and_pack
from msd.testing.tables import LengthCost, Part, Row, feed_of, row, settings_of, steps_of

LONG = 16
COST = {"backbone": LengthCost(1.0, 0.05), "encoder": LengthCost(1.0, 0.2)}


def gathered(graph, context):
    return balance_and_broadcast(mix_and_pack(graph, context, apart=LONG).distribute("dp").gather(LONG), context)


def packed(graph, context):
    return mix_and_pack(graph, context, apart=LONG).distribute("dp")


def plans_of(made, strategy, **changes):
    chosen = settings_of(made, strategy=strategy, sequence_length=64, cost=COST, **changes)
    return list(zip(range(3), steps_of(Planner(chosen), feed_of(made, chosen)), strict=False))


def slots_with_long(plan):
    return sorted(set(plan.slot_D[plan.length_D >= LONG].tolist()))


def slots_needed(plan, per_slot):
    """Slots that the sequences with long documents fill, in a plan that leaves sequences as they were packed."""
    sequence_D = (plan.bucket_D * plan.num_microbatches + plan.slot_D) * plan.row_length // 64 + plan.offset_D // 64
    return -(-len(set(sequence_D[plan.length_D >= LONG].tolist())) // per_slot)


@settings(derandomize=True, deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    lengths=st.lists(st.integers(1, 64), min_size=20, max_size=60),
    mesh=st.sampled_from([{"dp": 1}, {"dp": 2}, {"dp": 4}, {"dp": 2, "pp": 2}]),
    num_microbatches=st.sampled_from([1, 2, 4]),
    is_finite=st.booleans(),
)
def test_slots_with_long_documents_are_as_few_as_their_sequences_and_membership_stays(
    lengths, mesh, num_microbatches, is_finite
):
    made = {"a": [row(length) for length in lengths], "b": [Row((Part(30, 9),)), row(3), row(20)]}
    changes = {"mesh": Mesh.of(**mesh), "num_microbatches": num_microbatches, "global_batch_size": 32}
    if is_finite:
        changes |= {"max_epochs": {"a": 1, "b": 1}, "end": {"a": "drop", "b": "drop"}, "batch": {"last": "pad"}}
    found, others = plans_of(made, gathered, **changes), plans_of(made, packed, **changes)
    assert [plan.membership_digest for _, plan in found] == [plan.membership_digest for _, plan in others]
    for (_, plan), (_, other) in zip(found, others, strict=True):
        assert check_plan(plan) == []
        slots, needed = slots_with_long(plan), slots_needed(other, 32 // num_microbatches)
        assert len(slots) <= needed
        if "pp" not in mesh:
            assert slots == list(range(len(slots)))


def test_buckets_are_even_over_both_kinds_of_slots():
    draw = np.random.Generator(np.random.Philox(key=9))
    lengths = np.where(draw.random(600) < 0.1, draw.integers(16, 60, 600), draw.integers(1, 12, 600)).tolist()
    made = {"a": [row(length) for length in lengths]}
    changes = {"mesh": Mesh.of(dp=4), "num_microbatches": 4, "global_batch_size": 64}
    for _, plan in plans_of(made, gathered, **changes):
        assert plan.report.imbalance < 0.01
        assert plan.report.lockstep < 0.02
        assert len(slots_with_long(plan)) < 4


def test_whole_sequences_are_gathered_where_documents_were_cut():
    def concat(graph, context):
        return balance_and_broadcast(mix_and_pack(graph, context).distribute("dp").gather(LONG), context)

    made = {"a": [row(length) for length in [5, 4, 3, 6] * 9 + [60, 50]]}
    changes = {"mesh": Mesh.of(dp=2), "num_microbatches": 4, "global_batch_size": 16, "packing": "concat"}
    for _, plan in plans_of(made, concat, **changes):
        assert slots_with_long(plan) == list(range(slots_needed(plan, 4)))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda graph: graph.gather(LONG), "gather needs distribute before it"),
        (lambda graph: graph.distribute("dp").gather(1), "gather: min_tokens must be at least 2, got 1"),
        (lambda graph: graph.distribute("dp").gather(8).gather(9), "gather stands twice"),
    ],
)
def test_a_gather_that_means_nothing_is_refused(ask, message):
    with pytest.raises(ConfigError, match=message):
        plans_of({"a": [row(5)]}, lambda graph, context: ask(mix_and_pack(graph, context)), mesh=Mesh.of(dp=2))

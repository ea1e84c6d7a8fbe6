"""Layouts over random meshes, costs and modalities: what a step holds, caps and counts stay, every time alike."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msd.core.mesh import Mesh
from msd.planner.check import check_plan
from msd.planner.config import BalanceConfig
from msd.planner.planner import Planner
from msd.testing.tables import LengthCost, Part, Row, feed_of, settings_of, steps_of

PROFILE = settings(derandomize=True, deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
LENGTH = 96
STEPS = 2
SHAPES = [
    (Mesh.of(dp=1), 16),
    (Mesh.of(dp=16), 1),
    (Mesh.of(dp=2, cp=2), 4),
    (Mesh.of(pp=3, dp=4), 2),
    (Mesh.of(pp=2, dp=1), 8),
]


class PatchCost:
    is_flops = False
    flops_per_s = None

    def __call__(self, num_tokens_D, num_patches_D):
        return num_patches_D.astype(np.float64)


@st.composite
def documents(draw):
    num_tokens = draw(st.one_of(st.integers(1, 12), st.integers(1, LENGTH)))
    has_image = draw(st.sampled_from([False, False, False, True]))
    return Row((Part(num_tokens, draw(st.integers(1, num_tokens)) if has_image else 0),))


@st.composite
def balances(draw):
    across = draw(st.sampled_from([["bucket"], ["microbatch"], ["bucket", "microbatch"]]))
    possible = ["auto", *["cost", "pipeline"] * ("bucket" in across), *["lockstep"] * ("microbatch" in across)]
    return BalanceConfig(
        method=draw(st.sampled_from(["lpt", "karmarkar_karp", "zigzag", "none"])),
        across=across,
        objective=draw(st.sampled_from(possible)),
        min_gain=draw(st.sampled_from([0.0, 0.3])),
        align=draw(st.sampled_from([[], ["image"]])),
    )


def planned(made, mesh, num_microbatches, balance, modules, packing):
    cost = {"backbone": LengthCost(1.0, 0.05), "encoder": PatchCost()}
    chosen = settings_of(
        made, sequence_length=LENGTH, global_batch_size=16, document_multiple=4, mesh=mesh, packing=packing,
        num_microbatches=num_microbatches, balance=balance, cost={module: cost[module] for module in modules},
    )  # fmt: skip
    steps = steps_of(Planner(chosen), feed_of(made, chosen, chunk=13))
    return [plan for _, plan in zip(range(STEPS), steps, strict=False)]


@pytest.mark.parametrize("packing", ["best_fit", "concat", "none"])
@PROFILE
@given(
    rows=st.lists(documents(), min_size=5, max_size=40),
    shape=st.sampled_from(SHAPES),
    balance=balances(),
    modules=st.sampled_from([("backbone",), ("backbone", "encoder"), ("encoder",)]),
)
def test_a_layout_keeps_what_a_step_holds_its_caps_and_its_counts(packing, rows, shape, balance, modules):
    made = {"a": rows}
    plans = planned(made, *shape, balance, modules, packing)
    reference = planned(made, Mesh.of(dp=1), 1, BalanceConfig(method="none"), modules, packing)
    assert [plan.membership_digest for plan in plans] == [plan.membership_digest for plan in reference]
    assert [plan.digest for plan in plans] == [plan.digest for plan in planned(made, *shape, balance, modules, packing)]
    for plan in plans:
        assert check_plan(plan) == []
        rows_of = [len(plan.documents_of(b, m)) for b in range(plan.num_buckets) for m in range(plan.num_microbatches)]
        assert min(rows_of) > 0
        assert plan.dummy_BM.any() <= bool(balance.align)


@PROFILE
@given(rows=st.lists(documents(), min_size=5, max_size=40), shape=st.sampled_from(SHAPES[:3]), balance=balances())
def test_a_layout_is_never_worse_than_packed_in_what_it_is_judged_by(rows, shape, balance):
    # The report is of all modules together; with one module that is what balancing sees.
    for plan in planned({"a": rows}, *shape, balance, ("backbone",), "best_fit"):
        report = plan.report
        excess = {"cost": report.imbalance, "pipeline": report.imbalance, "lockstep": report.lockstep}
        packed = {
            "cost": report.packed_imbalance, "pipeline": report.packed_imbalance, "lockstep": report.packed_lockstep,
        }  # fmt: skip
        for found in (excess, packed):
            found["auto"] = found["cost"] * ("bucket" in balance.across) + found["lockstep"] * (
                "microbatch" in balance.across
            )
        assert excess[balance.objective] <= packed[balance.objective] + 1e-6
        assert report.imbalance >= report.imbalance_floor_capped - 1e-9
        assert report.lockstep >= report.lockstep_floor - 1e-9

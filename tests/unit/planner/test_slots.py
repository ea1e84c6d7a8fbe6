from itertools import permutations

import numpy as np
import pytest

from msd.core.mesh import Mesh
from msd.errors import ConfigError
from msd.planner.config import BalanceConfig
from msd.planner.planner import Planner
from msd.planner.primitives.balance import Balance, balance
from msd.planner.primitives.cost import scaled
from msd.planner.primitives.layout import Grid, packed_layout
from msd.planner.primitives.objective import bucket_excess, lockstep_excess, pipeline_excess, pipeline_time
from msd.planner.primitives.slots import pipeline_order
from msd.testing.tables import LengthCost, feed_of, row, settings_of, steps_of


def heavy_tailed(num, seed=0):
    return np.rint(1000 * np.random.default_rng(seed).lognormal(0, 0.8, num)).astype(np.int64)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_stages", [2, 4])
def test_the_order_of_slots_is_within_a_hundredth_of_the_best_of_all_orders(seed, num_stages):
    cost_MB = heavy_tailed(6, seed)[:, None]
    best = min(
        float(pipeline_time(cost_MB[list(order)].T, num_stages).max()) for order in permutations(range(len(cost_MB)))
    )
    found = float(pipeline_time(cost_MB[pipeline_order(cost_MB, num_stages)].T, num_stages).max())
    assert best <= found <= 1.01 * best


@pytest.mark.parametrize("num_slots", [1, 2, 16, 40])
def test_light_slots_stand_at_both_ends_and_the_pipeline_is_faster(num_slots):
    cost_MB = heavy_tailed(num_slots * 4).reshape(num_slots, 4)
    order = pipeline_order(cost_MB, 4)
    assert sorted(order.tolist()) == list(range(num_slots))
    if num_slots >= 16:
        slowest = cost_MB.max(axis=1)[order]
        third = num_slots // 3
        assert slowest[third:-third].mean() > 1.5 * max(slowest[:third].mean(), slowest[-third:].mean())
        before, after = (pipeline_time(cost.T, 4).max() for cost in (cost_MB, cost_MB[order]))
        assert after < 0.95 * before


def test_an_order_that_is_as_good_is_kept():
    assert pipeline_order(np.full((5, 2), 7), 3).tolist() == [0, 1, 2, 3, 4]


def test_one_stage_takes_what_its_bucket_costs():
    cost_MB = heavy_tailed(12).reshape(4, 3)
    assert pipeline_excess(cost_MB, 1) == pytest.approx(bucket_excess(cost_MB))


def test_equal_rows_have_no_excess():
    cost_MB = np.full((4, 3), 9)
    assert [bucket_excess(cost_MB), lockstep_excess(cost_MB), pipeline_excess(cost_MB, 4)] == [0, 0, 0]


def made():
    lengths = np.clip(np.random.default_rng(5).lognormal(5.5, 1.3, 400), 16, 4096)
    return {"web": [row(int(n)) for n in lengths]}


def cost_of(plan):
    row_D = plan.slot_D * plan.num_buckets + plan.bucket_D
    num_rows = plan.num_microbatches * plan.num_buckets
    return np.bincount(row_D, weights=plan.cost_D, minlength=num_rows).reshape(plan.num_microbatches, -1)


def planned(mesh, **balance):
    chosen = settings_of(
        made(), sequence_length=4096, global_batch_size=32, mesh=mesh, num_microbatches=8,
        balance=BalanceConfig(**balance), cost={"backbone": LengthCost(1.0, 1 / 2048)},
    )  # fmt: skip
    return next(steps_of(Planner(chosen), feed_of(made(), chosen, chunk=100)))


def test_a_pipeline_is_faster_than_with_the_balance_of_one_stage_and_holds_the_same():
    plans = [planned(Mesh.of(pp=pp, dp=4)) for pp in (1, 4)]
    assert plans[0].membership_digest == plans[1].membership_digest
    times = [float(pipeline_time(cost_of(plan).T, 4).max()) for plan in plans]
    assert times[1] < times[0]
    assert lockstep_excess(cost_of(plans[1])) < lockstep_excess(cost_of(planned(Mesh.of(dp=4), method="none"))) / 2


def test_a_single_bucket_is_laid_out_for_its_pipeline():
    packed, plan = (planned(Mesh.of(pp=4, dp=1), method=method) for method in ("none", "lpt"))
    assert pipeline_excess(cost_of(plan), 4) < pipeline_excess(cost_of(packed), 4) / 2


@pytest.mark.parametrize("method", ["lpt", "karmarkar_karp", "zigzag"])
@pytest.mark.parametrize(
    ("objective", "excess"),
    [("cost", bucket_excess), ("lockstep", lockstep_excess), ("pipeline", lambda cost_MB: pipeline_excess(cost_MB, 2))],
)
def test_an_objective_is_lowered_by_every_method(method, objective, excess):
    mesh = Mesh.of(pp=2, dp=4)
    packed = excess(cost_of(planned(mesh, method="none")))
    assert excess(cost_of(planned(mesh, method=method, objective=objective))) < packed / 3


def test_the_objective_asked_for_is_not_worse_than_with_another():
    mesh = Mesh.of(pp=1, dp=4)
    by_cost, by_lockstep = (cost_of(planned(mesh, objective=name)) for name in ("cost", "lockstep"))
    assert lockstep_excess(by_lockstep) < lockstep_excess(by_cost)
    assert bucket_excess(by_cost) < 0.01


def test_a_gain_of_the_pipeline_that_is_too_small_keeps_the_packed_layout():
    cost_D = heavy_tailed(16).astype(np.float64)
    grid, sequences = Grid(2, 8, 1, 64, num_stages=4), [[d] for d in range(16)]
    op = Balance("lpt", min_gain=0.999, objective="pipeline")
    layout = balance(sequences, *scaled([cost_D]), np.full(16, 64), grid, op, cuts=False)
    assert layout.rows == packed_layout(sequences, grid).rows


def test_an_objective_that_across_rules_out_is_refused():
    with pytest.raises(ConfigError, match=r"objective 'lockstep' needs 'microbatch' in across, got \['bucket'\]"):
        Balance(across=("bucket",), objective="lockstep")
    with pytest.raises(ConfigError, match="they are auto, cost, lockstep, pipeline"):
        Balance(objective="best")

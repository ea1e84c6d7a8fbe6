import dataclasses

import numpy as np
import pytest

from msd.core.mesh import Mesh
from msd.errors import ConfigError
from msd.planner.check import check_plan
from msd.planner.config import BalanceConfig
from msd.planner.explain import explain
from msd.planner.planner import Planner
from msd.planner.primitives.align import Align, dummies
from msd.testing.tables import LengthCost, Part, Row, feed_of, row, settings_of, steps_of


class PatchCost:
    is_flops = False
    flops_per_s = None

    def __call__(self, num_tokens_D, num_patches_D):
        return num_patches_D.astype(np.float64)


def made(num_images=3, num_rows=64):
    """Mostly text; a few documents have an image."""
    draw = np.random.default_rng(2)
    rows = [row(int(n)) for n in draw.integers(10, 60, num_rows)]
    for place in range(0, num_rows, num_rows // num_images):
        rows[place] = Row((Part(40, 24),))
    return {"web": rows}


def planned(*, align=("image",), num_images=3, mesh=None, encoder=None, **balance):
    cost = {"backbone": LengthCost(1.0, 0.02), **({"encoder": encoder} if encoder else {})}
    sources = made(num_images)
    chosen = settings_of(
        sources, global_batch_size=32, mesh=mesh or Mesh.of(dp=4), num_microbatches=8, cost=cost,
        balance=BalanceConfig(align=list(align), **balance),
    )  # fmt: skip
    return next(steps_of(Planner(chosen), feed_of(sources, chosen)))


def has_images(plan):
    has_BM = np.zeros((plan.num_buckets, plan.num_microbatches), dtype=bool)
    has_BM[plan.bucket_D[plan.num_images_D > 0], plan.slot_D[plan.num_images_D > 0]] = True
    return has_BM


def test_rows_without_an_image_carry_a_dummy_where_another_row_of_the_slot_has_one():
    found = dummies(np.array([1, 0, 0, 2]), np.array([0, 1, 0, 1]), np.array([0, 0, 1, 2]), (2, 4))
    assert found.astype(int).tolist() == [[0, 0, 1, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize("method", ["lpt", "none"])
@pytest.mark.parametrize("mesh", [Mesh.of(dp=4), Mesh.of(pp=2, dp=2), Mesh.of(dp=1)])
def test_in_each_slot_all_ranks_have_images_or_dummies_or_none_has(method, mesh):
    plan = planned(method=method, mesh=mesh)
    stands_in = has_images(plan) | plan.dummy_BM
    assert (stands_in.all(axis=0) | ~stands_in.any(axis=0)).all()
    assert not (has_images(plan) & plan.dummy_BM).any()
    assert check_plan(plan) == []
    assert explain(plan).count("a dummy image") == plan.dummy_BM.sum()


def test_without_align_no_row_carries_a_dummy_and_nothing_else_is_different():
    plain, aligned = planned(align=(), method="none"), planned(method="none")
    assert plain.dummy_BM.size == 0
    assert plain.digest != aligned.digest
    assert plain.membership_digest == aligned.membership_digest
    assert plain.offset_D.tolist() == aligned.offset_D.tolist()


def test_rows_with_images_share_slots_where_the_encoder_is_costed():
    plan = planned(num_images=8, encoder=PatchCost())
    spread = planned(num_images=8, align=(), encoder=PatchCost())
    slots = [has_images(found).any(axis=0).sum() for found in (plan, spread)]
    assert slots[0] <= -(-has_images(plan).sum() // 4) + 1
    assert slots[0] <= slots[1]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda dummy_BM, has_BM: dummy_BM & False, "has neither an image nor a dummy"),
        (lambda dummy_BM, has_BM: dummy_BM | has_BM, "carries a dummy image and has images"),
        (lambda dummy_BM, has_BM: dummy_BM | ~has_BM.any(axis=0), "no row of its slot has an image"),
        (lambda dummy_BM, has_BM: dummy_BM[:2], r"dummies are said for \(2, 8\) rows of \(4, 8\)"),
    ],
)
def test_the_checker_names_dummies_that_are_wrong(change, rule):
    plan = planned()
    (line,) = check_plan(dataclasses.replace(plan, dummy_BM=change(plan.dummy_BM, has_images(plan))))
    assert line.replace("(", r"\(").replace(")", r"\)").find(rule) >= 0


def test_the_checker_names_dummies_that_nobody_asked_for():
    plan = planned()
    assert check_plan(dataclasses.replace(plan, align=())) == [
        f"{plan.dummy_BM.sum()} rows carry a dummy image, and images are not aligned"
    ]


def test_a_modality_that_does_not_exist_is_refused():
    with pytest.raises(ConfigError, match="align has no modality 'audio'; the modalities are image"):
        Align("audio")

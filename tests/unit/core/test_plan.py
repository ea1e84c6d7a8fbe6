"""A plan as a value: who receives what, and what its digests cover."""

import dataclasses

import numpy as np
import pytest

from msd.core.mesh import Mesh
from msd.core.plan import PlanReport, StepPlan
from msd.errors import ConfigError

REPORT = PlanReport(
    fill=1.0, cost_B={}, imbalance=0.0, imbalance_floor=0.0, lockstep=0.0, lockstep_floor=0.0, packed_imbalance=0.0,
    packed_lockstep=0.0, max_row_tokens=8, tokens_by_source={}, samples_by_source={},
)  # fmt: skip


def plan(**change):
    values = {
        "step": 3, "mesh": Mesh.of(dp=2, tp=2), "num_buckets": 2, "num_microbatches": 1, "sequences_per_microbatch": 1,
        "sequence_length": 8, "document_multiple": 1, "consumers_B": ((0, 1), (2, 3)), "source_names": ("code", "web"),
        "source_D": [0, 1, 1], "ordinal_D": [4, 0, 7], "part_D": [0, 0, 1], "start_D": [0, 0, 2], "length_D": [3, 5, 6],
        "padded_D": [3, 5, 6], "num_valid_D": [2, 4, 5], "num_image_tokens_D": [0, 0, 0], "num_images_D": [0, 0, 0],
        "num_patches_D": [0, 0, 0], "bucket_D": [0, 0, 1], "slot_D": [0, 0, 0], "offset_D": [0, 3, 0],
        "cost_D": [9.0, 25.0, 36.0], "global_num_valid_tokens": 11, "progress": {"step": 4}, "report": REPORT,
    } | change  # fmt: skip
    kinds = {"ordinal_D": np.int64, "cost_D": np.float64}
    columns = {name: np.array(values[name], dtype=kinds.get(name, np.int32)) for name in values if name.endswith("_D")}
    return StepPlan(**(values | columns))


def test_documents_and_ids_are_listed_in_row_order():
    one = plan()
    assert one.documents_of(0).tolist() == [0, 1]
    assert one.documents_of(1, slot=0).tolist() == [2]
    assert one.documents_of(1, slot=1).tolist() == []
    assert one.sample_ids() == [("code", 4, 0), ("web", 0, 0), ("web", 7, 1)]
    assert one.sample_ids(bucket=1) == [("web", 7, 1)]


def test_a_rank_finds_its_bucket_and_a_rank_outside_is_refused():
    assert [plan().bucket_of(rank) for rank in range(4)] == [0, 0, 1, 1]
    with pytest.raises(ConfigError, match="rank 4 is outside the mesh"):
        plan().bucket_of(4)
    with pytest.raises(LookupError, match="rank 3 receives no bucket of step 3"):
        plan(consumers_B=((0, 1), (2,))).bucket_of(3)


@pytest.mark.parametrize(
    "change",
    [
        {"bucket_D": [0, 1, 1]},
        {"slot_D": [0, 1, 0]},
        {"offset_D": [5, 0, 0]},
        {"mesh": Mesh.of(dp=4)},
        {"consumers_B": ((0, 1), (3, 2))},
        {"num_valid_D": [1, 4, 5]},
        {"progress": {"step": 5}},
        {"is_last": True},
        {"source_names": ("code", "wiki")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_digest_covers_the_layout(change):
    assert plan(**change).digest != plan().digest


def test_the_digest_leaves_out_the_report_and_the_notes():
    assert dataclasses.replace(plan(), notes=("seen",), report=None).digest == plan().digest


def test_the_membership_digest_does_not_know_the_layout():
    turned = plan(
        source_D=[1, 0, 1], ordinal_D=[7, 4, 0], part_D=[1, 0, 0], start_D=[2, 0, 0], length_D=[6, 3, 5],
        mesh=Mesh.of(dp=1), bucket_D=[0, 0, 0], consumers_B=((0,),),
    )  # fmt: skip
    assert turned.membership_digest == plan().membership_digest


@pytest.mark.parametrize(
    "change",
    [{"ordinal_D": [5, 0, 7]}, {"length_D": [3, 5, 5]}, {"start_D": [0, 0, 1]}, {"part_D": [0, 1, 1]}, {"step": 4}],
    ids=lambda change: next(iter(change)),
)
def test_the_membership_digest_knows_what_the_step_holds(change):
    assert plan(**change).membership_digest != plan().membership_digest

"""Broken plans of each kind, in what they say of ranks."""

from dataclasses import replace

import pytest

from msd.core.mesh import Mesh
from msd.core.sample import Sample, SampleId
from msd.core.stages import FIELDS, FIRST_FIELDS, LAST_FIELDS
from msd.planner.check import check_plan
from msd.planner.check_ranks import check_ranks
from msd.testing.plans import Placed, plan_by_hand

MESH = Mesh.of(pp=2, dp=2, cp=2, tp=2)
BY_STAGE = (FIRST_FIELDS, LAST_FIELDS)


def plan_of(**changes):
    ids = [SampleId("web", ordinal, 0) for ordinal in range(2)]
    tokens = range(8)
    buckets = [[[Placed(Sample(id=sample_id, tokens_T=list(tokens)), 0)]] for sample_id in ids]
    legal = {"slice_axis": "cp", "fields_P": BY_STAGE, "broadcast": ("tp",), "document_multiple": 8}
    return plan_by_hand(buckets, mesh=MESH, sequence_length=16, **legal | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"slice_axis": None, "document_multiple": 1},
        {"slice_method": "headtail", "document_multiple": 1},
        {"fields_P": (FIELDS, ()), "broadcast": ("tp", "pp")},
        {"fields_P": None, "broadcast": ("tp", "cp", "pp")},
    ],
)
def test_what_ranks_receive_may_be_sliced_shared_and_cut_by_stage(changes):
    assert check_ranks(plan_of(**changes)) == []


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"broadcast": ("xp",)}, "axis 'xp' is no axis of the mesh"),
        ({"slice_axis": "sp"}, "axis 'sp' is no axis of the mesh"),
        ({"slice_method": "stripes"}, "there is no slice method 'stripes'"),
        ({"document_multiple": 2}, "documents of multiples of 2 tokens do not divide into 4 chunks along cp"),
        ({"slice_method": "headtail", "sequence_length": 18}, "sequences of multiples of 18 tokens do not divide"),
        ({"fields_P": (FIRST_FIELDS,)}, "fields are said for 1 coordinates of pp=2"),
        ({"fields_P": (FIRST_FIELDS, ("loss_mask", "labels", "logits"))}, "there is no field 'logits'"),
        ({"fields_P": (FIRST_FIELDS, ("labels",))}, "no pipeline stage receives loss_mask"),
        ({"broadcast": ("pp",)}, "rank 0 of pp fetches for other stages"),
        ({"broadcast": ("dp",)}, "8 ranks: rank 4 of bucket 1 is fed by rank 0 of bucket 0"),
    ],
)
def test_each_broken_rule_is_named(changes, rule):
    broken = replace(plan_of(), **changes)
    assert any(rule in line for line in check_ranks(broken)), check_ranks(broken)
    assert any(rule in line for line in check_plan(broken))


def test_a_bucket_that_a_pipeline_stage_does_not_receive_is_found():
    first_stage, second_stage = tuple(range(8)), tuple(range(8, 16))
    broken = plan_of(consumers_B=(first_stage, second_stage), broadcast=())
    assert check_ranks(broken) == ["2 buckets, the first is 0, are not received by every coordinate of pp"]


def test_a_root_that_receives_another_bucket_is_found():
    plan = plan_of()
    (first, *rest), second = plan.consumers_B
    swapped = replace(plan, consumers_B=((second[0], *rest), (first, *second[1:])))
    assert "is fed by rank" in check_ranks(swapped)[0]

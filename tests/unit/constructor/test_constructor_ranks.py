"""Who receives what: slices, shared arrays, markers, counts."""

import json

import numpy as np
import pytest

from msd.constructor import DataConstructor
from msd.core.batch import RankBatch
from msd.core.mesh import Mesh
from msd.core.plan import StepPlan
from msd.core.sample import Sample, SampleId
from msd.core.stages import Stages
from msd.errors import PlanError
from msd.testing.plans import Placed, plan_by_hand

TOKEN_FIELDS = ("input_ids", "labels", "position_ids", "segment_ids", "loss_mask")


def sample_of(sample_id: SampleId) -> Sample:
    first = 100 * sample_id.ordinal
    return Sample(id=sample_id, tokens_T=np.arange(first, first + 5 + sample_id.ordinal, dtype=np.int32))


def plan_of(mesh: Mesh, **changes) -> StepPlan:
    """Each bucket has two microbatches of two documents of extent 8."""
    ids = iter(range(100))
    buckets = [
        [[Placed(sample_of(SampleId("web", next(ids) % 4, 0)), offset) for offset in (0, 8)] for _ in range(2)]
        for _ in range(mesh.size("dp"))
    ]
    return plan_by_hand(buckets, mesh=mesh, sequence_length=16, document_multiple=8, **changes)


def all_batches(plan: StepPlan) -> list[RankBatch]:
    constructor = DataConstructor(pad_token_id=0)
    assembled = [constructor.build(plan, bucket, sample_of) for bucket in range(plan.num_buckets)]
    return [constructor.rank_batch(assembled[plan.bucket_of(rank)], plan, rank) for rank in range(plan.mesh.world_size)]


def test_slices_take_the_same_positions_of_every_field_and_keep_the_rows_boundaries():
    whole = all_batches(plan_of(Mesh.of(dp=1)))[0]
    sliced = all_batches(plan_of(Mesh.of(dp=1, cp=2), slice_axis="cp"))
    positions = [[0, 1, 6, 7, 8, 9, 14, 15], [2, 3, 4, 5, 10, 11, 12, 13]]
    for cp, batch in enumerate(sliced):
        for row, full in zip(batch.microbatches, whole.microbatches, strict=True):
            for name in TOKEN_FIELDS:
                assert getattr(row, name).tolist() == getattr(full, name)[positions[cp]].tolist(), name
            assert row.cu_seqlens_padded.tolist() == [0, 8, 16]
            assert row.max_seqlen == full.max_seqlen


def test_labels_over_data_and_context_ranks_sum_to_the_denominator_of_the_loss():
    """Answers LB-11."""
    batches = all_batches(plan_of(Mesh.of(dp=2, cp=2, tp=2), slice_axis="cp"))
    one_of_each = [batches[rank] for rank in range(0, 8, 2)]
    assert sum(batch.num_valid_tokens for batch in one_of_each) == batches[0].global_num_valid_tokens > 0
    assert len({batch.global_num_valid_tokens for batch in batches}) == 1


def test_without_slicing_every_context_rank_holds_the_whole_row():
    batches = all_batches(plan_of(Mesh.of(dp=1, cp=2)))
    assert [batch.num_valid_tokens for batch in batches] == [batches[0].global_num_valid_tokens] * 2
    assert batches[1].microbatches[0].input_ids.shape == (16,)
    assert [batch.sequence_length for batch in batches] == [16, 16]


def test_ranks_that_hold_the_same_data_share_its_memory():
    batches = all_batches(plan_of(Mesh.of(dp=1, cp=2, tp=2), slice_axis="cp"))
    first, peer, other = (batches[rank].microbatches[0] for rank in (0, 1, 2))
    assert np.shares_memory(first.input_ids, peer.input_ids)
    assert not np.shares_memory(first.input_ids, other.input_ids)
    assert np.shares_memory(first.cu_seqlens, other.cu_seqlens)


def test_below_a_broadcast_axis_only_the_root_fetches():
    root, peer = all_batches(plan_of(Mesh.of(dp=1, tp=2), broadcast=("tp",)))
    assert (len(root.microbatches), root.markers) == (2, [])
    assert peer.microbatches == []
    assert [marker.root for marker in peer.markers] == [0, 0]
    for marker, row in zip(peer.markers, root.microbatches, strict=True):
        assert marker.shapes["input_ids"] == ((16,), "int32")
        assert set(marker.shapes) == {*TOKEN_FIELDS, "cu_seqlens", "cu_seqlens_padded"}
        assert all(
            marker.shapes[name] == (getattr(row, name).shape, str(getattr(row, name).dtype)) for name in marker.shapes
        )
    assert (peer.sample_ids, peer.num_valid_tokens) == (root.sample_ids, root.num_valid_tokens)


def test_the_root_of_a_marker_shares_every_coordinate_but_the_broadcast_ones():
    mesh = Mesh.of(dp=2, cp=2, tp=2)
    batches = all_batches(plan_of(mesh, slice_axis="cp", broadcast=("tp",)))
    roots = {rank: batch.markers[0].root for rank, batch in enumerate(batches) if batch.markers}
    assert roots == {1: 0, 3: 2, 5: 4, 7: 6}


def test_the_root_of_a_broadcast_over_the_slice_axis_holds_whole_rows():
    root, peer = all_batches(plan_of(Mesh.of(dp=1, cp=2), slice_axis="cp", broadcast=("cp",)))
    assert root.microbatches[0].input_ids.shape == (16,)
    assert peer.markers[0].root == 0
    assert (root.slice_method, peer.slice_method) == (None, None)


@pytest.mark.parametrize("method", ["zigzag", "headtail"])
def test_a_rank_is_told_how_its_slices_are_cut(method):
    batches = all_batches(plan_of(Mesh.of(dp=1, cp=2), slice_axis="cp", slice_method=method))
    assert [batch.slice_method for batch in batches] == [method] * 2
    assert all_batches(plan_of(Mesh.of(dp=1)))[0].slice_method is None


def test_pipeline_stages_get_what_they_need_and_share_it():
    mesh = Mesh.of(pp=3, dp=1, tp=2)
    fields_P = tuple(Stages().fields_of(pp, 3) for pp in range(3))
    whole = all_batches(plan_of(mesh))[0]
    batches = all_batches(plan_of(mesh, fields_P=fields_P))
    present = [
        {name for name in TOKEN_FIELDS if getattr(batches[rank].microbatches[0], name) is not None} for rank in range(6)
    ]
    first, last = {"input_ids", "position_ids", "segment_ids"}, {"labels", "loss_mask"}
    assert present == [first, first, set(), set(), last, last]
    for batch in batches:
        assert (batch.num_valid_tokens, batch.sample_ids) == (whole.num_valid_tokens, whole.sample_ids)
        for row, full in zip(batch.microbatches, whole.microbatches, strict=True):
            assert (row.num_tokens, row.max_seqlen) == (full.num_tokens, full.max_seqlen)
            assert row.cu_seqlens_padded.tolist() == full.cu_seqlens_padded.tolist()
    middle, held = batches[2].microbatches[0], batches[4].microbatches[0]
    assert (middle.num_valid_tokens, middle.images) == (None, None)
    assert held.num_valid_tokens == whole.microbatches[0].num_valid_tokens
    assert middle.nbytes < held.nbytes < batches[0].microbatches[0].nbytes < whole.microbatches[0].nbytes


def test_a_marker_names_the_fields_that_its_stage_will_receive():
    fields_P = tuple(Stages().fields_of(pp, 2) for pp in range(2))
    batches = all_batches(plan_of(Mesh.of(pp=2, dp=1, tp=2), fields_P=fields_P, broadcast=("tp",)))
    boundaries = {"cu_seqlens", "cu_seqlens_padded"}
    assert set(batches[1].markers[0].shapes) == {"input_ids", "position_ids", "segment_ids", *boundaries}
    assert set(batches[3].markers[0].shapes) == {"labels", "loss_mask", *boundaries}
    assert batches[3].markers[0].root == 2


def test_ranks_of_one_key_receive_the_same_and_others_do_not():
    mesh = Mesh.of(pp=2, dp=2, cp=2, tp=2)
    fields_P = tuple(Stages().fields_of(pp, 2) for pp in range(2))
    plan = plan_of(mesh, slice_axis="cp", fields_P=fields_P, broadcast=("tp",))
    keys = [plan.share_key(rank) for rank in range(16)]
    # Buckets, slices, stages, and a root apart from the one that it feeds.
    assert len(set(keys)) == 16
    open_plan = plan_of(mesh, slice_axis="cp")
    keys = [open_plan.share_key(rank) for rank in range(16)]
    assert len(set(keys)) == 4
    batches = all_batches(open_plan)
    for rank, key in enumerate(keys):
        twin = keys.index(key)
        assert batches[rank].microbatches[0].input_ids is batches[twin].microbatches[0].input_ids


def test_head_and_tail_of_every_sequence_are_one_slice():
    whole = all_batches(plan_of(Mesh.of(dp=1)))[0]
    sliced = all_batches(plan_of(Mesh.of(dp=1, cp=2), slice_axis="cp", slice_method="headtail"))
    positions = [[0, 1, 2, 3, 12, 13, 14, 15], [4, 5, 6, 7, 8, 9, 10, 11]]
    for cp, batch in enumerate(sliced):
        for row, full in zip(batch.microbatches, whole.microbatches, strict=True):
            for name in TOKEN_FIELDS:
                assert getattr(row, name).tolist() == getattr(full, name)[positions[cp]].tolist(), name


def test_progress_travels_as_canonical_json():
    batch = all_batches(plan_of(Mesh.of(dp=1), progress={"b": [1, 2], "a": {"z": 1, "y": None}}))[0]
    assert batch.progress == '{"a":{"y":null,"z":1},"b":[1,2]}'
    assert json.loads(batch.progress)["b"] == [1, 2]


def test_bytes_count_shared_arrays_once():
    plan = plan_of(Mesh.of(dp=1, cp=2, tp=2), slice_axis="cp")
    assembled = DataConstructor(pad_token_id=0).build(plan, 0, sample_of)
    assert assembled.nbytes == 2 * (16 * 4 * 5 + 2 * 3 * 4)


def test_a_bucket_of_another_rank_is_refused():
    plan = plan_of(Mesh.of(dp=2))
    constructor = DataConstructor(pad_token_id=0)
    with pytest.raises(PlanError, match="rank 1 receives bucket 1 of step 0, got bucket 0 of step 0"):
        constructor.rank_batch(constructor.build(plan, 0, sample_of), plan, 1)

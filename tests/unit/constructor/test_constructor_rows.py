"""What stands in a row: tokens, labels, positions, segments, boundaries."""

import numpy as np
import pytest

from msd.constructor import DataConstructor
from msd.core.batch import Microbatch
from msd.core.mesh import Mesh
from msd.core.plan import StepPlan
from msd.core.sample import Sample, SampleId
from msd.errors import PlanError
from msd.testing.plans import Placed, plan_by_hand

PAD = 99


def text(ordinal: int, tokens: list[int], *, trained: list[int] | None = None, num_image_tokens: int = 0) -> Sample:
    return Sample(
        id=SampleId("web", ordinal, 0),
        tokens_T=np.array(tokens, dtype=np.int32),
        trained_T=None if trained is None else np.array(trained, dtype=np.uint8),
        num_image_tokens=num_image_tokens,
    )


def plan_of_row(*placed: Placed, length: int, **changes) -> StepPlan:
    return plan_by_hand([[list(placed)]], mesh=Mesh.of(dp=1), sequence_length=length, **changes)


def row_of(*placed: Placed, length: int, **changes) -> Microbatch:
    plan = plan_of_row(*placed, length=length, **changes)
    samples = {p.sample.id: p.sample for p in placed}
    constructor = DataConstructor(pad_token_id=PAD)
    return constructor.rank_batch(constructor.build(plan, 0, samples.__getitem__), plan, 0).microbatches[0]


def test_two_documents_and_padding_give_the_row_of_the_contract():
    row = row_of(Placed(text(0, [1, 2, 3]), 0), Placed(text(1, [4, 5]), 4), length=8)
    assert row.input_ids.tolist() == [1, 2, 3, PAD, 4, 5, PAD, PAD]
    assert row.labels.tolist() == [2, 3, -100, -100, 5, -100, -100, -100]
    assert row.position_ids.tolist() == [0, 1, 2, 0, 0, 1, 0, 0]
    assert row.segment_ids.tolist() == [1, 1, 1, 0, 2, 2, 0, 0]
    assert row.loss_mask.tolist() == [1, 1, 0, 0, 1, 0, 0, 0]
    assert row.cu_seqlens.tolist() == [0, 3, 5]
    assert row.cu_seqlens_padded.tolist() == [0, 4, 8]
    assert row.max_seqlen == 3


def test_the_dtypes_are_those_of_the_contract():
    row = row_of(Placed(text(0, [1, 2, 3]), 0), length=4)
    assert {name: getattr(row, name).dtype for name in ("input_ids", "labels", "position_ids", "segment_ids")} == (
        dict.fromkeys(("input_ids", "labels", "position_ids", "segment_ids"), np.dtype(np.int32))
    )
    assert (row.loss_mask.dtype, row.cu_seqlens.dtype, row.cu_seqlens_padded.dtype) == ("float32", "int32", "int32")


def test_a_mask_given_per_input_token_hides_the_tokens_it_marks_as_context():
    row = row_of(Placed(text(0, [1, 2, 3, 4, 5], trained=[0, 0, 1, 0, 1]), 0), length=6)
    assert row.labels.tolist() == [-100, 3, -100, 5, -100, -100]


def test_image_placeholders_are_neither_learned_nor_learned_from():
    row = row_of(Placed(text(0, [7, 7, 7, 1, 2], num_image_tokens=3), 0), length=6)
    assert row.labels.tolist() == [-100, -100, -100, 2, -100, -100]


def test_a_document_of_placeholders_alone_carries_no_label():
    row = row_of(Placed(text(0, [7, 7, 7], num_image_tokens=3), 0), Placed(text(1, [1]), 3), length=4)
    assert row.num_valid_tokens == 0
    assert row.segment_ids.tolist() == [1, 1, 1, 2]


def test_pieces_of_a_cut_part_are_documents_of_their_own():
    sample = text(0, [7, 7, 1, 2, 3, 4, 5], num_image_tokens=2, trained=[0, 0, 1, 1, 1, 0, 1])
    row = row_of(Placed(sample, 0, 0, 4), Placed(sample, 4, 4, 3), length=8)
    assert row.input_ids.tolist() == [7, 7, 1, 2, 3, 4, 5, PAD]
    assert row.labels.tolist() == [-100, -100, 2, -100, -100, 5, -100, -100]
    assert row.position_ids.tolist() == [0, 1, 2, 3, 0, 1, 2, 0]


def test_the_tail_of_a_sequence_and_empty_sequences_belong_to_the_document_before():
    """Answers ML-9."""
    row = row_of(
        Placed(text(0, [1, 2]), 0), Placed(text(1, [3, 4, 5]), 4), length=4, sequences_per_microbatch=3
    )  # fmt: skip
    assert row.cu_seqlens_padded.tolist() == [0, 4, 12]
    assert np.diff(row.cu_seqlens).tolist() == [2, 3]
    assert row.input_ids.reshape(3, 4).tolist() == [[1, 2, PAD, PAD], [3, 4, 5, PAD], [PAD] * 4]


def test_a_row_without_documents_has_one_of_length_0():
    plan = plan_by_hand([[[Placed(text(0, [1, 2]), 0)], []]], mesh=Mesh.of(dp=1), sequence_length=4)
    constructor = DataConstructor(pad_token_id=PAD)
    empty = constructor.rank_batch(constructor.build(plan, 0, lambda _: text(0, [1, 2])), plan, 0).microbatches[1]
    assert (empty.cu_seqlens.tolist(), empty.cu_seqlens_padded.tolist(), empty.max_seqlen) == ([0, 0], [0, 4], 0)
    assert empty.input_ids.tolist() == [PAD] * 4
    assert not empty.loss_mask.any()
    assert not empty.segment_ids.any()


def test_documents_are_numbered_and_positioned_anew_in_each_microbatch():
    rows = [[Placed(text(0, [1, 2]), 0), Placed(text(1, [3, 4]), 2)], [Placed(text(2, [5, 6, 7]), 0)]]
    plan = plan_by_hand([rows], mesh=Mesh.of(dp=1), sequence_length=4)
    samples = {p.sample.id: p.sample for row in rows for p in row}
    constructor = DataConstructor(pad_token_id=PAD)
    batch = constructor.rank_batch(constructor.build(plan, 0, samples.__getitem__), plan, 0)
    assert [row.segment_ids.tolist() for row in batch.microbatches] == [[1, 1, 2, 2], [1, 1, 1, 0]]
    assert [row.input_ids.tolist() for row in batch.microbatches] == [[1, 2, 3, 4], [5, 6, 7, PAD]]
    assert batch.sample_ids == [("web", 0, 0), ("web", 1, 0), ("web", 2, 0)]
    assert (batch.num_valid_tokens, batch.global_num_valid_tokens) == (4, 4)


def test_a_payload_that_differs_from_its_metadata_is_refused_by_name():
    plan = plan_of_row(Placed(text(5, [1, 2, 3]), 0), length=4)
    with pytest.raises(PlanError, match=r"sample \('web', 5, 0\) carries 1 labels, the plan of step 0 says 2"):
        DataConstructor(pad_token_id=0).build(plan, 0, lambda _: text(5, [1, 2, 3], trained=[1, 1, 0]))


def test_a_piece_outside_its_sample_is_refused_by_name():
    plan = plan_of_row(Placed(text(5, [1, 2, 3, 4]), 0), length=4)
    with pytest.raises(PlanError, match=r"tokens \[0, 4\) of sample \('web', 5, 0\).* has 3 tokens"):
        DataConstructor(pad_token_id=0).build(plan, 0, lambda _: text(5, [1, 2, 3]))


@pytest.mark.parametrize(("start", "length"), [(0, 2), (1, 3)])
def test_a_cut_run_of_image_placeholders_is_refused(start, length):
    sample = text(5, [7, 7, 7, 1], num_image_tokens=3)
    with pytest.raises(PlanError, match="runs of image tokens are never cut"):
        row_of(Placed(sample, 0, start, length), length=4)


@pytest.mark.parametrize(("first", "second"), [(0, 2), (1, 4), (0, 7)])
def test_documents_that_overlap_leave_the_row_or_start_late_are_refused(first, second):
    with pytest.raises(PlanError, match="overlap, start after 0 or leave their row"):
        row_of(Placed(text(0, [1, 2, 3]), first), Placed(text(1, [4, 5]), second), length=8)

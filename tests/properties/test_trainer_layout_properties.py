"""What holds of every layout, whatever lies in a row."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from msd import layouts
from msd.client.layouts.segments import document_numbers, slice_segments
from msd.constructor.context_parallel import slice_row
from msd.constructor.packing import row_boundaries
from msd.core.batch import Microbatch, RankBatch
from msd.core.slices import zigzag_positions

SEQUENCE = 32


@st.composite
def rows(draw, multiple: int = 1) -> Microbatch:
    """One to three sequences, each with any number of documents of any length; some may be empty."""
    offsets, lengths = [], []
    num_sequences = draw(st.integers(1, 3))
    for sequence in range(num_sequences):
        place, end = sequence * SEQUENCE, (sequence + 1) * SEQUENCE
        for length in draw(st.lists(st.integers(1, SEQUENCE), max_size=8)):
            extent = -(-length // multiple) * multiple
            if place + extent <= end and (offsets or place == 0):
                offsets.append(place)
                lengths.append(length)
                place += extent
    row_length = num_sequences * SEQUENCE
    bounds = row_boundaries(np.array(offsets, np.int32), np.array(lengths, np.int32), row_length=row_length)
    arrays = {name: np.zeros(row_length, np.int32) for name in ("input_ids", "position_ids", "segment_ids")}
    labels = np.full(row_length, -100, np.int32)
    for number, (offset, length) in enumerate(zip(offsets, lengths, strict=True), 1):
        span = slice(offset, offset + length)
        arrays["input_ids"][span] = 1000 * number + np.arange(length)
        arrays["position_ids"][span] = np.arange(length)
        arrays["segment_ids"][span] = number
        labels[offset : offset + length - 1] = arrays["input_ids"][offset + 1 : offset + length]
    return Microbatch(
        num_tokens=row_length,
        **arrays,
        labels=labels,
        loss_mask=(labels != -100).astype(np.float32),
        cu_seqlens=bounds.cu_seqlens,
        cu_seqlens_padded=bounds.cu_seqlens_padded,
        max_seqlen=bounds.max_seqlen,
    )


def batch_of(row: Microbatch, **changes) -> RankBatch:
    return RankBatch(
        step=0, rank=0, sample_ids=[], microbatches=[row], num_valid_tokens=0, global_num_valid_tokens=0,
        sequence_length=SEQUENCE, **changes,
    )  # fmt: skip


@given(rows())
def test_segments_cover_a_row_and_each_document_is_one(row):
    found = layouts.segments(row)
    spans = set(zip(found.cu_seqlens[:-1].tolist(), found.cu_seqlens[1:].tolist(), strict=True))
    lengths = np.diff(row.cu_seqlens)
    documents = {
        (start, start + length)
        for start, length in zip(row.cu_seqlens_padded[:-1].tolist(), lengths.tolist(), strict=True)
        if length
    }
    assert documents <= spans
    assert (found.cu_seqlens[0], found.cu_seqlens[-1]) == (0, row.num_tokens)
    assert (np.diff(found.cu_seqlens) > 0).all()
    assert max(end - start for start, end in spans) <= found.max_seqlen == max(1, row.max_seqlen)
    is_real = row.segment_ids > 0
    assert np.array_equal(found.position_ids[is_real], row.position_ids[is_real])
    assert np.array_equal(document_numbers(row), row.segment_ids)


@given(rows())
def test_labels_that_a_model_shifts_are_the_tokens_themselves(row):
    [fields] = layouts.hf(batch_of(row))
    labels = fields["labels"][0]
    assert np.array_equal(np.append(labels[1:], -100), row.labels)
    is_learned = labels != -100
    assert np.array_equal(labels[is_learned], row.input_ids[is_learned])
    assert not is_learned[fields["position_ids"][0] == 0].any()


@given(rows())
def test_a_mask_lets_each_token_see_its_document_up_to_itself(row):
    [fields] = layouts.megatron(batch_of(row))
    visible = (~fields["attention_mask"]).sum(axis=-1).ravel()
    is_real = row.segment_ids > 0
    assert np.array_equal(visible[is_real], row.position_ids[is_real] + 1)
    assert (visible > 0).all()


@given(rows(multiple=4), st.sampled_from([0, 1]))
def test_a_slice_holds_a_chunk_and_its_mirror_between_its_own_boundaries(row, index):
    part = slice_row(row, zigzag_positions(row.cu_seqlens_padded, 2))[index]
    found = slice_segments(part)
    [packed] = layouts.megatron_packed(batch_of(part, slice_method="zigzag"))
    assert found.cu_seqlens[-1] == part.num_tokens == packed["tokens"].shape[1]
    assert packed["packed_seq_params"]["cu_seqlens_q_padded"][-1] == row.num_tokens
    assert 2 * found.max_seqlen == packed["packed_seq_params"]["max_seqlen_q"]
    for number, (first, last) in enumerate(zip(found.cu_seqlens[:-1], found.cu_seqlens[1:], strict=True), 1):
        assert set(part.segment_ids[first:last].tolist()) <= {0, number}

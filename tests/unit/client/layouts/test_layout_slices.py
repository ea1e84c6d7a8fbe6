"""Context parallelism: whose boundaries, which positions, and what is refused."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from layout_batches import golden_row, sliced_batch

from msd import layouts
from msd.client.layouts.segments import segments
from msd.errors import ConfigError

WITHOUT_MASK = functools.partial(layouts.megatron, attention_mask=False)


def test_packed_megatron_has_the_tokens_of_the_slice_and_the_boundaries_of_the_row():
    [first], [second] = (layouts.megatron_packed(sliced_batch("zigzag", index)) for index in (0, 1))
    assert first["tokens"].tolist() == [[11, 0, 21, 24, 31, 32, 0, 0]]
    assert second["tokens"].tolist() == [[12, 13, 22, 23, 33, 34, 35, 0]]
    assert first["labels"].tolist() == [[12, 0, 22, 0, 32, 0, 0, 0]]
    assert second["loss_mask"].tolist() == [[1, 0, 1, 1, 1, 1, 0, 0]]
    assert second["position_ids"].tolist() == [[1, 2, 1, 2, 2, 3, 4, 0]]
    for fields in (first, second):
        params = fields["packed_seq_params"]
        assert params["cu_seqlens_q"].tolist() == [0, 3, 7, 12]
        assert params["cu_seqlens_q_padded"].tolist() == [0, 4, 8, 16]
        # Ring attention divides it by the ranks: 8 / 2 holds the 4 tokens that a rank has of the last document.
        assert params["max_seqlen_q"] == 8


def test_flash_has_the_tokens_and_the_boundaries_of_the_slice():
    [first], [second] = (layouts.flash(sliced_batch("zigzag", index)) for index in (0, 1))
    assert first["input_ids"].tolist() == [11, 0, 21, 24, 31, 32, 0, 0]
    assert first["labels"].tolist() == [12, -100, 22, -100, 32, -100, -100, -100]
    assert first["position_ids"].tolist() == [0, 0, 0, 3, 0, 1, 0, 0]
    assert second["position_ids"].tolist() == [1, 2, 1, 2, 2, 3, 4, 0]
    for fields in (first, second):
        assert fields["cu_seqlens_q"].tolist() == fields["cu_seqlens_k"].tolist() == [0, 2, 4, 8]
        assert fields["cu_seqlens_q"].dtype == np.int32
        assert (fields["max_seqlen_q"], fields["max_seqlen_k"]) == (4, 4)


def test_megatron_has_head_and_tail_of_each_sequence_in_its_line():
    [first], [second] = (WITHOUT_MASK(sliced_batch("headtail", index)) for index in (0, 1))
    assert first["tokens"].tolist() == [[11, 12, 23, 24], [31, 32, 0, 0]]
    assert second["tokens"].tolist() == [[13, 0, 21, 22], [33, 34, 35, 0]]
    assert second["position_ids"].tolist() == [[2, 0, 0, 1], [2, 3, 4, 0]]
    assert second["labels"].tolist() == [[0, 0, 22, 23], [34, 35, 0, 0]]


@pytest.mark.parametrize(
    ("layout", "method", "advice"),
    [
        (layouts.megatron, "headtail", "has no mask for slices; use layout 'megatron_packed'"),
        (layouts.megatron, "zigzag", "whole rows and slices cut by batch.slice: headtail, and this run"),
        (WITHOUT_MASK, "zigzag", "or batch.slice: headtail with functools.partial"),
        (layouts.megatron_packed, "headtail", "cuts them by batch.slice: headtail; set batch.slice: zigzag"),
        (layouts.flash, "headtail", "set batch.slice: zigzag"),
        (layouts.hf, "zigzag", "takes whole rows, and .* zigzag; set batch.slice: none"),
        (layouts.torchtitan, "headtail", "takes whole rows, and .* headtail; set batch.slice: none"),
        (layouts.qwen, "zigzag", "set batch.slice: none"),
    ],
)
def test_slices_that_a_layout_cannot_express_are_refused_with_what_to_set(layout, method, advice):
    with pytest.raises(ConfigError, match=advice):
        layout(sliced_batch(method, 0))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_segments_cover_a_row_and_begin_where_documents_and_padding_do(number):
    row = golden_row(number)
    found = segments(row)
    assert (found.cu_seqlens[0], found.cu_seqlens[-1]) == (0, row.num_tokens)
    assert np.diff(found.cu_seqlens).max() == found.max_seqlen == max(1, row.max_seqlen)
    starts = set(found.cu_seqlens.tolist())
    ends = row.cu_seqlens_padded[:-1] + np.diff(row.cu_seqlens)
    assert {*row.cu_seqlens_padded.tolist(), *ends.tolist()} <= starts
    assert (found.position_ids == 0).nonzero()[0].tolist() == found.cu_seqlens[:-1].tolist()


def test_long_padding_is_cut_into_segments_no_longer_than_the_longest_document():
    short = replace(golden_row(1), cu_seqlens=np.array([0, 3], np.int32), max_seqlen=3)
    assert segments(short).cu_seqlens.tolist() == [0, 3, 6, 9, 12, 15, 16]
    assert segments(short).max_seqlen == 3
    assert segments(golden_row(2)).cu_seqlens.tolist() == list(range(17))

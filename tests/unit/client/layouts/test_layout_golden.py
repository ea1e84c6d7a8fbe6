"""Every layout of a batch written by hand, against what was written down for it by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from layout_batches import GOLDEN, batch_of, golden_batch, golden_row

from msd import layouts
from msd.core.batch import TOKEN_FIELDS, BatchMarker
from msd.errors import ConfigError

TEXT = ["megatron", "megatron_packed", "hf", "flash", "torchtitan"]


def written(value: Any) -> Any:
    """Return what a layout made as the golden file writes it."""
    if isinstance(value, dict):
        return dict(field(name, item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return [written(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def field(name: str, value: Any) -> tuple[str, Any]:
    if not isinstance(value, np.ndarray):
        return name, written(value)
    if value.dtype == np.bool_:
        lines = ["".join(line) for line in value.reshape(-1, value.shape[-1]).astype(int).astype(str)]
        return f"{name} bool", np.array(lines, dtype=object).reshape(value.shape[:-1]).tolist()
    return f"{name} {value.dtype}", value.tolist()


@pytest.mark.parametrize("name", TEXT)
def test_a_layout_is_what_was_written_by_hand(name):
    """Answers HF-15."""
    assert written(layouts.NAMED[name](golden_batch())) == GOLDEN[name]


def test_torchtitan_labels_are_whole_numbers_of_64_bits():
    assert [labels.dtype for _, labels in layouts.torchtitan(golden_batch())] == [np.int64] * 3


@pytest.mark.parametrize("name", TEXT)
def test_a_layout_is_a_list_of_microbatches_that_knows_the_step(name):
    step = layouts.NAMED[name](golden_batch())
    assert isinstance(step, list)
    assert len(step) == 3
    assert (step.step, step.rank, step.sample_ids) == (3, 1, [("web", 5, 0)])
    assert (step.num_valid_tokens, step.global_num_valid_tokens) == (16, 40)
    assert step.encoder == []
    told = "step=3, rank=1, num_valid_tokens=16, global_num_valid_tokens=40, sequence_length=8"
    assert repr(step) == f"<LaidOutBatch: 3 microbatches, {told}>"
    assert repr(type(step)(item for item in step)) == "<LaidOutBatch: 3 microbatches>"


@pytest.mark.parametrize("name", [*TEXT, "qwen"])
def test_where_another_rank_fetches_each_item_is_a_marker(name):
    marker = BatchMarker(root=0, shapes={"input_ids": ((16,), "int32")})
    assert layouts.NAMED[name](batch_of([], markers=[marker, marker])) == [marker, marker]


@pytest.mark.parametrize("name", TEXT)
def test_the_rows_of_the_batch_stay_as_they_were(name):
    batch = golden_batch()
    before = [[getattr(row, field).copy() for field in TOKEN_FIELDS] for row in batch.microbatches]
    layouts.NAMED[name](batch)
    for row, kept in zip(batch.microbatches, before, strict=True):
        assert all(np.array_equal(getattr(row, field), array) for field, array in zip(TOKEN_FIELDS, kept, strict=True))


def test_megatron_without_a_mask_has_the_other_fields():
    [first, *_] = layouts.megatron(golden_batch(), attention_mask=False)
    assert list(first) == ["tokens", "labels", "loss_mask", "position_ids"]


def test_torchtitan_without_boundaries_has_the_two_fields_of_its_model():
    inputs, _ = layouts.torchtitan(golden_batch(), varlen=False)[0]
    assert list(inputs) == ["input", "positions"]


STAGES = {
    "first": ("labels", "loss_mask"),
    "middle": TOKEN_FIELDS,
    "last": ("input_ids", "position_ids", "segment_ids"),
}
"""What a pipeline stage does not get."""
LEFT = {
    "megatron": ("tokens position_ids attention_mask", "attention_mask", "labels loss_mask attention_mask"),
    "megatron_packed": (
        "tokens position_ids packed_seq_params", "packed_seq_params", "labels loss_mask packed_seq_params",
    ),
    "hf": (
        "input_ids position_ids seq_idx cu_seq_lens_q cu_seq_lens_k max_length_q max_length_k",
        "position_ids seq_idx cu_seq_lens_q cu_seq_lens_k max_length_q max_length_k",
        "labels position_ids seq_idx cu_seq_lens_q cu_seq_lens_k max_length_q max_length_k",
    ),
    "flash": (
        "input_ids position_ids cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k",
        "position_ids cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k",
        "labels position_ids cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k",
    ),
}  # fmt: skip
"""By layout: fields on the first, a middle and the last stage."""


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize("stage", STAGES)
def test_a_pipeline_stage_finds_what_it_got_and_where_documents_begin(name, stage):
    row = golden_row(0)
    [fields] = layouts.NAMED[name](batch_of([replace(row, **dict.fromkeys(STAGES[stage]))]))
    [whole] = layouts.NAMED[name](batch_of([row]))
    assert list(fields) == LEFT[name][list(STAGES).index(stage)].split()
    assert written(fields) == {key: value for key, value in written(whole).items() if key.split()[0] in fields}


def test_a_torchtitan_stage_without_labels_has_none():
    [(inputs, labels)] = layouts.torchtitan(batch_of([replace(golden_row(0), **dict.fromkeys(TOKEN_FIELDS))]))
    assert (list(inputs), labels) == (["positions", "cu_seq_q", "cu_seq_k", "max_q", "max_k"], None)


def test_an_unknown_layout_is_refused_with_the_nearest_one():
    with pytest.raises(ConfigError, match="no layout 'megatron_pack'; did you mean 'megatron_packed'"):
        layouts.layout_named("megatron_pack")
    for junk in (7, [], {}):
        with pytest.raises(
            ConfigError, match="name one of megatron, megatron_packed, hf, flash, torchtitan, qwen, or pass"
        ):
            layouts.layout_named(junk)


def test_a_function_is_a_layout_as_it_is():
    assert layouts.layout_named(len) is len

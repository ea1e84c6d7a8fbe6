"""Images for Qwen-style models: pixels, grids, positions in three directions."""

from dataclasses import replace

import numpy as np
import pytest
from layout_batches import batch_of, golden_batch

from msd import layouts
from msd.client.layouts.qwen import QWEN2_MEAN, QWEN2_STD
from msd.core.batch import Microbatch, RowImages
from msd.errors import ConfigError
from msd.loader.transforms.patches import to_patches

PLACEHOLDER = 9


def row_with_images() -> Microbatch:
    """Two images of 2 placeholders and three words; two words; one image of 1 placeholder and a word."""
    input_ids = [9, 9, 9, 9, 51, 52, 53, 0, 61, 62, 9, 71, 0, 0, 0, 0]
    labels = [-100, -100, -100, -100, 52, 53, -100, -100, 62, -100, -100, -100, -100, -100, -100, -100]
    segment_ids = [1, 1, 1, 1, 1, 1, 1, 0, 2, 2, 3, 3, 0, 0, 0, 0]
    position_ids = [0, 1, 2, 3, 4, 5, 6, 0, 0, 1, 0, 1, 0, 0, 0, 0]
    arrays = {"input_ids": input_ids, "labels": labels, "segment_ids": segment_ids, "position_ids": position_ids}
    return Microbatch(
        num_tokens=16,
        **{name: np.array(values, np.int32) for name, values in arrays.items()},
        loss_mask=(np.array(labels) != -100).astype(np.float32),
        cu_seqlens=np.array([0, 7, 9, 11], np.int32),
        cu_seqlens_padded=np.array([0, 8, 10, 16], np.int32),
        max_seqlen=7,
        images=RowImages(
            pixels=np.arange(20 * 12, dtype=np.uint8).reshape(20, 12),
            grids=np.array([[1, 4, 2], [1, 2, 4], [1, 2, 2]], np.int32),
            owner=np.array([0, 0, 2], np.int32),
            starts=np.array([0, 2, 10], np.int32),
        ),
    )


def laid_out(row: Microbatch, **options) -> dict:
    [fields] = layouts.qwen(batch_of([row], sequence_length=16), **options)
    return fields


def test_positions_go_through_the_grid_of_an_image_and_on_after_its_largest_side():
    fields = laid_out(row_with_images())
    assert fields["position_ids"].dtype == np.int64
    assert fields["position_ids"].tolist() == [
        [[0, 1, 2, 3, 4, 5, 6, 0, 0, 1, 0, 1, 0, 1, 2, 3]],
        [[0, 0, 2, 2, 4, 5, 6, 0, 0, 1, 0, 1, 0, 1, 2, 3]],
        [[0, 1, 2, 2, 4, 5, 6, 0, 0, 1, 0, 1, 0, 1, 2, 3]],
        [[0, 0, 2, 3, 4, 5, 6, 0, 0, 1, 0, 1, 0, 1, 2, 3]],
    ]


def test_text_fields_are_those_of_the_text_layout():
    fields, row = laid_out(row_with_images()), row_with_images()
    [text] = layouts.hf(batch_of([row], sequence_length=16))
    for name in text.keys() - {"position_ids", "images"}:
        assert np.array_equal(fields[name], text[name]), name
    assert fields["labels"].tolist()[0][:8] == [-100, -100, -100, -100, -100, 52, 53, -100]


def test_grids_are_those_of_the_images():
    fields = laid_out(row_with_images())
    assert fields["image_grid_thw"].dtype == np.int64
    assert fields["image_grid_thw"].tolist() == [[1, 4, 2], [1, 2, 4], [1, 2, 2]]


def test_a_patch_is_flattened_by_channel_time_row_and_column():
    [first, *_] = laid_out(row_with_images(), mean=(0, 0, 0), std=(1, 1, 1))["pixel_values"]
    assert first.dtype == np.float32
    red, green, blue = [0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]
    assert np.allclose(first * 255, [*red, *red, *green, *green, *blue, *blue])
    [still, *_] = laid_out(row_with_images(), mean=(0, 0, 0), std=(1, 1, 1), temporal_patch=1)["pixel_values"]
    assert np.allclose(still * 255, [*red, *green, *blue])


def test_channels_are_normalised_each_by_its_own_mean_and_deviation():
    values = laid_out(row_with_images())["pixel_values"][0].reshape(3, 2, 4)
    for channel, (mean, deviation) in enumerate(zip(QWEN2_MEAN, QWEN2_STD, strict=True)):
        expected = (np.array([0, 3, 6, 9]) + channel) / 255
        assert np.allclose(values[channel], (expected - mean) / deviation, atol=1e-6)


def processed(pixels_HW3: np.ndarray, patch: int, merge: int) -> np.ndarray:
    """Return what the image processor of Qwen2-VL makes of one image, step by step as it does."""
    frames = np.stack([pixels_HW3.transpose(2, 0, 1)] * 2).astype(np.float64) / 255
    frames = (frames - np.array(QWEN2_MEAN)[:, None, None]) / np.array(QWEN2_STD)[:, None, None]
    tall, wide = pixels_HW3.shape[0] // patch, pixels_HW3.shape[1] // patch
    cut = frames.reshape(1, 2, 3, tall // merge, merge, patch, wide // merge, merge, patch)
    return cut.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(tall * wide, -1)


def test_an_image_gives_the_values_of_the_processor():
    pixels_HW3 = np.random.default_rng(3).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    images = RowImages(
        pixels=to_patches(pixels_HW3, patch=2, merge=2),
        grids=np.array([[1, 4, 6]], np.int32),
        owner=np.zeros(1, np.int32),
        starts=np.zeros(1, np.int32),
    )
    tokens = np.array([9] * 6 + [1] * 10, np.int32)
    fields = laid_out(replace(row_with_images(), images=images, input_ids=tokens))
    assert fields["pixel_values"].shape == (24, 3 * 2 * 2 * 2)
    assert np.allclose(fields["pixel_values"], processed(pixels_HW3, patch=2, merge=2), atol=1e-5)


def test_a_row_without_images_has_text_positions_in_all_directions():
    first, *_ = layouts.qwen(golden_batch())
    assert {"pixel_values", "image_grid_thw"}.isdisjoint(first)
    [[text], *places] = first["position_ids"].tolist()
    assert text == [0, 1, 2, 0, 0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1, 2]
    assert places == [[text]] * 3


def test_an_image_without_tokens_is_kept_apart():
    row = row_with_images()
    images = replace(row.images, owner=np.array([0, -1, 2], np.int32), starts=np.array([0, 0, 10], np.int32))
    tokens = row.input_ids.copy()
    tokens[2:4] = 50
    fields = laid_out(replace(row, images=images, input_ids=tokens))
    assert fields["image_grid_thw"].tolist() == [[1, 4, 2], [1, 2, 2]]
    assert fields["dummy_image_grid_thw"].tolist() == [[1, 2, 4]]
    whole = laid_out(row)["pixel_values"]
    assert np.array_equal(fields["pixel_values"], np.concatenate([whole[:8], whole[16:]]))
    assert np.array_equal(fields["dummy_pixel_values"], whole[8:16])
    assert fields["position_ids"][1].tolist() == [[0, 0, 2, 3, 4, 5, 6, 0, 0, 1, 0, 1, 0, 1, 2, 3]]


def test_dummies_alone_leave_no_pixels_but_theirs():
    row = row_with_images()
    tokens = np.where(row.input_ids == PLACEHOLDER, 50, row.input_ids)
    images = replace(row.images, owner=np.full(3, -1, np.int32))
    fields = laid_out(replace(row, images=images, input_ids=tokens))
    assert "pixel_values" not in fields
    assert len(fields["dummy_pixel_values"]) == 20


@pytest.mark.parametrize("merge", [1, 4, 8])
def test_a_merge_that_does_not_fit_the_placeholders_is_refused(merge):
    row = row_with_images()
    images = replace(row.images, grids=np.array([[1, 4, 4], [1, 4, 4], [1, 4, 4]], np.int32))
    tokens = np.array([9, 9, 9, 9, 9, 9, 9, 9, 61, 62, 9, 9, 9, 9, 0, 0], np.int32)
    fitting = replace(images, starts=np.array([0, 4, 10], np.int32), pixels=np.zeros((48, 12), np.uint8))
    assert "pixel_values" in laid_out(replace(row, input_ids=tokens, images=fitting))
    with pytest.raises(ConfigError, match=f"was given merge={merge}.*give it the merge of the image transform"):
        laid_out(replace(row, input_ids=tokens, images=fitting), merge=merge)


def test_images_that_are_encoded_apart_from_their_row_are_refused():
    row = row_with_images()
    apart = replace(row, images=replace(row.images, pixels=np.empty((0, 0), np.uint8)))
    with pytest.raises(ConfigError, match="set strategy: vlm_joint"):
        laid_out(apart)


@pytest.mark.parametrize("name", ["megatron", "megatron_packed", "hf", "flash", "torchtitan"])
def test_layouts_of_text_keep_the_images_as_they_are(name):
    row = row_with_images()
    [item] = layouts.NAMED[name](batch_of([row], sequence_length=16))
    fields = item[0] if name == "torchtitan" else item
    assert list(fields["images"]) == ["pixels", "grids", "owner", "starts"]
    assert fields["images"]["pixels"] is row.images.pixels
    assert fields["images"]["starts"].tolist() == [0, 2, 10]


def test_a_pipeline_stage_without_tokens_is_refused():
    with pytest.raises(ConfigError, match="set fields_by_stage: false"):
        laid_out(replace(row_with_images(), input_ids=None, images=None))

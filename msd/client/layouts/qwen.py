"""Qwen-style vision-language models of Hugging Face transformers: the text layout, with images and their positions."""

# T = tokens of a row. I = images of the row. P = patches. F = values of one patch (patch * patch * 3).

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from msd.client.layouts.hf import TRAINER_SLICES, flattened
from msd.client.layouts.laid_out import LaidOutBatch, check_slices
from msd.core.arrays import BoolArray, Float32Array, Int32Array, Int64Array, UInt8Array
from msd.core.batch import Microbatch, RankBatch, RowImages
from msd.errors import ConfigError

QWEN2_MEAN = (0.48145466, 0.4578275, 0.40821073)
"""Of red, green and blue over 255, as the image processor of Qwen2-VL and Qwen2.5-VL subtracts."""
QWEN2_STD = (0.26862954, 0.26130258, 0.27577711)


def qwen(
    batch: RankBatch,
    *,
    mean: Sequence[float] = QWEN2_MEAN,
    std: Sequence[float] = QWEN2_STD,
    merge: int = 2,
    temporal_patch: int = 2,
) -> LaidOutBatch:
    """Return each microbatch as keyword arguments of a Qwen-style model: the fields of layout `hf`, and of images.

        position_ids    int64 [4, 1, T]: text positions, by which documents are told apart; then time, height, width
        pixel_values    float32 [P, 3 * temporal_patch * patch * patch]: (value / 255 - mean) / std; a patch is
                        flattened by channel, time, row, column
        image_grid_thw  int64 [I, 3]: (t, h, w) in patches

    A row without images has no `pixel_values` and no `image_grid_thw`. An image without tokens, which stands in where a
    rank has none to encode, is in `dummy_pixel_values` and `dummy_image_grid_thw` in their place: run the encoder on it
    and add zero times the result. Labels are **not shifted**, since the model shifts, and -100 on placeholders.

    Positions follow the model's own rule, document by document: text counts on in all three; a placeholder has the
    position at which its image begins plus its place in the merged grid; what follows begins after the largest. They
    are given because the model looks for a token that opens an image, which need not be there. Transformers releases
    that know three rows only take `position_ids[1:]`.

    Args:
        batch: Of one rank.
        mean: To subtract, by channel; Qwen3-VL has (0.5, 0.5, 0.5) for this and for `std`.
        std: To divide by, by channel.
        merge: One placeholder stands for merge * merge patches, as in the `image` transform.
        temporal_patch: Frames of a patch; an image is repeated.

    Raises:
        ConfigError: If the rank holds context-parallel slices, gets no tokens because of its pipeline stage, or no
            pixels because images are encoded apart, or the placeholders of an image are not where `merge` says.
    """
    check_slices(batch, "qwen", takes=None, otherwise=TRAINER_SLICES)

    def lay_out(row: Microbatch) -> dict[str, Any]:
        tokens_T = _tokens_with_images(row)
        fields = flattened(row)
        text_1T = fields["position_ids"]
        places_3T = np.repeat(text_1T, 3, axis=0)
        images, dummies = _told_apart(row.images)
        if images is not None:
            _check_placeholders(tokens_T, images, merge)
            places_3T = _places(text_1T[0], images, merge)
        fields["position_ids"] = np.concatenate([text_1T, places_3T])[:, None]
        for prefix, shown in (("", images), ("dummy_", dummies)):
            if shown is not None:
                fields[f"{prefix}pixel_values"] = _normalised(shown.pixels, mean, std, temporal_patch)
                fields[f"{prefix}image_grid_thw"] = shown.grids.astype(np.int64)
        return fields

    return LaidOutBatch.of(batch, lay_out)


def _tokens_with_images(row: Microbatch) -> Int32Array:
    """Return the tokens of a row that came with all that makes its positions and pixels."""
    if row.input_ids is None:
        raise ConfigError(
            "layout 'qwen' makes positions from images, which this pipeline stage does not get; "
            "set fields_by_stage: false"
        )
    if row.images is not None and len(row.images.pixels) != row.images.grids.prod(axis=1).sum():
        raise ConfigError(
            "layout 'qwen' takes images with their rows, and this run encodes them apart; "
            "set strategy: vlm_joint, or vlm_backbone"
        )
    return row.input_ids


def _told_apart(images: RowImages | None) -> tuple[RowImages | None, RowImages | None]:
    """Return the images that have tokens, and the dummies; None where there are none."""
    if images is None:
        return None, None
    is_dummy_I = images.owner < 0
    return _chosen(images, ~is_dummy_I), _chosen(images, is_dummy_I)


def _chosen(images: RowImages, is_chosen_I: BoolArray) -> RowImages | None:
    if not is_chosen_I.any():
        return None
    is_chosen_P = np.repeat(is_chosen_I, images.grids.prod(axis=1))
    return RowImages(
        pixels=images.pixels[is_chosen_P],
        grids=images.grids[is_chosen_I],
        owner=images.owner[is_chosen_I],
        starts=images.starts[is_chosen_I],
    )


def _check_placeholders(tokens_T: Int32Array, images: RowImages, merge: int) -> None:
    count_I = _num_placeholders(images, merge)
    end_I = images.starts + count_I
    kind_I = tokens_T[images.starts]
    is_merged = not bool((images.grids[:, 1:] % merge).any())
    if (
        is_merged
        and bool((end_I <= len(tokens_T)).all())
        and bool((tokens_T[_spots(images, merge)] == np.repeat(kind_I, count_I)).all())
    ):
        # One more placeholder than counted must be the first of the next image.
        is_more_I = np.append(tokens_T, -1)[end_I] == kind_I
        if not bool((is_more_I & ~np.isin(end_I, images.starts)).any()):
            return
    raise ConfigError(
        f"layout 'qwen' was given merge={merge}, and images of {images.grids.tolist()} patches (t, h, w) have other "
        "numbers of placeholders in their row; give it the merge of the image transform"
    )


def _places(text_T: Int64Array, images: RowImages, merge: int) -> Int64Array:
    """Return int64 [3, T]: position in time, height and width, restarting with each document."""
    grid_I3 = images.grids // (1, merge, merge)
    # By how much the position grows from a token to the next: an image as a whole by its largest side.
    growth_T = np.ones(len(text_T), dtype=np.int64)
    growth_T[_spots(images, merge)] = 0
    growth_T[images.starts + _num_placeholders(images, merge) - 1] = grid_I3.max(axis=1)
    place_T = np.cumsum(growth_T) - growth_T
    first_T = np.arange(len(text_T)) - text_T
    place_3T: Int64Array = np.stack([place_T - place_T[first_T]] * 3)
    place_3T[:, _spots(images, merge)] += np.concatenate([np.indices(grid).reshape(3, -1) for grid in grid_I3], axis=1)
    return place_3T


def _num_placeholders(images: RowImages, merge: int) -> Int64Array:
    count_I: Int64Array = images.grids.prod(axis=1, dtype=np.int64) // merge**2
    return count_I


def _spots(images: RowImages, merge: int) -> Int64Array:
    """Return the positions of all placeholders, image by image."""
    count_I = _num_placeholders(images, merge)
    first_I = np.cumsum(count_I) - count_I
    spot: Int64Array = np.repeat(images.starts - first_I, count_I) + np.arange(count_I.sum())
    return spot


def _normalised(
    pixels_PF: UInt8Array, mean: Sequence[float], std: Sequence[float], temporal_patch: int
) -> Float32Array:
    """Return float32 [P, 3 * temporal_patch * patch * patch] of patches flattened by row, column, channel."""
    patch = math.isqrt(pixels_PF.shape[1] // 3)
    mean_3, std_3 = np.asarray(mean, dtype=np.float32), np.asarray(std, dtype=np.float32)
    values: Float32Array = (
        pixels_PF.reshape(-1, patch, patch, 3).astype(np.float32) / np.float32(255) - mean_3
    ) / std_3
    by_channel = values.transpose(0, 3, 1, 2)[:, :, None]
    return np.repeat(by_channel, temporal_patch, axis=2).reshape(len(pixels_PF), -1)

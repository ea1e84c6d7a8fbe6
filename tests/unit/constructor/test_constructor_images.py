"""Images of a row: whose they are and where their placeholders begin."""

import numpy as np
import pytest

from msd.constructor import DataConstructor
from msd.constructor.images import dummy_images
from msd.core.batch import Microbatch
from msd.core.mesh import Mesh
from msd.core.sample import Sample, SampleId, SampleImages
from msd.errors import ConfigError, PlanError
from msd.testing.plans import Placed, plan_by_hand


def photo(ordinal: int, num_images: int, *, text: int = 3, values: int = 12, source: str = "photos") -> Sample:
    """Each image is 2 x 4 patches under 2 placeholders (merge 2)."""
    return Sample(
        id=SampleId(source, ordinal, 0),
        tokens_T=np.array([7] * (2 * num_images) + list(range(1, text + 1)), dtype=np.int32),
        num_image_tokens=2 * num_images,
        images=SampleImages(
            pixels_PF=np.full((8 * num_images, values), ordinal, dtype=np.uint8),
            grids_I3=np.array([[1, 2, 4]] * num_images, dtype=np.int32),
            starts_I=np.arange(num_images, dtype=np.int32) * 2,
        ),
    )


def words(ordinal: int) -> Sample:
    return Sample(id=SampleId("web", ordinal, 0), tokens_T=np.arange(3, dtype=np.int32))


def rows_of(*rows: list[Placed], mesh: Mesh | None = None, **changes) -> list[list[Microbatch]]:
    """Return the microbatches of every rank."""
    mesh = mesh or Mesh.of(dp=1)
    plan = plan_by_hand([list(rows)], mesh=mesh, sequence_length=32, document_multiple=4, **changes)
    samples = {p.sample.id: p.sample for row in rows for p in row}
    constructor = DataConstructor(pad_token_id=0)
    assembled = constructor.build(plan, 0, samples.__getitem__)
    return [constructor.rank_batch(assembled, plan, rank).microbatches for rank in range(mesh.world_size)]


def test_images_name_their_document_and_their_place_in_the_row():
    [[row]] = rows_of([Placed(words(0), 0), Placed(photo(1, 2), 4), Placed(words(2), 12), Placed(photo(3, 1), 16)])
    assert row.images is not None
    assert row.images.owner.tolist() == [1, 1, 3]
    assert row.images.starts.tolist() == [4, 6, 16]
    assert row.images.grids.tolist() == [[1, 2, 4]] * 3
    assert row.images.pixels[:, 0].tolist() == [1] * 16 + [3] * 8
    for owner, start in zip(row.images.owner, row.images.starts, strict=True):
        assert row.input_ids[start : start + 2].tolist() == [7, 7]
        assert (row.segment_ids[start : start + 2] == owner + 1).all()


def test_dtypes_and_shapes_are_those_of_the_contract():
    [[row]] = rows_of([Placed(photo(0, 1), 0)])
    images = row.images
    assert images is not None
    assert (images.pixels.dtype, images.pixels.shape) == (np.uint8, (8, 12))
    assert {images.grids.dtype, images.owner.dtype, images.starts.dtype} == {np.dtype(np.int32)}


def test_a_row_of_text_alone_has_no_images():
    [[text_row, photo_row]] = rows_of([Placed(words(0), 0)], [Placed(photo(1, 1), 0)])
    assert text_row.images is None
    assert photo_row.images is not None


def test_only_the_piece_with_the_placeholders_owns_the_images():
    sample = photo(0, 1, text=10)
    [[first, second]] = rows_of([Placed(sample, 0, 0, 6)], [Placed(sample, 0, 6, 6)])
    assert first.images is not None
    assert second.images is None


def test_every_context_parallel_rank_shares_the_whole_rows_images():
    [[first], [second]] = rows_of(
        [Placed(photo(0, 1), 0), Placed(photo(1, 2), 8)], mesh=Mesh.of(dp=1, cp=2), slice_axis="cp"
    )
    assert first.images is second.images
    assert first.images is not None
    assert first.images.starts.tolist() == [0, 8, 10]
    assert first.input_ids.shape == (16,)


def test_markers_say_the_shapes_of_images():
    plan = plan_by_hand(
        [[[Placed(photo(0, 1), 0)]]], mesh=Mesh.of(dp=1, tp=2), sequence_length=8, broadcast=("tp",)
    )  # fmt: skip
    constructor = DataConstructor(pad_token_id=0)
    marker = constructor.rank_batch(constructor.build(plan, 0, lambda _: photo(0, 1)), plan, 1).markers[0]
    assert marker.shapes["images.pixels"] == ((8, 12), "uint8")
    assert marker.shapes["images.grids"] == ((1, 3), "int32")


def test_patches_of_different_sizes_in_one_row_are_refused_naming_both_sources():
    with pytest.raises(ConfigError, match="'photos' and 'scans' give patches of 12 and 27 values"):
        rows_of([Placed(photo(0, 1), 0), Placed(photo(1, 1, values=27, source="scans"), 8)])


def test_a_row_that_the_plan_aligns_carries_a_dummy_that_belongs_to_no_document():
    plan = plan_by_hand(
        [[[Placed(photo(1, 1), 0)]], [[Placed(words(0), 0)]]],
        mesh=Mesh.of(dp=2),
        sequence_length=32,
        align=("image",),
        dummy_BM=np.array([[False], [True]]),
    )
    samples = {1: photo(1, 1), 0: words(0)}
    constructor = DataConstructor(pad_token_id=0, dummy=dummy_images(patch=2, merge=2))
    buckets = [constructor.build(plan, bucket, lambda sample_id: samples[sample_id.ordinal]) for bucket in range(2)]
    real, made_up = (constructor.rank_batch(b, plan, rank).microbatches[0] for rank, b in enumerate(buckets))
    assert real.images.owner.tolist() == [0]
    assert made_up.images.owner.tolist() == [-1]
    assert made_up.images.starts.tolist() == [-1]
    assert made_up.images.grids.tolist() == [[1, 2, 2]]
    assert made_up.images.pixels.shape == (4, real.images.pixels.shape[1])
    assert not made_up.images.pixels.any()
    assert made_up.input_ids.tolist()[:4] == [0, 1, 2, 0]


def test_a_dummy_without_an_image_transform_is_refused():
    plan = plan_by_hand(
        [[[Placed(words(0), 0)]]], mesh=Mesh.of(dp=1), sequence_length=8, align=("image",), dummy_BM=np.array([[True]])
    )
    with pytest.raises(PlanError, match=r"no source has an image transform .* leave images out of balance\.align"):
        DataConstructor(pad_token_id=0).build(plan, 0, lambda _: words(0))

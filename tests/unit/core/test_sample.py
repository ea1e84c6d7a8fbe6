"""Samples, their metadata, and slabs of them."""

import numpy as np
import pytest

from msd.core.sample import Failure, MetaTable, Outcome, Sample, SampleId, SampleImages, SampleSlab

PATCH = 12


def sample(ordinal, length, *, trained=None, grids=(), merge=1):
    num_patches = sum(t * h * w for t, h, w in grids)
    placeholders = [t * h * w // merge**2 for t, h, w in grids]
    images = None
    if grids:
        images = SampleImages(
            pixels_PF=(np.arange(num_patches * PATCH) + ordinal).astype(np.uint8).reshape(num_patches, PATCH),
            grids_I3=np.array(grids, dtype=np.int32),
            starts_I=np.cumsum([0, *placeholders[:-1]]).astype(np.int32),
        )
    return Sample(
        id=SampleId("web", ordinal, 0),
        tokens_T=np.arange(length, dtype=np.int32) + 1000 * ordinal,
        num_image_tokens=sum(placeholders),
        trained_T=None if trained is None else np.array(trained, dtype=np.uint8),
        images=images,
    )


def labelled(one):
    """Positions with a label, straight from the definition."""
    tokens = range(len(one.tokens_T))
    trained = [1] * len(tokens) if one.trained_T is None else one.trained_T.tolist()
    return [j for j in tokens if j + 1 in tokens and trained[j + 1] and j >= one.num_image_tokens]


@pytest.mark.parametrize(
    "one",
    [
        sample(0, 0),
        sample(0, 1),
        sample(0, 2),
        sample(0, 9),
        sample(0, 6, trained=[1, 1, 0, 0, 1, 1]),
        sample(0, 6, trained=[0] * 6),
        sample(0, 6, trained=[0, 0, 0, 0, 0, 1]),
        sample(0, 1, trained=[1]),
        sample(0, 0, trained=[]),
        sample(0, 9, grids=[(1, 2, 2)]),
        sample(0, 4, grids=[(1, 2, 2)]),
        sample(0, 5, grids=[(1, 2, 2)]),
        sample(0, 9, grids=[(1, 2, 2)], trained=[1, 1, 1, 1, 1, 0, 1, 0, 1]),
    ],
)
def test_label_runs_are_the_positions_that_the_rule_names(one):
    runs = one.label_runs()
    assert [j for first, end in runs.tolist() for j in range(first, end)] == labelled(one)
    assert runs.dtype == np.int32
    assert (runs[:, 1] > runs[:, 0]).all()


def test_a_slab_gives_back_every_sample_as_it_was():
    given = [
        sample(0, 5),
        sample(1, 9, grids=[(1, 2, 2), (1, 2, 1)], trained=[0] * 6 + [1, 0, 1]),
        sample(2, 0),
        sample(3, 3, trained=[1, 0, 1]),
        sample(4, 8, grids=[(1, 4, 2)]),
        sample(5, 2),
    ]
    slab = SampleSlab.of(given)
    for one in reversed(given):
        back = slab.sample(one.id)
        assert back.tokens_T.tolist() == one.tokens_T.tolist()
        assert back.num_image_tokens == one.num_image_tokens
        assert (back.trained_T is None) == (one.trained_T is None)
        assert one.trained_T is None or back.trained_T.tolist() == one.trained_T.tolist()
        assert (back.images is None) == (one.images is None)
        if one.images is not None:
            for name in ("pixels_PF", "grids_I3", "starts_I"):
                assert getattr(back.images, name).tolist() == getattr(one.images, name).tolist()


def test_a_slab_hands_out_views_and_knows_its_bytes():
    slab = SampleSlab.of([sample(0, 5), sample(1, 9, grids=[(1, 2, 2)])])
    assert np.shares_memory(slab.sample(SampleId("web", 1, 0)).images.pixels_PF, slab.pixels_PF)
    assert slab.nbytes == 14 * 4 + 4 * PATCH + 3 * 4
    assert SampleId("web", 1, 0) in slab
    assert SampleId("web", 1, 1) not in slab
    assert len(slab) == 2


def test_a_slab_without_pixels_keeps_the_geometry_of_its_images():
    slab = SampleSlab.of([sample(0, 5), sample(1, 9, grids=[(1, 2, 2), (1, 4, 2)])])
    bare = slab.without_pixels()
    assert (slab.has_pixels, bare.has_pixels) == (True, False)
    assert slab.nbytes - bare.nbytes == 12 * PATCH
    images = bare.sample(SampleId("web", 1, 0)).images
    assert images.pixels_PF.shape == (0, PATCH)
    assert images.grids_I3.tolist() == [[1, 2, 2], [1, 4, 2]]
    assert SampleSlab.joined([bare, bare]).has_pixels is False
    assert SampleSlab.of([sample(0, 5)]).has_pixels


def test_an_empty_slab_is_legal():
    slab = SampleSlab.of([])
    assert (len(slab), slab.nbytes) == (0, 0)


def test_a_table_lists_every_row_with_its_parts_and_outcome():
    parts = [sample(7, 4), sample(7, 6, grids=[(1, 2, 2)])]
    failure = Failure(ordinal=6, reason="ValueError: no text", shard="web/0", row=3)
    rows = [(Outcome.FILTERED, []), (Outcome.FAILED, []), (Outcome.OK, parts)]
    table = MetaTable.of("web", 5, rows, [failure])
    assert (table.start, table.num_rows, table.end) == (5, 3, 8)
    assert table.num_parts_R.tolist() == [0, 0, 2]
    assert table.outcome_R.tolist() == [1, 2, 0]
    assert table.num_tokens_S.tolist() == [4, 6]
    assert table.num_patches_S.tolist() == [0, 4]
    assert table.num_bytes_S.tolist() == [one.nbytes for one in parts]
    assert table.num_runs_S.tolist() == [1, 1]
    assert table.runs_L2.tolist() == [[0, 3], [4, 5]]
    assert table.failures == (failure,)


def test_a_table_lists_the_patches_of_each_image_across_samples():
    parts = [sample(7, 9, grids=[(1, 2, 2), (1, 4, 2)]), sample(8, 4), sample(9, 6, grids=[(1, 2, 4)])]
    table = MetaTable.of("web", 7, [(Outcome.OK, [part]) for part in parts])
    assert table.num_patches_I.tolist() == [4, 8, 8]
    assert table.num_images_S.tolist() == [2, 0, 1]


def test_a_table_of_no_samples_keeps_its_column_types():
    table = MetaTable.of("web", 0, [(Outcome.FILTERED, [])])
    assert table.num_tokens_S.dtype == table.runs_L2.dtype == table.num_patches_I.dtype == np.int32
    assert table.runs_L2.shape == (0, 2)

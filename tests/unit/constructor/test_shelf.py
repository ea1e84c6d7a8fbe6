from dataclasses import replace

import numpy as np
import pytest

from msd.constructor.constructor import DataConstructor
from msd.constructor.images import dummy_images
from msd.constructor.shelf import Shelf
from msd.core.mesh import Mesh
from msd.core.sample import Sample, SampleId, SampleImages, SampleSlab
from msd.errors import EngineError
from msd.planner.planner import Planner
from msd.planner.strategies.vlm_hybrid import vlm_hybrid
from msd.testing.tables import LengthCost, Part, Row, feed_of, row, settings_of, steps_of

SOURCES = {"web": [row(20), row(31), row(5)] * 30, "books": [row(50)] * 40}
HOSTS = ("a", "b")


def plans(count: int, **changes) -> list:
    settings = settings_of(SOURCES, **{"mesh": Mesh.of(dp=2, tp=2), "num_microbatches": 2, **changes})
    found = steps_of(Planner(settings), feed_of(SOURCES, settings))
    return [next(found) for _ in range(count)]


PLANS = plans(4)


def owners_of(plan, hosts=HOSTS) -> dict:
    owners: dict = {}
    for sample_id in plan.sample_ids():
        partition = sample_id.ordinal % len(hosts)
        owners.setdefault(sample_id.source, {})[sample_id.ordinal] = (hosts[partition], partition)
    return owners


def sample_of(sample_id: SampleId) -> Sample:
    length = SOURCES[sample_id.source][sample_id.ordinal % len(SOURCES[sample_id.source])].parts[0].num_tokens
    return Sample(id=sample_id, tokens_T=np.arange(length, dtype=np.int32) + sample_id.ordinal)


def slab_of(ids) -> SampleSlab:
    return SampleSlab.of([sample_of(sample_id) for sample_id in ids])


def shelf_of(*ranks: int, steps=(), generation: int = 0) -> Shelf:
    shelf = Shelf(DataConstructor(pad_token_id=0), ranks or (0, 1, 2, 3))
    for step in steps:
        shelf.assign(generation, PLANS[step], owners_of(PLANS[step]), 1)
    return shelf


def fill(shelf: Shelf, step: int) -> None:
    for ids in shelf.needed(step).values():
        shelf.deliver(step, slab_of(ids))


def test_a_step_lacks_the_samples_of_its_ranks_buckets_by_owner():
    shelf = shelf_of(2, steps=[0])
    bucket = PLANS[0].bucket_of(2)
    needed = shelf.needed(0)
    assert {i for ids in needed.values() for i in ids} == set(PLANS[0].sample_ids(bucket))
    assert all(owners_of(PLANS[0])[i.source][i.ordinal] == place for place, ids in needed.items() for i in ids)


def test_a_rank_gets_its_batch_when_nothing_is_missing():
    shelf = shelf_of(steps=[0])
    assert shelf.batch(0, 0, 1) is None
    fill(shelf, 0)
    assert shelf.needed(0) == {}
    batch = shelf.batch(0, 0, 1)
    alone = DataConstructor(pad_token_id=0)
    expected = alone.rank_batch(alone.build(PLANS[0], PLANS[0].bucket_of(1), sample_of), PLANS[0], 1)
    assert batch.sample_ids == expected.sample_ids
    for found, wanted in zip(batch.microbatches, expected.microbatches, strict=True):
        assert np.array_equal(found.input_ids, wanted.input_ids)


def test_ranks_of_a_bucket_share_what_is_assembled_once():
    shelf = shelf_of(steps=[0])
    fill(shelf, 0)
    first, second = shelf.batch(0, 0, 0), shelf.batch(0, 0, 1)
    assert first.microbatches[0].input_ids is second.microbatches[0].input_ids


def test_a_bucket_is_ready_without_the_others():
    shelf = shelf_of(steps=[0])
    buckets = (PLANS[0].bucket_of(0), PLANS[0].bucket_of(2))
    shelf.deliver(0, slab_of(PLANS[0].sample_ids(buckets[1])))
    assert [shelf.is_ready(0, bucket) for bucket in buckets] == [False, True]
    assert shelf.batch(0, 0, 2) is not None
    assert shelf.batch(0, 0, 0) is None


def test_payload_goes_when_the_last_bucket_that_needs_it_is_assembled():
    shelf = shelf_of(steps=[0])
    assert shelf.nbytes == 0
    slab = slab_of(PLANS[0].sample_ids())
    shelf.deliver(0, slab)
    rows = shelf.assemble(0, PLANS[0].bucket_of(0)).nbytes
    assert shelf.nbytes == slab.nbytes + rows
    other = shelf.assemble(0, PLANS[0].bucket_of(2)).nbytes
    assert shelf.nbytes == rows + other
    shelf.drop(0, 0)
    assert (shelf.nbytes, shelf.held_steps) == (0, [])


def test_payload_that_comes_again_or_for_nobody_is_not_kept():
    shelf = shelf_of(0, steps=[0])
    slab = slab_of(PLANS[0].sample_ids(PLANS[0].bucket_of(0)))
    shelf.deliver(0, slab)
    shelf.deliver(0, slab)
    shelf.deliver(0, slab_of(PLANS[0].sample_ids(PLANS[0].bucket_of(2))))
    shelf.deliver(3, slab)
    assert shelf.nbytes == slab.nbytes
    assert shelf.batch(0, 0, 0) is not None
    shelf.deliver(0, slab)
    assert shelf.nbytes == shelf.assemble(0, PLANS[0].bucket_of(0)).nbytes


@pytest.mark.parametrize("packing", ["best_fit", "concat", "none"])
def test_cut_and_repeated_samples_are_asked_for_once(packing):
    (plan,) = plans(1, packing=packing)
    shelf = Shelf(DataConstructor(pad_token_id=0), range(4))
    shelf.assign(0, plan, owners_of(plan), 1)
    asked = [sample_id for ids in shelf.needed(0).values() for sample_id in ids]
    assert len(asked) == len(set(asked)) == len(set(plan.sample_ids()))
    fill(shelf, 0)
    assert all(shelf.batch(0, 0, rank) is not None for rank in range(4))


def test_an_assignment_repeated_changes_nothing():
    shelf = shelf_of(steps=[0])
    fill(shelf, 0)
    assert not shelf.assign(0, PLANS[0], owners_of(PLANS[0]), 1)
    assert shelf.needed(0) == {}


def test_newer_owners_are_followed_for_what_is_still_missing_and_older_ones_are_not():
    shelf = shelf_of(steps=[0])
    (_, first), *_ = shelf.needed(0).items()
    shelf.deliver(0, slab_of(first))
    assert shelf.assign(0, PLANS[0], owners_of(PLANS[0], ("c", "c")), 2)
    assert {host for host, _ in shelf.needed(0)} == {"c"}
    assert not {i for ids in shelf.needed(0).values() for i in ids} & set(first)
    assert not shelf.assign(0, PLANS[0], owners_of(PLANS[0]), 1)
    assert {host for host, _ in shelf.needed(0)} == {"c"}


def test_an_older_generation_is_refused_and_a_newer_one_begins_with_whatever_comes_first():
    shelf = shelf_of(steps=[0, 1])
    shelf.finish(0, 9)
    assert shelf.assign(1, PLANS[1], owners_of(PLANS[1]), 1)
    assert (shelf.generation, shelf.held_steps, shelf.end) == (1, [1], None)
    assert not shelf.assign(0, PLANS[0], owners_of(PLANS[0]), 9)
    shelf.drop(0, 5)
    shelf.finish(0, 3)
    shelf.rewind(1)
    shelf.rewind(0)
    assert (shelf.generation, shelf.held_steps, shelf.end) == (1, [1], None)
    fill(shelf, 1)
    assert shelf.batch(0, 1, 0) is None
    assert shelf.batch(1, 1, 0).generation == 1


def test_of_a_drop_and_an_assignment_the_one_that_was_sent_later_speaks_whatever_comes_first():
    for order in ("drop first", "assign first"):
        shelf = shelf_of()
        if order == "drop first":
            shelf.drop(0, 3, number=7)
        assert shelf.assign(0, PLANS[2], owners_of(PLANS[2]), 1, number=9)
        shelf.drop(0, 3, number=7)
        assert shelf.held_steps == [2]
        shelf.drop(0, 2, number=10)
        assert not shelf.assign(0, PLANS[2], owners_of(PLANS[2]), 1, number=9)
        assert shelf.held_steps == []


def test_a_drop_that_comes_late_does_not_undo_a_later_one():
    shelf = shelf_of()
    shelf.drop(0, 2, number=9)
    shelf.drop(0, 0, number=3)
    assert not shelf.assign(0, PLANS[1], owners_of(PLANS[1]), 1, number=8)
    assert shelf.assign(0, PLANS[3], owners_of(PLANS[3]), 1, number=8)


def test_a_later_planner_speaks_whatever_the_one_before_it_counted():
    shelf = shelf_of(steps=[0, 1])
    shelf.assign(0, PLANS[2], owners_of(PLANS[2]), 7, number=30, term=1)
    assert shelf.assign(0, PLANS[2], owners_of(PLANS[2], ("c", "c")), 1, number=1, term=2)
    assert {host for host, _ in shelf.needed(2)} == {"c"}
    shelf.drop(0, 2, number=31, term=1)
    assert shelf.held_steps == [2]
    shelf.drop(0, 2, number=2, term=2)
    assert shelf.held_steps == []
    assert not shelf.assign(0, PLANS[2], owners_of(PLANS[2]), 9, number=99, term=1)


def test_a_step_that_a_later_planner_plans_otherwise_is_an_error():
    shelf = shelf_of(steps=[1])
    other = replace(PLANS[1], progress={**PLANS[1].progress, "step": 77})
    with pytest.raises(EngineError, match="step 1 was planned again and is another step now"):
        shelf.assign(0, other, owners_of(other), 1, term=1)


def test_a_shelf_tells_positions_after_what_it_holds_and_which_steps_a_host_owes():
    shelf = shelf_of(steps=[0, 2])
    assert shelf.positions() == {1: PLANS[0].progress, 3: PLANS[2].progress}
    fill(shelf, 0)
    assert shelf.owed_by("a") == [2]
    assert shelf.owed_by("c") == []


ALBUMS = {"photos": [Row((Part(3 * n + 5, 3 * n, (n, 2 * n)),)) for n in (1, 4, 2)] * 20, "web": [row(30)] * 30}


def album_of(sample_id: SampleId) -> Sample:
    part = ALBUMS[sample_id.source][sample_id.ordinal % len(ALBUMS[sample_id.source])].parts[0]
    counts = part.placeholders
    return Sample(
        id=sample_id,
        tokens_T=np.arange(part.num_tokens, dtype=np.int32),
        num_image_tokens=part.num_image_tokens,
        images=None
        if not counts
        else SampleImages(
            pixels_PF=np.full((4 * sum(counts), 12), sample_id.ordinal % 251, dtype=np.uint8),
            grids_I3=np.array([(1, 2, 2 * n) for n in counts], dtype=np.int32),
            starts_I=np.cumsum([0, *counts[:-1]], dtype=np.int32),
        ),
    )


@pytest.fixture(scope="module")
def hybrid():
    cost = {"backbone": LengthCost(), "encoder": LengthCost(1.0, 0.1)}
    chosen = settings_of(ALBUMS, mesh=Mesh.of(dp=2, tp=2), num_microbatches=2, strategy=vlm_hybrid, cost=cost)
    return next(steps_of(Planner(chosen), feed_of(ALBUMS, chosen)))


def hybrid_shelf(plan, *ranks) -> Shelf:
    shelf = Shelf(DataConstructor(pad_token_id=0, dummy=dummy_images(patch=2, merge=2)), ranks)
    shelf.assign(0, plan, owners_of(plan), 1)
    return shelf


def deliver(shelf: Shelf, *, pixels: bool) -> None:
    """Deliver what is needed with pixels, or what is needed without."""
    bare = shelf.needed_without_pixels(0)
    ids = [i for ids in shelf.needed(0).values() for i in ids if (i not in bare) == pixels]
    slab = SampleSlab.of([album_of(i) for i in ids])
    shelf.deliver(0, slab if pixels else slab.without_pixels())


def test_images_that_a_rank_encodes_are_needed_wherever_their_rows_lie(hybrid):
    shelf = hybrid_shelf(hybrid, 0, 1)
    needed = {i for ids in shelf.needed(0).values() for i in ids}
    encoded = {hybrid.sample_id(d) for d in hybrid.encoder.documents_of(0, 1).tolist()}
    rows = set(hybrid.sample_ids(hybrid.bucket_of(0)))
    assert encoded - rows
    assert rows - encoded
    assert needed == rows | encoded
    assert shelf.needed_without_pixels(0) == rows - encoded
    assert shelf_of(0, steps=[0]).needed_without_pixels(0) == set()


def test_a_rank_waits_for_the_pixels_that_it_encodes_and_for_no_others(hybrid):
    shelf = hybrid_shelf(hybrid, 0, 1)
    deliver(shelf, pixels=False)
    assert shelf.batch(0, 0, 0) is None
    deliver(shelf, pixels=True)
    assert shelf.needed(0) == {}
    alone = DataConstructor(pad_token_id=0, dummy=dummy_images(patch=2, merge=2))
    for rank in (0, 1):
        batch = shelf.batch(0, 0, rank)
        expected = alone.shares(hybrid, rank, album_of)
        assert [share.num_embeddings for share in batch.encoder] == [share.num_embeddings for share in expected]
        for found, wanted in zip(batch.encoder, expected, strict=True):
            assert np.array_equal(found.pixels, wanted.pixels)
        assert all(row.images is None or row.images.pixels.size == 0 for row in batch.microbatches)
    held = shelf.assemble(0, hybrid.bucket_of(0)).nbytes + sum(
        share.nbytes for rank in (0, 1) for share in shelf.batch(0, 0, rank).encoder
    )
    assert shelf.nbytes == held


def test_pixels_that_come_late_are_asked_for_again(hybrid):
    shelf = hybrid_shelf(hybrid, 0, 1)
    everything = [i for ids in shelf.needed(0).values() for i in ids]
    shelf.deliver(0, SampleSlab.of([album_of(i) for i in everything]).without_pixels())
    encoded = {hybrid.sample_id(d) for d in hybrid.encoder.documents_of(0, 1).tolist()}
    assert {i for ids in shelf.needed(0).values() for i in ids} == encoded
    assert shelf.needed_without_pixels(0) == set()
    assert shelf.batch(0, 0, 0) is None
    fill_albums(shelf)
    assert shelf.batch(0, 0, 0) is not None


def fill_albums(shelf: Shelf) -> None:
    for ids in shelf.needed(0).values():
        shelf.deliver(0, SampleSlab.of([album_of(i) for i in ids]))


def test_the_end_is_known_once_it_is_told():
    shelf = shelf_of(steps=[0])
    assert shelf.end is None
    shelf.finish(0, 1)
    assert shelf.end == 1

"""What ranks of any mesh receive: each document once, markers that name who fetches, equal batches for equal keys."""

import functools
import itertools
import math

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from msd.constructor import DataConstructor
from msd.core.batch import TOKEN_FIELDS
from msd.core.mesh import Mesh
from msd.core.sample import Sample, SampleId
from msd.core.stages import FIELDS, Stages
from msd.planner.lineage import slices_of
from msd.planner.planner import Planner
from msd.planner.strategy import balance_and_broadcast, mix_and_pack
from msd.testing.tables import feed_of, row, settings_of, steps_of

PROFILE = settings(derandomize=True, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
SEQUENCE = 48


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    """Any axes in any order, dp in one part or two, at most 48 ranks."""
    axes = ["pp", "cp", "tp", *draw(st.sampled_from([["dp"], ["dp_shard"], ["dp_replicate", "dp_shard"]]))]
    axes += draw(st.sampled_from([[], ["ep"]]))
    sizes = {axis: draw(st.sampled_from([1, 2, 2, 3])) for axis in draw(st.permutations(axes))}
    assume(math.prod(sizes.values()) <= 48)
    return Mesh.of(**sizes)


def along(axis, graph, context):
    return balance_and_broadcast(mix_and_pack(graph, context).distribute(axis), context)


@functools.cache
def sample_of(length, sample_id):
    return Sample(id=sample_id, tokens_T=np.arange(1, length + 1, dtype=np.int32) + 100 * sample_id.ordinal)


@st.composite
def plans(draw: st.DrawFn):
    """A step of a run on some mesh, and its samples."""
    mesh = draw(meshes())
    axis = draw(st.sampled_from(["dp", "dp", "cp", "world"]))
    may_share = [name for name, _ in mesh.sizes if name in ("tp", "ep", "pp", *(["cp"] if axis == "dp" else []))]
    broadcast = () if axis == "world" else tuple(draw(st.sets(st.sampled_from(may_share))))
    stages_share = axis != "world" or mesh.size("pp") == 1
    by_stage = "pp" not in broadcast and stages_share and draw(st.booleans())
    num_microbatches = draw(st.integers(1, 2))
    made = {"web": [row(length) for length in draw(st.lists(st.integers(1, SEQUENCE), min_size=4, max_size=30))]}
    method = draw(st.sampled_from(["zigzag", "headtail", "none"]))
    multiple = 2 * mesh.size("cp") if method == "zigzag" else draw(st.sampled_from([1, 4]))
    sequence = -(-SEQUENCE // (2 * mesh.size("cp") * 12)) * 2 * mesh.size("cp") * 12
    chosen = settings_of(
        made, mesh=mesh, num_microbatches=num_microbatches, sequence_length=sequence, document_multiple=multiple,
        global_batch_size=mesh.world_size * num_microbatches, broadcast=broadcast, fields_by_stage=by_stage,
        stages=Stages(per_rank=draw(st.integers(1, 2)), style=draw(st.sampled_from(["loop", "v"]))),
        batch={"slice": method}, strategy=functools.partial(along, axis),
    )  # fmt: skip
    plan = next(steps_of(Planner(chosen), feed_of(made, chosen)))
    length_of = dict(zip(plan.sample_ids(), (plan.start_D + plan.length_D).tolist(), strict=True))
    return plan, {sample_id: sample_of(length, SampleId(*sample_id)) for sample_id, length in length_of.items()}


def batches_of(plan, samples):
    constructor = DataConstructor(pad_token_id=0)
    assembled = [constructor.build(plan, bucket, samples.__getitem__) for bucket in range(plan.num_buckets)]
    return [constructor.rank_batch(assembled[plan.bucket_of(rank)], plan, rank) for rank in range(plan.mesh.world_size)]


@PROFILE
@given(drawn=plans())
def test_ranks_of_a_bucket_hold_every_token_of_its_documents_once(drawn):
    plan, samples = drawn
    batches = batches_of(plan, samples)
    for bucket, ranks in enumerate(plan.consumers_B):
        expected = sorted(
            token for sample_id in plan.sample_ids(bucket) for token in samples[sample_id].tokens_T.tolist()
        )
        # One rank for each slice, of those that fetch tokens.
        fetch = [rank for rank in ranks if not batches[rank].markers and "input_ids" in plan.fields_of(rank)]
        of_slice = {plan.slice_of(rank): rank for rank in fetch}
        held = [
            row.input_ids[row.segment_ids > 0].tolist()
            for rank in of_slice.values()
            for row in batches[rank].microbatches
        ]
        assert sorted(itertools.chain(*held)) == expected
        assert sorted(of_slice, key=str) == ([None] if None in of_slice else list(range(plan.mesh.size("cp"))))


@PROFILE
@given(drawn=plans())
def test_a_marker_names_a_rank_that_fetches_what_it_says(drawn):
    plan, samples = drawn
    batches = batches_of(plan, samples)
    for batch in batches:
        at = plan.mesh.coordinate(batch.rank)
        assert bool(batch.markers) != bool(batch.microbatches)
        assert bool(batch.markers) == any(at[axis] for axis in plan.broadcast)
        for slot, marker in enumerate(batch.markers):
            root = batches[marker.root]
            assert not root.markers
            assert root.sample_ids == batch.sample_ids
            arrays = root.microbatches[slot].arrays
            assert marker.shapes == {name: (array.shape, str(array.dtype)) for name, array in arrays.items()}


@PROFILE
@given(drawn=plans())
def test_stages_together_receive_all_fields_and_counts_agree(drawn):
    plan, samples = drawn
    batches = batches_of(plan, samples)
    for bucket, ranks in enumerate(plan.consumers_B):
        assert {name for rank in ranks for name in plan.fields_of(rank)} == set(FIELDS)
        of_slice = {plan.slice_of(rank): batches[rank].num_valid_tokens for rank in ranks}
        num_valid = int(plan.num_valid_D[plan.bucket_D == bucket].sum())
        assert sum(of_slice.values()) == num_valid
    assert len({batch.global_num_valid_tokens for batch in batches}) == 1


@PROFILE
@given(drawn=plans())
def test_ranks_of_one_key_receive_the_same_and_of_another_something_else(drawn):
    plan, samples = drawn
    batches = batches_of(plan, samples)
    seen = {}
    for rank, batch in enumerate(batches):
        twin = batches[seen.setdefault(plan.share_key(rank), rank)]
        assert batch.markers == twin.markers
        for row_, other in zip(batch.microbatches, twin.microbatches, strict=True):
            assert all(getattr(row_, name) is getattr(other, name) for name in TOKEN_FIELDS)


@PROFILE
@given(drawn=plans())
def test_the_lineage_of_documents_tells_where_their_tokens_are(drawn):
    plan, samples = drawn
    batches = batches_of(plan, samples)
    for document in range(plan.num_documents):
        tokens = samples[plan.sample_id(document)].tokens_T
        offset, slot = int(plan.offset_D[document]), int(plan.slot_D[document])
        number = plan.documents_of(plan.bucket_D[document], slot).tolist().index(document) + 1
        for rank in plan.consumers_B[plan.bucket_D[document]]:
            batch = batches[rank]
            if batch.markers or "input_ids" not in plan.fields_of(rank) or plan.slice_of(rank) is None:
                continue
            row_ = batch.microbatches[slot]
            runs = slices_of(plan, document)[plan.slice_of(rank)]
            told = [int(tokens[at - offset]) for run in runs for at in range(*run)]
            assert row_.input_ids[row_.segment_ids == number].tolist() == told

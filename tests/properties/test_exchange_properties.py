"""What ranks are told to encode, send and receive, carried out on numbers: every placeholder gets its own embedding."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_encoder_properties import meshes, planned, sources

from msd.constructor import DataConstructor
from msd.constructor.images import dummy_images
from msd.core.mesh import Mesh
from msd.core.sample import Sample, SampleId, SampleImages
from msd.planner.config import EncoderConfig
from msd.planner.strategy import balance_and_broadcast, mix_and_pack
from msd.testing.tables import Part, Row

PROFILE = settings(derandomize=True, deadline=None, max_examples=35, suppress_health_check=[HealthCheck.too_slow])
PATCH = 2
IMAGE = 7
"""Token of placeholders; others differ."""


def sample_maker(made):
    """Return the samples of a made-up source: four patches a placeholder, which say whose they are."""

    def sample_of(sample_id: SampleId) -> Sample:
        part = made[sample_id.source][sample_id.ordinal % len(made[sample_id.source])].parts[sample_id.part]
        counts = part.placeholders
        text = part.num_tokens - part.num_image_tokens
        images = None
        if counts:
            images = SampleImages(
                pixels_PF=np.concatenate([patches(sample_id, k) for k in range(sum(counts))]),
                grids_I3=np.array([(1, 2, 2 * n) for n in counts], dtype=np.int32),
                starts_I=np.cumsum([0, *counts[:-1]], dtype=np.int32),
            )
        return Sample(
            id=sample_id,
            tokens_T=np.array([IMAGE] * part.num_image_tokens + [9] * text, dtype=np.int32),
            num_image_tokens=part.num_image_tokens,
            images=images,
        )

    return sample_of


def patches(sample_id, placeholder):
    """The four patches behind one placeholder of a sample."""
    made = np.zeros((4, 3 * PATCH * PATCH), dtype=np.uint8)
    made[:, 0] = ord(sample_id.source[0])
    made[:, 1], made[:, 2] = divmod(sample_id.ordinal, 256)
    made[:, 3] = placeholder
    made[:, 4] = np.arange(4)
    return made


def encoded(share):
    """The embeddings of a share: whose they are."""
    groups = share.pixels.reshape(-1, 4, share.pixels.shape[1])
    assert len(groups) == share.num_embeddings
    assert (groups[:, :, 4] == np.arange(4)).all()
    return groups[:, 0, :4].astype(int)


def exchanged(shares):
    """Carry out one round among all ranks that meet; return {rank: embeddings received, in order}."""
    ranks = next(iter(shares.values())).ranks.tolist()
    assert all(share.ranks.tolist() == ranks == sorted(shares) for share in shares.values())
    parcels = {}
    for rank, share in shares.items():
        made = encoded(share)[share.send_rows]
        for to, parcel in zip(ranks, np.split(made, np.cumsum(share.send_counts)[:-1]), strict=True):
            parcels[rank, to] = parcel
    received = {}
    for index, rank in enumerate(ranks):
        share = shares[rank]
        assert [len(parcels[other, rank]) for other in ranks] == share.receive_counts.tolist(), index
        received[rank] = np.concatenate([parcels[other, rank] for other in ranks])
    return received


def gradients_back(shares):
    """Send a one back for every embedding received, from the ranks that return; sum up at each encoder."""
    ranks = next(iter(shares.values())).ranks.tolist()
    total = {rank: np.zeros(share.num_embeddings) for rank, share in shares.items()}
    for rank, share in shares.items():
        rows = np.split(share.send_rows, np.cumsum(share.send_counts)[:-1])
        for returns, sent in zip(share.returns.tolist(), rows, strict=True):
            np.add.at(total[rank], sent, returns)
        assert len(rows) == len(ranks)
    return total


@PROFILE
@given(
    made=sources(),
    mesh=meshes(),
    num_microbatches=st.sampled_from([1, 2]),
    packing=st.sampled_from(["best_fit", "concat"]),
    ranks=st.sampled_from(["dp", "dp_cp", "world"]),
    every=st.sampled_from(["auto", "step"]),
    cut=st.sampled_from(["zigzag", "headtail", "none"]),
    broadcast=st.sampled_from([(), ("tp",)]),
)
def test_every_placeholder_receives_its_own_embedding_and_gives_back_one_gradient(
    made, mesh, num_microbatches, packing, ranks, every, cut, broadcast
):
    plan = planned(
        made, mesh=mesh, num_microbatches=num_microbatches, packing=packing, broadcast=broadcast, batch={"slice": cut},
        encoder=EncoderConfig(ranks=ranks, every=every),
    )[-1]  # fmt: skip
    num_slices = 1 if mesh.size("cp") == 1 or cut != "none" else mesh.size("cp")
    carry_out(made, plan, num_slices)


def carry_out(made, plan, num_slices: int) -> None:
    """Exchange a step among all ranks, and see that each placeholder has its embedding and each gave one gradient."""
    constructor = DataConstructor(pad_token_id=0, dummy=dummy_images(patch=PATCH, merge=2))
    sample_of = sample_maker(made)
    shares = {rank: constructor.shares(plan, rank, sample_of) for rank in range(plan.mesh.world_size)}
    meets = {rank for rank, found in shares.items() if found}
    assert meets == set(plan.encoder.ranks)
    got = {rank: {} for rank in meets}
    for number in range(plan.encoder.num_rounds):
        round_ = {rank: shares[rank][number] for rank in meets}
        for rank, received in exchanged(round_).items():
            places = zip(round_[rank].slots.tolist(), round_[rank].positions.tolist(), strict=True)
            for place, embedding in zip(places, received.tolist(), strict=True):
                assert place not in got[rank]
                got[rank][place] = embedding
        assert all((total == num_slices).all() for total in gradients_back(round_).values())
    for bucket in range(plan.num_buckets):
        assembled = constructor.build(plan, bucket, sample_of)
        for rank in plan.consumers_B[bucket]:
            wanted = placeholders(assembled, plan, rank) if plan.mesh.coordinate(rank)["pp"] == 0 else {}
            assert got.get(rank, {}) == wanted


@pytest.mark.parametrize("axis", ["cp", "world"])
def test_ranks_with_rows_of_their_own_each_give_back_a_gradient(axis):
    def own_rows(graph, context):
        graph = balance_and_broadcast(mix_and_pack(graph, context).distribute(axis), context, ["backbone"])
        return graph.encode("world")

    images = [(3,), (1, 4), (), (2, 2, 1), (6,)]
    made = {"a": [Row((Part(sum(held) + 9 * n % 20 + 1, sum(held), held),)) for n, held in enumerate(images)]}
    mesh = Mesh.of(dp=2, cp=2) if axis == "cp" else Mesh.of(dp=2, tp=2)
    plan = planned(made, own_rows, mesh=mesh, num_microbatches=2)[-1]
    assert plan.num_buckets == 4
    assert plan.encoder.returns == (0, 1, 2, 3)
    carry_out(made, plan, 1)


def placeholders(assembled, plan, rank):
    """Return {(slot, position): whose embedding} of what a rank holds of its rows."""
    wanted, documents = {}, iter(assembled.sample_ids)
    for slot, row in enumerate(assembled.microbatches_C[plan.slice_of(rank) or 0]):
        ids = [next(documents) for _ in range(int((np.diff(row.cu_seqlens) > 0).sum()))]
        for position in np.flatnonzero(row.input_ids == IMAGE).tolist():
            owner = ids[row.segment_ids[position] - 1]
            whose = patches(owner, row.position_ids[position])[0, :4].astype(int).tolist()
            wanted[slot, position] = whose
    return wanted

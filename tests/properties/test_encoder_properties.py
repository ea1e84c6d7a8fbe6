"""Images encoded apart from their rows, over random meshes and images: conserved, whole, even, deterministic."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msd.core.mesh import Mesh
from msd.planner.check import check_plan
from msd.planner.config import EncoderConfig
from msd.planner.planner import Planner
from msd.planner.strategies.vlm_backbone import vlm_backbone
from msd.planner.strategies.vlm_hybrid import vlm_hybrid
from msd.testing.tables import LengthCost, Part, Row, feed_of, settings_of, steps_of

PROFILE = settings(derandomize=True, deadline=None, max_examples=35, suppress_health_check=[HealthCheck.too_slow])
LENGTH = 48
STEPS = 3
COSTS = {"backbone": LengthCost(1.0, 0.01), "encoder": LengthCost(2.0, 0.02)}


@st.composite
def parts(draw):
    images = draw(st.lists(st.integers(1, 9), max_size=4))
    return Part(sum(images) + draw(st.integers(1, 10)), sum(images), tuple(images))


@st.composite
def sources(draw):
    names = draw(st.sampled_from([["a"], ["a", "b"]]))
    return {name: [Row((one,)) for one in draw(st.lists(parts(), min_size=3, max_size=20))] for name in names}


@st.composite
def meshes(draw):
    axes = draw(st.permutations(["pp", "dp", "cp", "tp"]))
    sizes = {"dp": st.sampled_from([1, 2, 4])}
    return Mesh.of(**{axis: draw(sizes.get(axis, st.sampled_from([1, 1, 2]))) for axis in axes})


def planned(made, strategy=vlm_hybrid, **changes):
    chosen = settings_of(made, strategy=strategy, sequence_length=LENGTH, document_multiple=4, cost=COSTS, **changes)
    found = steps_of(Planner(chosen), feed_of(made, chosen))
    return [plan for plan, _ in zip(found, range(STEPS), strict=False)]


@PROFILE
@given(
    made=sources(),
    mesh=meshes(),
    num_microbatches=st.sampled_from([1, 2]),
    packing=st.sampled_from(["best_fit", "concat"]),
    ranks=st.sampled_from(["dp", "dp_cp", "world"]),
    every=st.sampled_from(["auto", "step"]),
)
def test_every_image_is_encoded_whole_and_once_wherever_its_row_lies(
    made, mesh, num_microbatches, packing, ranks, every
):
    where = {"mesh": mesh, "num_microbatches": num_microbatches, "packing": packing}
    hybrid = planned(made, encoder=EncoderConfig(ranks=ranks, every=every), **where)
    again = planned(made, encoder=EncoderConfig(ranks=ranks, every=every), **where)
    plain = planned(made, vlm_backbone, **where)
    for plan, same, other in zip(hybrid, again, plain, strict=True):
        assert check_plan(plan) == []
        assert plan.digest == same.digest
        assert plan.membership_digest == other.membership_digest
        assert plan.bucket_D.tolist() == other.bucket_D.tolist()
        encoder = plan.encoder
        wanted = [
            (d, number, 4 * count)
            for d in range(plan.num_documents)
            if plan.start_D[d] == 0
            for number, count in enumerate(placeholders(made, plan, d))
        ]
        assert list(zip(*(column.tolist() for column in encoder.columns[:3]), strict=True)) == wanted
        assert set(encoder.rank_I.tolist()) <= set(encoder.ranks_E)
        bound = most_of_a_rank(encoder)
        assert plan.report.encoder.slowest <= bound * (1 + 1e-6)


def placeholders(made, plan, document):
    name, ordinal, part = plan.sample_id(document)
    return made[name][ordinal % len(made[name])].parts[part].placeholders


def most_of_a_rank(encoder) -> float:
    """What the slowest rank costs at most: the mean and one image of each round (Graham's bound)."""
    patches = encoder.num_patches_I.astype(float)
    cost_I = 2.0 * patches + 0.02 * patches**2
    total = 0.0
    for number in range(encoder.num_rounds):
        met = cost_I[encoder.round_I == number]
        total += met.sum() / len(encoder.ranks_E) + (met.max() if len(met) else 0.0)
    return float(np.float64(total))


@PROFILE
@given(made=sources(), ranks=st.sampled_from(["dp", "dp_cp", "world"]))
def test_the_mesh_and_who_encodes_never_change_what_a_step_holds(made, ranks):
    meshes = [Mesh.of(dp=1), Mesh.of(dp=8), Mesh.of(dp=2, cp=2, tp=2), Mesh.of(pp=2, dp=4)]
    digests = [
        [plan.membership_digest for plan in planned(made, mesh=mesh, encoder=EncoderConfig(ranks=ranks))]
        for mesh in meshes
    ]
    assert all(digest == digests[0] for digest in digests)

"""Images on ranks of their own: even, whole, near where they are needed, and said in the plan."""

import json

import numpy as np
import pytest

from msd.core.mesh import Mesh
from msd.errors import ConfigError, StateError
from msd.planner.check import check_plan
from msd.planner.config import EncoderConfig
from msd.planner.explain import explain
from msd.planner.planner import Planner
from msd.planner.strategies.vlm_backbone import vlm_backbone
from msd.planner.strategies.vlm_hybrid import vlm_hybrid
from msd.planner.strategies.vlm_joint import vlm_joint
from msd.testing.tables import LengthCost, Part, Row, feed_of, row, settings_of, steps_of

COSTS = {"backbone": LengthCost(1.0, 0.01), "encoder": LengthCost(2.0, 0.02)}


def album(*images: int, text: int = 4) -> Row:
    """A row with images of so many placeholders, then text."""
    return Row((Part(sum(images) + text, sum(images), images),))


def rows(count: int = 40) -> dict[str, list[Row]]:
    draw = np.random.default_rng(8)
    photos = [
        album(*draw.integers(1, 12, draw.integers(1, 4)).tolist(), text=int(draw.integers(1, 20))) for _ in range(count)
    ]
    return {"photos": photos, "web": [row(int(n)) for n in draw.integers(1, 64, count)]}


def settings(made=None, *, strategy=vlm_hybrid, **changes):
    fields = {"mesh": Mesh.of(dp=4), "num_microbatches": 2, "global_batch_size": 16, "cost": COSTS, **changes}
    return settings_of(made or rows(), strategy=strategy, **fields)


def plans(chosen, made=None, count: int = 3):
    return [
        plan for plan, _ in zip(steps_of(Planner(chosen), feed_of(made or rows(), chosen)), range(count), strict=False)
    ]


def cost_of(patches) -> float:
    return float(np.sum(2.0 * patches + 0.02 * patches**2))


def test_every_image_is_encoded_by_one_rank_and_its_embeddings_have_its_placeholders_place():
    made = rows()
    for plan in plans(settings(made), made):
        encoder = plan.encoder
        for d in range(plan.num_documents):
            mine = encoder.document_I == d
            name, ordinal, _ = plan.sample_id(d)
            part = made[name][ordinal % len(made[name])].parts[0]
            assert encoder.num_tokens_I[mine].tolist() == list(part.placeholders)
            assert encoder.num_patches_I[mine].tolist() == [4 * n for n in part.placeholders]
            assert encoder.index_I[mine].tolist() == list(range(len(part.placeholders)))
            starts = np.cumsum([0, *part.placeholders[:-1]]) + plan.offset_D[d] if part.placeholders else []
            assert encoder.offset_I[mine].tolist() == list(starts)
        assert set(encoder.rank_I.tolist()) <= set(encoder.ranks_E)
        assert (encoder.round_I == plan.slot_D[encoder.document_I]).all()


@pytest.mark.parametrize(
    ("mesh", "ranks", "encoders", "receivers"),
    [
        (Mesh.of(dp=2, cp=2, tp=2), "world", range(8), [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (Mesh.of(dp=2, cp=2, tp=2), "dp_cp", (0, 2, 4, 6), [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (Mesh.of(dp=2, cp=2, tp=2), "dp", (0, 4), [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (Mesh.of(dp=2, ep=2, tp=2), "dp_cp", (0, 4), [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (Mesh.of(pp=2, dp=2, tp=2), "world", range(8), [(0, 1), (2, 3)]),
        (Mesh.of(pp=2, dp=2, tp=2), "dp_cp", (0, 2), [(0, 1), (2, 3)]),
        (Mesh.of(tp=2, dp=2, pp=2), "dp", (0, 2), [(0, 4), (2, 6)]),
    ],
)  # fmt: skip
def test_who_encodes_and_who_receives(mesh, ranks, encoders, receivers):
    chosen = settings(mesh=mesh, document_multiple=4, encoder=EncoderConfig(ranks=ranks))
    encoder = plans(chosen, count=1)[0].encoder
    assert encoder.ranks_E == tuple(encoders)
    assert encoder.receivers_B == tuple(receivers)
    assert encoder.ranks == tuple(sorted({*encoders, *(rank for held in receivers for rank in held)}))


@pytest.mark.parametrize(
    ("mesh", "returns"),
    [
        (Mesh.of(dp=2, cp=2, tp=2), (0, 2, 4, 6)),
        (Mesh.of(tp=2, dp=2, pp=2), (0, 2)),
        (Mesh.of(dp=2, ep=2, tp=2), (0, 4)),
    ],
)
def test_of_ranks_that_compute_the_same_one_sends_gradients_back(mesh, returns):
    assert plans(settings(mesh=mesh, document_multiple=4), count=1)[0].encoder.returns == returns


def test_a_pipelines_ranks_meet_once_a_step_unless_the_first_stage_encodes_alone():
    mesh = Mesh.of(pp=2, dp=2)
    rounds = {ranks: plans(settings(mesh=mesh, encoder=EncoderConfig(ranks=ranks)), count=1)[0].encoder.num_rounds
              for ranks in ("dp", "dp_cp", "world")}  # fmt: skip
    assert rounds == {"dp": 2, "dp_cp": 2, "world": 1}
    once = plans(settings(encoder=EncoderConfig(every="step")), count=1)[0].encoder
    assert once.num_rounds == 1
    assert not once.round_I.any()
    with pytest.raises(ConfigError, match=r"with pp=2 the stages .* use every='step', or ranks='dp_cp'"):
        Planner(settings(mesh=mesh, encoder=EncoderConfig(ranks="world", every="slot")))


@pytest.mark.parametrize("every", ["slot", "step"])
def test_the_report_tells_how_even_encoding_is_before_and_after(every):
    for plan in plans(settings(encoder=EncoderConfig(every=every))):
        encoder, report = plan.encoder, plan.report.encoder
        patches, bucket = encoder.num_patches_I.astype(float), plan.bucket_D[encoder.document_I]
        slowest = mean = rows_slowest = floor = 0.0
        for number in range(encoder.num_rounds):
            met = encoder.round_I == number
            mine = [cost_of(patches[met & (encoder.rank_I == rank)]) for rank in encoder.ranks_E]
            slowest, mean = slowest + max(mine), mean + np.mean(mine)
            rows_slowest += max(cost_of(patches[met & (bucket == b)]) for b in range(plan.num_buckets))
            floor += max(cost_of(patches[met][i : i + 1]) for i in range(met.sum()))
        assert report.slowest == pytest.approx(slowest)
        assert report.imbalance == pytest.approx(slowest / mean - 1)
        assert report.row_imbalance == pytest.approx(rows_slowest / mean - 1)
        assert floor / mean - 1 - 1e-9 <= report.imbalance_floor <= report.imbalance + 1e-9
        assert report.imbalance < report.row_imbalance
        assert report.cost_E.sum() == pytest.approx(plan.report.cost_B["encoder"].sum())
        assert plan.report.cost_B["encoder"] == pytest.approx([cost_of(patches[bucket == b]) for b in range(4)])


def test_rows_are_laid_out_and_judged_by_the_backbone_alone():
    hybrid, backbone = plans(settings())[-1], plans(settings(strategy=vlm_backbone))[-1]
    for name in ("bucket_D", "slot_D", "offset_D", "ordinal_D"):
        assert getattr(hybrid, name).tolist() == getattr(backbone, name).tolist()
    cost = hybrid.report.cost_B["backbone"]
    assert hybrid.report.imbalance == pytest.approx(cost.max() / cost.mean() - 1)
    both = backbone.report.cost_B["backbone"] + backbone.report.cost_B["encoder"]
    assert backbone.report.imbalance == pytest.approx(both.max() / both.mean() - 1)
    assert backbone.encoder is backbone.report.encoder is None
    assert hybrid.digest != backbone.digest
    assert hybrid.membership_digest == backbone.membership_digest


def test_the_joint_strategy_is_the_default_with_both_costs():
    joint, default = plans(settings(strategy=vlm_joint)), plans(settings(strategy=None))
    assert [plan.digest for plan in joint] == [plan.digest for plan in default]


def test_embeddings_stay_where_they_are_needed_if_that_costs_nothing():
    made = {"photos": [album(size, text=10 - size) for size in (1, 5, 2, 8, 3, 7, 4, 6)]}
    chosen = settings(made, mesh=Mesh.of(dp=8), num_microbatches=1, global_batch_size=8, sequence_length=10)
    plan = plans(chosen, made)[0]
    assert plan.report.encoder.moved == 0.0
    assert (plan.encoder.rank_I == plan.bucket_D[plan.encoder.document_I]).all()


def test_a_plan_in_words_says_who_encodes_and_how_even_that_is():
    plan = plans(settings(mesh=Mesh.of(dp=2, tp=2)), count=1)[0]
    report, encoder = plan.report.encoder, plan.encoder
    assert (
        f"encoders  {report.imbalance:.2%} over 4 ranks (by rows {report.row_imbalance:.2%}, floor "
        f"{report.imbalance_floor:.2%}); {report.moved:.0%} of {encoder.num_tokens_I.sum()} embeddings travel"
    ) in explain(plan)
    document = int(encoder.document_I[0])
    name, ordinal, part = plan.sample_id(document)
    followed = explain(plan, f"{name}:{ordinal}.{part}")
    assert f"image 0 ({encoder.num_patches_I[0]} patches) by rank {encoder.rank_I[0]}" in followed
    assert f"embeddings go to ranks {'0-1' if plan.bucket_D[document] == 0 else '2-3'}" in followed
    other = plans(settings(strategy=vlm_backbone), count=1)[0]
    assert "encoders" not in explain(other)


def test_a_step_without_an_image_has_nothing_to_encode():
    made = {"web": rows()["web"]}
    plan = plans(settings(made), made)[0]
    assert len(plan.encoder.document_I) == 0
    report = plan.report.encoder
    assert (report.slowest, report.imbalance, report.imbalance_floor, report.moved) == (0.0, 0.0, 0.0, 0.0)


def test_images_that_cost_nothing_are_spread_by_number():
    made = {"photos": [album(2, text=2)] * 8}
    free = {**COSTS, "encoder": LengthCost(0.0, 0.0)}
    plan = plans(settings(made, cost=free, global_batch_size=8, num_microbatches=1, sequence_length=4), made)[0]
    assert sorted(np.bincount(plan.encoder.rank_I).tolist()) == [2, 2, 2, 2]


def test_seconds_of_a_step_have_those_of_the_slowest_encoding_rank():
    speed = {"is_flops": True, "flops_per_s": 100.0}
    cost = {"backbone": LengthCost(1.0, 0.01, **speed), "encoder": LengthCost(2.0, 0.02, **speed)}
    plan = plans(settings(cost=cost), count=1)[0]
    rows_only = [
        max(float(np.sum(plan.length_D[d] + 0.01 * plan.length_D[d].astype(float) ** 2))
            for d in (plan.documents_of(b, m) for b in range(4)))
        for m in range(2)
    ]  # fmt: skip
    assert plan.report.predicted_step_s == pytest.approx((sum(rows_only) + plan.report.encoder.slowest) / 100.0)
    total = sum(float(cost_B.sum()) for cost_B in plan.report.cost_B.values())
    assert plan.report.step_flops == pytest.approx(total)


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
def test_samples_that_wait_keep_the_sizes_of_their_images(packing):
    made = rows()
    chosen = settings(made, packing=packing)
    first = plans(chosen, made, 4)
    kept = [len(piece.get("image_patches", ())) for plan in first for piece in plan.progress["carry"]]
    assert max(kept) > 1
    for number in range(3):
        saved = json.loads(json.dumps(first[number].progress))
        planner = Planner(chosen)
        planner.load_state_dict(saved)
        assert planner.state_dict() == saved
        again = next(steps_of(planner, feed_of(made, chosen)))
        assert again.digest == first[number + 1].digest


def test_a_state_of_another_strategy_goes_on_unless_images_that_wait_cannot_be_told_apart():
    made = {"photos": [album(5, text=9), album(7, text=30), album(3, text=4)] * 9}
    chosen, other = settings(made), settings(made, strategy=None)
    step = next(plan for plan in plans(other, made, 9) if plan.progress["carry"])
    planner = Planner(chosen)
    planner.load_state_dict(step.progress)
    assert planner.state_dict() == step.progress
    assert check_plan(next(steps_of(planner, feed_of(made, chosen)))) == []
    several = {"photos": [album(5, 2, text=9), album(7, 1, text=30), album(3, 1, text=4)] * 9}
    step = next(plan for plan in plans(settings(several, strategy=None), several, 9) if plan.progress["carry"])
    with pytest.raises(
        StateError, match=r"sample \('photos', \d+, 0\) waits with 2 images, .* resume with that strategy"
    ):
        Planner(settings(several)).load_state_dict(step.progress)


def test_a_state_of_this_strategy_is_kept_whole_by_another():
    made = rows()
    step = next(p for p in plans(settings(made), made, 9) if any("image_patches" in c for c in p.progress["carry"]))
    planner = Planner(settings(made, strategy=None))
    planner.load_state_dict(step.progress)
    assert planner.state_dict() == step.progress


def test_sizes_that_are_not_those_of_the_sample_are_refused():
    made = rows()
    step = next(p for p in plans(settings(made), made, 9) if any("image_patches" in c for c in p.progress["carry"]))
    saved = json.loads(json.dumps(step.progress))
    next(piece for piece in saved["carry"] if "image_patches" in piece)["image_patches"][0] += 1
    with pytest.raises(StateError, match=r"carry.image_patches cannot be \["):
        Planner(settings(made)).load_state_dict(saved)


def test_a_table_whose_images_are_not_all_told_apart_is_refused():
    made = rows()
    chosen = settings(made)
    table = feed_of(made, chosen).table("photos", 0)
    object.__setattr__(table, "num_patches_I", table.num_patches_I[1:])
    with pytest.raises(ValueError, match=r"source 'photos': the table has \d+ images and the patches of \d+"):
        Planner(chosen).observe(table)


@pytest.mark.parametrize("strategy", [vlm_hybrid, vlm_joint])
def test_a_cost_of_images_is_asked_for_by_its_setting(strategy):
    with pytest.raises(ConfigError, match=f"strategy {strategy.__name__} needs .* set cost.encoder"):
        Planner(settings(strategy=strategy, cost={"backbone": LengthCost()}))


def test_what_encode_and_balance_cannot_do_is_said_with_the_remedy():
    def of(change):
        return lambda graph, context: change(vlm_backbone(graph, context))

    broken = {
        r"encode has no ranks 'pp'; choose dp, dp_cp, world": lambda g: g.encode("pp"),
        r"encode has no every 'epoch'; choose slot, step": lambda g: g.encode(every="epoch"),
        r"encode stands twice": lambda g: g.encode().encode(),
        r"encode cannot follow align; .* leave balance.align, or .align\(...\), out": lambda g: g.align(
            "image"
        ).encode(),
        r"align cannot follow encode; .* leave balance.align, or .align\(...\), out": lambda g: g.encode().align(
            "image"
        ),
    }
    for message, change in broken.items():
        with pytest.raises(ConfigError, match=message):
            Planner(settings(strategy=of(change)))
    only_backbone = {"backbone": LengthCost()}
    with pytest.raises(ConfigError, match=r"encode needs a cost of 'encoder'; call .cost\(function, 'encoder'\) first"):
        Planner(settings(strategy=of(lambda g: g.encode()), cost=only_backbone))
    with pytest.raises(ConfigError, match=r"balance needs a cost of 'encoder'"):
        Planner(settings(strategy=lambda g, c: vlm_joint_without_cost(g, c), cost=only_backbone))


def vlm_joint_without_cost(graph, context):
    from msd.planner.strategy import balance_and_broadcast, mix_and_pack

    return balance_and_broadcast(mix_and_pack(graph, context).distribute("dp"), context, ["encoder"])

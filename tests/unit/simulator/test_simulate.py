"""A simulation follows real plans, compares them over the same samples, and says what it assumes."""

from xml.dom.minidom import parseString

import numpy as np
import pytest

import msd
from msd.errors import ConfigError, InputError
from msd.simulator.assign import ASSIGNMENTS, canonical_order
from msd.simulator.predict import SharedTables
from msd.simulator.work import work_of

MADE = [
    {"kind": "image", "field": "none", "on_missing": "skip", "image_token": 1},
    {"kind": "function", "function": "msd.testing.synthetic:blank"},
]


def config_of(**changes):
    settings = {
        "sources": {
            name: {"format": "msd.testing.synthetic:HeavyTailed", "options": {"name": name, **law}, "transforms": MADE}
            for name, law in {
                "pairs": {"rows": 5000, "text": [20, 1.0], "images": 1.5, "side": [112, 0.6]},
                "docs": {"rows": 5000, "text": [60, 1.5]},
            }.items()
        },
        "batch": {"sequence_length": 512, "global_batch_size": 32},
        "mesh": {"pp": 2, "dp": 4},
        "num_microbatches": 4,
        "cost": {
            "backbone": {"kind": "transformer", "hidden": 64, "layers": 4},
            "encoder": {"kind": "transformer", "hidden": 64, "layers": 2, "causal": False},
        },
    }
    return msd.Config(**settings | changes)


@pytest.fixture(scope="module")
def simulation():
    return msd.simulate(config_of(), {"flops_per_s": 1e9}, steps=2)


def test_it_compares_plans_of_the_same_steps(simulation):
    assert simulation.names == ("dealt", "length_groups", "tokens", "packed", "backbone", "joint", "planned")
    assert simulation.num_steps == 2
    plans = list(msd.plan(config_of(), steps=2))
    tokens = {name: sum(plan.report.tokens_by_source[name] for plan in plans) for name in ("pairs", "docs")}
    assert simulation.drawn == tokens


def test_a_planned_step_is_faster_than_a_dealt_one_and_no_step_beats_an_even_one(simulation):
    assert simulation.speedup() > 1.2
    assert simulation.speedup("planned", over="planned") == 1.0
    assert all(one.time.step_s >= 0.95 * one.even_s for one in simulation.outcomes)
    assert simulation.mean("planned", "lockstep") < simulation.mean("packed", "lockstep")


def test_the_plan_of_a_run_keeps_its_cap_and_a_dealt_microbatch_need_not(simulation):
    row = 512 * 2
    assert simulation.mean("planned", "longest_row") <= row
    assert simulation.mean("dealt", "longest_row") > row


def test_the_figures_of_a_plan_are_those_it_reports(simulation):
    (plan, *_) = msd.plan(config_of(cost={"backbone": {"kind": "transformer", "hidden": 64, "layers": 4}}), steps=1)
    alone = msd.simulate(
        config_of(cost={"backbone": {"kind": "transformer", "hidden": 64, "layers": 4}}), steps=1
    ).outcomes[-1]
    assert alone.name == "planned"
    assert alone.time.backbone_imbalance == pytest.approx(plan.report.imbalance)
    assert alone.time.lockstep == pytest.approx(plan.report.lockstep)
    assert alone.time.fill == pytest.approx(plan.report.fill)


def test_hybrid_encoding_is_compared_where_every_rank_has_an_encoder():
    config = config_of(mesh={"pp": 2, "dp": 2, "cp": 2})
    found = msd.simulate(config, {"encoder": "every_rank"}, steps=1)
    assert found.names == tuple(ASSIGNMENTS)
    own = msd.simulate(config.replace(strategy="vlm_hybrid"), {"encoder": "every_rank"}, steps=1)
    assert own.mean("planned") == found.mean("hybrid")
    assert found.mean("hybrid", "encoder_imbalance") < found.mean("backbone", "encoder_imbalance")
    assert found.mean("hybrid") <= found.mean("backbone")


def test_another_mesh_keeps_the_samples(simulation):
    wide = msd.simulate(config_of(), {"mesh": {"dp": 8}, "flops_per_s": 1e9}, steps=2)
    assert wide.mesh.as_dict() == {"pp": 1, "dp": 8, "cp": 1, "tp": 1}
    assert wide.drawn == simulation.drawn


def test_speeds_come_from_the_trainer_then_from_the_cost():
    cost = {"backbone": {"kind": "transformer", "hidden": 64, "layers": 4, "flops_per_s": 1e6}}
    own = msd.simulate(config_of(cost=cost), steps=1)
    assert own.speeds.backbone == 1e6
    double = msd.simulate(config_of(cost=cost), {"flops_per_s": 2e6}, steps=1)
    assert double.speeds.backbone == 2e6
    assert own.mean("planned") == pytest.approx(2 * double.mean("planned"))


def test_a_simulation_is_a_table_text_and_a_picture(simulation):
    frame = simulation.to_pandas()
    assert len(frame) == 2 * len(simulation.names)
    assert frame.groupby("assignment")["step_s"].mean()["planned"] == pytest.approx(simulation.mean("planned"))
    assert "planned" in str(simulation)
    told = simulation.as_dict()
    assert told["assignments"]["planned"]["speedup"] == pytest.approx(simulation.speedup())
    assert sum(told["drawn"].values()) == pytest.approx(1.0)
    drawing = parseString(simulation.picture("dealt", "planned").svg)
    bars = drawing.getElementsByTagName("rect")
    assert len(bars) == 1 + 2 * 4 * 4
    assert simulation._repr_svg_().startswith("<svg")


def test_every_setting_of_the_trainer_is_among_the_assumptions():
    found = msd.simulate(
        config_of(num_microbatches=2),
        {
            "flops_per_s": 1.5e9, "encoder_flops_per_s": 2.5e9, "encoder": "every_rank", "sync": "microbatch",
            "backward": 1.75, "stage_shares": [0.6, 0.4], "pass_overhead_s": 0.125, "step_overhead_s": 0.375,
            "embedding_bytes": 77.0, "link_bytes_per_s": 8.5e9, "pads": True, "mesh": {"pp": 2, "dp": 8},
        },
        steps=1,
    )  # fmt: skip
    text = "\n".join(found.assumptions())
    stated = ("1.5e+09", "2.5e+09", "every rank", "once a microbatch", "1.75", "[0.6, 0.4]", "0.125", "0.375", "77")
    for value in (*stated, "8.5e+09", "dp=8", "padding"):
        assert value in text


def test_rows_are_counted_in_the_order_drawn():
    (plan,) = msd.plan(config_of(), steps=1)
    work = work_of(plan, {"backbone": lambda s, p: s * 1.0})
    order = canonical_order(plan)
    rows = {}
    for document, row in zip(order.tolist(), work.row_D.tolist(), strict=True):
        rows.setdefault(row, set()).add((int(plan.source_D[document]), int(plan.ordinal_D[document])))
    assert sorted(rows) == list(range(len(rows)))
    assert all(len(found) == 1 for found in rows.values())
    sources = [next(iter(rows[row]))[0] for row in range(len(rows))]
    assert sources[: len(rows) // 2].count(0) == pytest.approx(sources.count(0) / 2, abs=1)


def test_images_are_costed_one_by_one():
    (plan,) = msd.plan(config_of(strategy="vlm_hybrid"), steps=1)
    work = work_of(plan, {"backbone": lambda s, p: s * 1.0, "encoder": lambda s, p: s * s * 1.0})
    order = canonical_order(plan)
    assert len(work.document_I) == plan.num_images_D.sum()
    patches_I = np.sqrt(work.encoder_I)
    assert np.bincount(work.document_I, patches_I, minlength=len(order)) == pytest.approx(plan.num_patches_D[order])
    assert work.embeddings_I.sum() == plan.num_image_tokens_D.sum()
    assert work.padding_cost == 1.0


def test_documents_and_images_of_a_step_have_one_order_whatever_the_layout():
    costs = {"backbone": lambda s, p: s * 1.0, "encoder": lambda s, p: s * 1.0}
    narrow, wide = (
        work_of(plan, costs)
        for mesh in ({"pp": 2, "dp": 4}, {"dp": 2, "tp": 2})
        for plan in msd.plan(config_of(strategy="vlm_hybrid"), steps=1, mesh=mesh)
    )
    assert (narrow.tokens_D == wide.tokens_D).all()
    assert (narrow.document_I == wide.document_I).all()
    assert (narrow.encoder_I == wide.encoder_I).all()
    assert (narrow.row_D == wide.row_D).all()


def test_rows_that_several_planners_ask_for_are_examined_once_and_then_forgotten():
    asked = []

    class Loader:
        def examine(self, start, num_rows):
            asked.append((start, num_rows))
            return object()

    tables = SharedTables(Loader(), readers=2)
    first, other = tables.examine(0, 8), tables.examine(8, 8)
    assert tables.examine(0, 8) is first
    assert tables.examine(8, 8) is other
    assert asked == [(0, 8), (8, 8)]
    assert tables.num_held == 0


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ({"encodr": "every_rank"}, "trainer.encodr: unknown key 'encodr'; did you mean 'encoder'"),
        ({"encoder": "everywhere"}, "trainer.encoder"),
        ({"stage_shares": [1.0]}, "stage_shares has 1 stages, the mesh has pp=2"),
        ({"mesh": {"dp": 3}}, "does not divide by dp"),
    ],
)
def test_a_trainer_that_cannot_be_is_refused_by_name(trainer, said):
    with pytest.raises(ConfigError, match=said):
        msd.simulate(config_of(), trainer)


def test_arguments_that_cannot_mean_anything_are_refused(simulation):
    with pytest.raises(ConfigError, match="steps must be 1 or more"):
        msd.simulate(config_of(), steps=0)
    with pytest.raises(ConfigError, match="there is no assignment 'perfect'"):
        simulation.mean("perfect")
    with pytest.raises(ConfigError, match="step 7 was not simulated"):
        simulation.picture(step=7)
    short = config_of(sources={"few": {"rows": [{"text": "a"}], "max_epochs": 1, "on_exhausted": "stop",
                                       "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}]}})  # fmt: skip
    with pytest.raises(InputError, match="ends before its first step"):
        msd.simulate(short)

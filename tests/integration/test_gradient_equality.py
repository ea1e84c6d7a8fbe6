"""The gradient of a packed, balanced step is that of its documents one by one.

One test for masks, labels, positions, segments, images and the denominator; the mutations below show that it sees each.
"""

import io

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from gradient_reference import (  # noqa: E402
    double_model,
    one_by_one_gradient,
    packed_gradient,
    relative_error,
    whole_rows,
)
from PIL import Image  # noqa: E402

import msd  # noqa: E402
from msd.build import build_loaders  # noqa: E402
from msd.core.batch import RankBatch  # noqa: E402
from msd.core.plan import StepPlan  # noqa: E402
from msd.core.sample import Sample, SampleId  # noqa: E402

SEQUENCE = 64
GEOMETRY = {"patch": 4, "merge": 2}
RUNS = {
    "dp1": {"mesh": {"dp": 1}},
    "dp2": {"mesh": {"dp": 2}},
    "dp2 cp2 tp2": {"mesh": {"dp": 2, "cp": 2, "tp": 2}},
    "dp4": {"mesh": {"dp": 4}},
    "pp3 by stage": {"mesh": {"pp": 3, "dp": 2}, "fields_by_stage": True},
    "cp2 between the parts of dp, head and tail": {
        "mesh": {"dp_replicate": 2, "cp": 2, "dp_shard": 2},
        "batch": {"slice": "headtail"},
    },
    "cp4 head and tail": {"mesh": {"cp": 4}, "batch": {"slice": "headtail"}},
}


def picture(rng: np.random.Generator, height: int, width: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def config_for(run: str, packing: str) -> msd.Config:
    """Three sources: plain text, text with a mask per token, one or two images with a caption."""
    rng = np.random.default_rng(5)
    ids = [rng.integers(0, 250, n).tolist() for n in rng.integers(1, 60, 60)]
    masks = [rng.integers(0, 2, len(row)).tolist() for row in ids]
    photos = [
        {"png": [picture(rng, 8 * h, 8 * w) for h, w in rng.integers(1, 4, (n, 2))], "txt": "a picture"[: 2 + n]}
        for n in [1, 2] * 15
    ]
    return msd.Config(
        sources={
            "web": {"rows": [{"ids": row} for row in ids], "transforms": [{"kind": "tokens", "field": "ids"}]},
            "chat": {
                "rows": [{"ids": row, "mask": mask} for row, mask in zip(ids, masks, strict=True)],
                "transforms": [{"kind": "tokens", "field": "ids", "mask": "mask"}],
            },
            "photos": {
                "rows": photos,
                "transforms": [
                    {"kind": "image", "field": "png", **GEOMETRY, "max_pixels": 640, "min_pixels": 64},
                    {"kind": "tokenize", "tokenizer": "bytes", "field": "txt"},
                ],
            },
        },
        batch={
            "sequence_length": SEQUENCE,
            "global_batch_size": 16,
            "packing": {"method": packing},
            "pad_token_id": 255,
            **RUNS[run].get("batch", {}),
        },
        mesh=RUNS[run]["mesh"],
        fields_by_stage=RUNS[run].get("fields_by_stage", False),
        num_microbatches=2,
    )


def take_step(config: msd.Config) -> tuple[StepPlan, list[RankBatch], dict[SampleId, Sample]]:
    """Return the second step of a run: its plan, what every rank received, and its samples made anew."""
    with msd.start(config, runtime="local") as engine:
        clients = [engine.client(rank) for rank in range(engine.mesh.world_size)]
        _, batches = [[next(client) for client in clients] for _ in range(2)]
        plan = engine.plan(1)
        loaders = build_loaders(config, engine.orders)
    assert plan is not None
    ids = sorted(set(plan.sample_ids()))
    slabs = {name: loaders[name].fetch([i for i in ids if i.source == name]) for name in plan.source_names}
    return plan, batches, {i: slabs[i.source].sample(i) for i in ids}


@pytest.fixture(scope="module")
def model():
    return double_model(vocab=260, **GEOMETRY, max_position=SEQUENCE * 16)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("packing", ["best_fit", "concat", "none"])
def test_the_gradient_of_a_packed_step_is_that_of_its_documents_one_by_one(model, packing, run):
    """Answers HF-13."""
    plan, batches, samples = take_step(config_for(run, packing))
    rows = whole_rows(batches, plan)
    assert any(row["images"] is not None for row in rows)
    assert any(sample.trained_T is not None for sample in samples.values())
    assert bool(plan.start_D.any()) == (packing == "concat")
    total = batches[0].global_num_valid_tokens
    found = packed_gradient(model, rows, SEQUENCE, total)
    expected = one_by_one_gradient(model, plan, samples)
    assert set(found) == set(expected) == {name for name, _ in model.named_parameters()}
    assert relative_error(found, expected) <= 1e-10


@pytest.mark.parametrize("run", RUNS)
def test_ranks_that_share_data_hold_the_same_and_the_slices_sum_to_the_denominator(run):
    plan, batches, _ = take_step(config_for(run, "best_fit"))
    coordinates = [plan.mesh.coordinate(batch.rank) for batch in batches]
    once = [batch for batch, at in zip(batches, coordinates, strict=True) if at["tp"] == at["pp"] == 0]
    assert sum(batch.num_valid_tokens for batch in once) == batches[0].global_num_valid_tokens
    for batch, at in zip(batches, coordinates, strict=True):
        peer = batches[plan.mesh.rank(dp=at["dp"], cp=at["cp"])]
        for row, other in zip(batch.microbatches, peer.microbatches, strict=True):
            for name in ("input_ids", "labels"):
                held, peers = getattr(row, name), getattr(other, name)
                assert held is None or peers is None or np.array_equal(held, peers)


def first_boundary(row: dict) -> int:
    """Return the position of the last token of a document that another follows."""
    segment = row["segment_ids"]
    return int(torch.nonzero((segment[1:] > segment[:-1]) & (segment[:-1] > 0))[0])


def positions_run_on(row: dict) -> None:
    row["position_ids"] = torch.arange(len(row["position_ids"]))


def one_label_is_another(row: dict) -> None:
    at = int(torch.nonzero(row["labels"] != -100)[0])
    row["labels"][at] = (row["labels"][at] + 1) % 250


def a_last_token_predicts_the_next_document(row: dict) -> None:
    at = first_boundary(row)
    row["labels"][at] = row["input_ids"][at + 1]


def a_masked_token_is_learned(row: dict) -> None:
    inside = (row["labels"][:-1] == -100) & (row["segment_ids"][:-1] == row["segment_ids"][1:])
    at = int(torch.nonzero(inside & (row["segment_ids"][:-1] > 0))[0])
    row["labels"][at] = row["input_ids"][at + 1]


def two_documents_see_each_other(row: dict) -> None:
    at = first_boundary(row)
    row["segment_ids"][row["segment_ids"] == row["segment_ids"][at + 1]] = row["segment_ids"][at]


def an_image_stands_one_later(row: dict) -> None:
    row["images"]["starts"] = row["images"]["starts"] + 1


def a_pixel_is_off(row: dict) -> None:
    row["images"]["pixels"][0, 0] ^= 255


def a_token_is_another(row: dict) -> None:
    row["input_ids"][0] = (row["input_ids"][0] + 1) % 250


MUTATIONS = [
    positions_run_on, one_label_is_another, a_last_token_predicts_the_next_document, a_masked_token_is_learned,
    two_documents_see_each_other, an_image_stands_one_later, a_pixel_is_off, a_token_is_another,
]  # fmt: skip


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_the_comparison_sees_each_kind_of_fault(model, mutate):
    plan, batches, samples = take_step(config_for("dp2", "best_fit"))
    rows = whole_rows(batches, plan)
    mutate(next(row for row in rows if row["images"] is not None and row["segment_ids"].max() > 1))
    found = packed_gradient(model, rows, SEQUENCE, batches[0].global_num_valid_tokens)
    assert relative_error(found, one_by_one_gradient(model, plan, samples)) > 1e-6


def test_the_comparison_sees_a_denominator_per_rank(model):
    plan, batches, samples = take_step(config_for("dp2", "best_fit"))
    rows = whole_rows(batches, plan)
    of_rank = [
        packed_gradient(model, rows[2 * i : 2 * i + 2], SEQUENCE, b.num_valid_tokens * 2) for i, b in enumerate(batches)
    ]
    found = {name: of_rank[0][name] + of_rank[1][name] for name in of_rank[0]}
    assert relative_error(found, one_by_one_gradient(model, plan, samples)) > 1e-6

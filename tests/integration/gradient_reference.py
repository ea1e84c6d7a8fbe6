"""Two ways to the gradient of a step: from the packed batches of all ranks, and from its documents one by one.

The second way knows nothing of the constructor's arrays: it starts from samples and the plan's (id, start, length).
"""

import importlib.util
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from msd.core.batch import Microbatch, RankBatch
from msd.core.plan import StepPlan
from msd.core.sample import Sample, SampleId

TOKEN_FIELDS = ("input_ids", "labels", "position_ids", "segment_ids")
# Several test processes share the cores: a thread pool in each costs more than it brings.
torch.set_num_threads(1)
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "train_small.py"


def load_example():
    """Return the training example of the documentation as a module."""
    spec = importlib.util.spec_from_file_location("train_small", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def double_model(*, vocab: int, patch: int, merge: int, max_position: int) -> nn.Module:
    """Return the example's model in float64, with learned absolute positions.

    Rotary attention sees differences of positions alone; absolute ones also show where a document's count begins.
    """
    example = load_example()

    class Positioned(example.SmallTransformer):
        def __init__(self) -> None:
            super().__init__(vocab, dim=32, layers=2, heads=4, kv_heads=2, patch=patch, merge=merge)
            self.places = nn.Embedding(max_position, 32)

        def embed(self, row: dict) -> Tensor:
            return super().embed(row) + self.places(row["position_ids"])

    torch.manual_seed(0)
    return Positioned().double()


def one_by_one_gradient(model: nn.Module, plan: StepPlan, samples: dict[SampleId, Sample]) -> dict[str, Tensor]:
    """Return the gradient of the mean loss over all labelled tokens, each document fed forward alone."""
    documents = [
        document_row(samples[plan.sample_id(d)], int(plan.start_D[d]), int(plan.length_D[d]))
        for d in range(plan.num_documents)
    ]
    total = sum(int((row["labels"] != -100).sum()) for row in documents)
    return _gradient(model, [(row, len(row["input_ids"]), total) for row in documents])


def packed_gradient(model: nn.Module, rows: list[dict], sequence_length: int, total: int) -> dict[str, Tensor]:
    """Return the same from whole packed rows, each divided by the step's number of labelled tokens."""
    return _gradient(model, [(row, sequence_length, total) for row in rows])


def document_row(sample: Sample, start: int, length: int) -> dict:
    """Return what a model is fed when a document stands alone, one token at a time."""
    tokens = sample.tokens_T[start : start + length].tolist()
    labels = [-100] * length
    for j in range(length - 1):
        is_target = sample.trained_T is None or sample.trained_T[start + j + 1]
        if is_target and start + j >= sample.num_image_tokens:
            labels[j] = tokens[j + 1]
    images = sample.images if start == 0 else None
    return {
        "input_ids": torch.tensor(tokens),
        "labels": torch.tensor(labels),
        "position_ids": torch.arange(length),
        "segment_ids": torch.ones(length, dtype=torch.long),
        "images": None
        if images is None
        else {
            "pixels": torch.tensor(images.pixels_PF),
            "grids": torch.tensor(images.grids_I3),
            "starts": torch.tensor(images.starts_I),
        },
    }


def whole_rows(batches: list[RankBatch], plan: StepPlan) -> list[dict]:
    """Return every row of the step once, put together from the slices of its context-parallel ranks.

    Where pipeline stages get only what they need, tokens are the first's and labels the last's.
    """
    mesh, rows = plan.mesh, []
    for dp in range(mesh.size("dp")):
        ends = [
            [batches[mesh.rank(pp=pp, dp=dp, cp=cp)].microbatches for cp in range(mesh.size("cp"))]
            for pp in (0, mesh.size("pp") - 1)
        ]
        for first, last in zip(zip(*ends[0], strict=True), zip(*ends[1], strict=True), strict=True):
            rows.append(_whole_row(list(first), list(last), plan))
    return rows


def relative_error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the largest relative error over parameters, in the norm of each."""
    return max(float((found[n] - expected[n]).norm() / expected[n].norm()) for n in expected)


def _gradient(model: nn.Module, parts: list[tuple[dict, int, int]]) -> dict[str, Tensor]:
    model.zero_grad()
    for row, sequence_length, total in parts:
        (model.loss(row, sequence_length) / total).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def _whole_row(slices: list[Microbatch], of_last_stage: list[Microbatch], plan: StepPlan) -> dict:
    first = slices[0]
    length = int(first.cu_seqlens_padded[-1])
    starts = first.cu_seqlens_padded.tolist()
    if plan.slice_method == "headtail":
        starts = list(range(0, length + 1, plan.sequence_length))
    row = {name: torch.zeros(length, dtype=torch.long) for name in TOKEN_FIELDS}
    for index, parts in enumerate(zip(slices, of_last_stage, strict=True)):
        held = _held(starts, index, len(slices))
        for name in TOKEN_FIELDS:
            array = getattr(parts[name == "labels"], name)
            row[name][held] = torch.tensor(array.astype(np.int64))
    images = first.images
    if images is not None:
        row["images"] = {name: torch.tensor(getattr(images, name)) for name in ("pixels", "grids", "starts")}
    return {"images": None} | row


def _held(starts: list[int], index: int, degree: int) -> list[int]:
    """Return the positions that slice `index` of `degree` holds: chunk `index` of each stretch, then its mirror."""
    if degree == 1:
        return list(range(starts[-1]))
    held: list[int] = []
    for i in range(len(starts) - 1):
        chunk = (starts[i + 1] - starts[i]) // (2 * degree)
        for number in (index, 2 * degree - 1 - index):
            held += range(starts[i] + number * chunk, starts[i] + (number + 1) * chunk)
    return held

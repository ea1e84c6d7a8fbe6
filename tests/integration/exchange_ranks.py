"""Ranks of a small vision-language model in processes of their own, and the same model without an exchange.

Every process runs the local engine for itself: plans are a function of the configuration, so they are the same.
"""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

import msd
from msd.client.torch import EmbeddingExchange, TorchBatch

STEP = 1
"""The step that is learned from: the second, which holds samples that waited."""
MERGE, PATCH = 2, 4
ENCODER = ("patches", "qkv", "out")


class SmallVision(nn.Module):
    """An encoder with attention inside each image, and a loss that tells every position of a row from the others."""

    def __init__(self, *, vocab: int = 300, dim: int = 8) -> None:
        super().__init__()
        self.patches = nn.Linear(3 * PATCH * PATCH, dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim * MERGE * MERGE, dim)
        self.tokens = nn.Embedding(vocab, dim)
        self.mix = nn.Linear(dim, dim)

    def encode(self, pixels: Tensor, grids: Tensor) -> Tensor:
        """Return [embeddings, dim]; also of no images."""
        x = self.patches(pixels.to(self.patches.weight.dtype) / 255)
        image = torch.repeat_interleave(torch.arange(len(grids)), grids.prod(dim=1).long())
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = (q @ k.T).masked_fill(image[:, None] != image[None], float("-inf"))
        return self.out((x + scores.softmax(dim=-1) @ v).reshape(-1, self.out.in_features))

    def loss(self, row: dict, x: Tensor) -> Tensor:
        weight = torch.sin(row["position_ids"] + 3.0 * row["segment_ids"]) * (row["segment_ids"] > 0)
        return (torch.tanh(self.mix(x)).sum(dim=-1) * weight).sum()


def new_model() -> SmallVision:
    torch.manual_seed(3)
    return SmallVision().double()


def step_of(engine, rank: int) -> TorchBatch:
    batches = iter(msd.torch.DataLoader(engine, rank=rank))
    return [next(batches) for _ in range(STEP + 1)][STEP]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}


def alone(config: msd.Config) -> dict[str, Tensor]:
    """Return loss and gradients of the step from whole rows, each with its own images."""
    model, total = new_model(), torch.zeros((), dtype=torch.float64)
    with msd.start(config, runtime="local") as engine:
        for bucket in range(engine.plan(0).num_buckets):
            for row in step_of(engine, engine.plan(0).consumers_B[bucket][0]).microbatches:
                x, images = model.tokens(row["input_ids"]), row["images"]
                if images is not None:
                    counts = (images["grids"].prod(dim=1) // MERGE**2).tolist()
                    starts = zip(images["starts"].tolist(), counts, strict=True)
                    spot = torch.cat([start + torch.arange(count) for start, count in starts])
                    x = x.index_copy(0, spot, model.encode(images["pixels"], images["grids"]))
                total = total + model.loss(row, x)
    total.backward()
    return {"loss": total.detach(), **gradients(model)}


def together(config: msd.Config, rank: int, group) -> dict[str, Tensor]:
    """Return what one rank adds to loss and gradients: of the images that it encodes and the rows that it holds."""
    model, exchange = new_model(), EmbeddingExchange(group)
    with msd.start(config, runtime="local") as engine:
        coordinate, batch = engine.mesh.coordinate(rank), step_of(engine, rank)
    total = torch.zeros((), dtype=torch.float64)
    num_rows = len(batch.microbatches)
    for number, share in enumerate(batch.encoder):
        received = exchange(model.encode(share["pixels"], share["grids"]), share)
        # Ranks that hold no rows of the first stage take part in the backward pass all the same.
        loss = 0.0 * received.sum()
        if coordinate["pp"] == 0:
            for slot in [number] if len(batch.encoder) == num_rows else range(num_rows):
                row, mine = batch.microbatches[slot], share["slots"] == slot
                x = model.tokens(row["input_ids"])
                loss = loss + model.loss(row, x.index_copy(0, share["positions"][mine], received[mine]))
        loss.backward()
        total += loss.detach()
    found = {"loss": total, **gradients(model)}
    if coordinate["tp"] > 0:
        # A replica computes the loss and its own gradients once more; what it encodes is nobody else's.
        found = {name: value if name.split(".")[0] in ENCODER else 0 * value for name, value in found.items()}
    return found


def spawn(configs: dict[str, msd.Config], folder: Path, num_ranks: int) -> dict[str, dict[str, Tensor]]:
    """Return the sum over ranks of loss and gradients, for each configuration."""
    mp.spawn(_rank, args=(num_ranks, str(folder), configs), nprocs=num_ranks)
    parts = [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(num_ranks)]
    return {
        name: {key: torch.stack([part[name][key] for part in parts]).sum(dim=0) for key in parts[0][name]}
        for name in configs
    }


def _rank(rank: int, num_ranks: int, folder: str, configs: dict[str, msd.Config]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=num_ranks)
    try:
        found = {}
        for name, config in configs.items():
            found[name] = together(config, rank, None)
        torch.save(found, f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()

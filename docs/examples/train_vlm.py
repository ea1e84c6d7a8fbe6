"""Train a small ViT and decoder, ranks encoding images for one another; `docs/tutorials/train-vlm.md` explains it.

    msd corpus demo-corpus
    python docs/examples/train_vlm.py demo-corpus/corpus.yaml --ranks 2 --strategy vlm_hybrid

`--strategy vlm_backbone` trains the same with each rank encoding the images of its own rows, and learns the same.
"""

# T = tokens of a row. P = patches and V = embeddings of the images that a rank encodes, V = P / merge^2.

import argparse
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from train_small import Block, SmallTransformer, model_for

import msd


class VisionEncoder(nn.Module):
    """A transformer over the patches of each image; merge * merge neighbours become one embedding."""

    def __init__(self, patch_values: int, merge: int, out: int, dim: int = 32) -> None:
        super().__init__()
        self.patches = nn.Linear(patch_values, dim)
        self.block = Block(dim, heads=4, kv_heads=4)
        self.project = nn.Linear(dim * merge * merge, out)

    def forward(self, pixels_PF: Tensor, grids: Tensor) -> Tensor:
        """Return [V, out]; of no images too, so that a rank without any takes part in the gradient."""
        count = grids.prod(dim=1).long()
        image_P = torch.repeat_interleave(torch.arange(len(grids)), count)
        position_P = torch.arange(len(image_P)) - torch.repeat_interleave(count.cumsum(0) - count, count)
        x = self.patches(pixels_PF.to(self.patches.weight.dtype) / 127.5 - 1)
        x = self.block(x[None], position_P[None], (image_P[:, None] == image_P)[None, None])[0]
        return self.project(x.reshape(-1, self.project.in_features))


class Decoder(SmallTransformer):
    """The decoder of `train_small.py`, with embeddings from elsewhere at its placeholders."""

    def __init__(self, vocab: int) -> None:
        super().__init__(vocab)
        del self.patches

    def embed(self, row: dict[str, Any]) -> Tensor:
        """Return [T, dim]."""
        return self.tokens(row["input_ids"]).index_copy(0, *row["embedded"])


class VisionLanguageLoss(nn.Module):
    """The loss of one row, as the forward pass that DDP wraps."""

    def __init__(self, vocab: int, patch_values: int, merge: int, sequence_length: int) -> None:
        super().__init__()
        self.decoder = Decoder(vocab)
        self.encoder = VisionEncoder(patch_values, merge, out=self.decoder.tokens.embedding_dim)
        self.sequence_length, self.merge = sequence_length, merge
        # Its collectives run beside those of DDP, and must not be taken for them.
        self.exchange = msd.torch.EmbeddingExchange(dist.new_group())
        self.no_images = {
            "pixels": torch.empty(0, patch_values, dtype=torch.uint8),
            "grids": torch.empty(0, 3, dtype=torch.int32),
            "starts": torch.empty(0, dtype=torch.int32),
        }

    def forward(self, row: dict[str, Any], share: dict[str, Any] | None) -> Tensor:
        """Return the summed cross-entropy of a row; `share` is what this rank encodes, for other ranks too."""
        if share is None:
            images = row["images"] or self.no_images
            embedded = placeholders(images, self.merge), self.encoder(images["pixels"], images["grids"])
        else:
            made = self.encoder(share["pixels"], share["grids"])
            embedded = share["positions"], self.exchange(made, share)
        return self.decoder.loss({**row, "embedded": embedded}, self.sequence_length)


def placeholders(images: dict[str, Tensor], merge: int) -> Tensor:
    """Return the positions of a row's placeholders, in the order of its images."""
    count = images["grids"].prod(dim=1).long() // merge**2
    first = images["starts"] - (count.cumsum(0) - count)
    return torch.repeat_interleave(first, count) + torch.arange(int(count.sum()))


def train_step(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, batch: msd.torch.TorchBatch) -> float:
    """Take one optimizer step over what all ranks received, and return its loss per labelled token."""
    optimizer.zero_grad(set_to_none=True)
    total = torch.zeros(())
    for number, row in enumerate(batch.microbatches):
        is_last = number + 1 == len(batch.microbatches)
        with nullcontext() if is_last else ddp.no_sync():
            # DDP averages over ranks; the loss is a sum over all their rows.
            share = batch.encoder[number] if batch.encoder else None
            loss = ddp(row, share) * dist.get_world_size() / batch.global_num_valid_tokens
            loss.backward()
        total += loss.detach()
    optimizer.step()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def train(address: str, geometry: dict[str, int], steps: int) -> None:
    """Train one rank."""
    torch.manual_seed(17)
    ddp = DistributedDataParallel(VisionLanguageLoss(**geometry))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.01)
    with msd.torch.DataLoader(address, rank=dist.get_rank(), steps=steps) as loader:
        for batch in loader:
            own = [row["images"] for row in batch.microbatches if row["images"] is not None]
            patches = sum(len(images["pixels"]) for images in batch.encoder or own)
            loss = train_step(ddp, optimizer, batch)
            told = f"rank {batch.rank}  step {batch.step:4d}  loss {loss:.6f}  encodes {patches} patches"
            # One write a line: ranks share the terminal.
            print(told + "\n", end="", flush=True)


def spawned(rank: int, num_ranks: int, store: str, address: str, geometry: dict[str, int], steps: int) -> None:
    """Train one of the ranks that `main` started."""
    torch.set_num_threads(1)  # As torchrun sets it: ranks share the cores.
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks)
    try:
        train(address, geometry, steps)
    finally:
        dist.destroy_process_group()


def main() -> None:
    """Start the run here and each rank in a process of its own."""
    parser = argparse.ArgumentParser(
        description="Train a small vision-language model, images encoded where there is room."
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--strategy", default="vlm_hybrid", choices=["vlm_backbone", "vlm_joint", "vlm_hybrid"])
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="override a setting")
    options = parser.parse_args()
    config = msd.load_config(options.config, options.set)
    mesh = {"pp": 1, "dp": options.ranks, "cp": 1, "tp": 1}
    config = config.replace(mesh=mesh, strategy=options.strategy, encoder={"every": "slot"})
    small = model_for(config)
    geometry = {
        "vocab": small.tokens.num_embeddings,
        "patch_values": small.patches.in_features // small.merge**2,
        "merge": small.merge,
        "sequence_length": config.batch.sequence_length,
    }
    with msd.start(config, runtime="dask") as engine, tempfile.TemporaryDirectory() as folder:
        arguments = (options.ranks, f"{folder}/store", engine.address, geometry, options.steps)
        mp.spawn(spawned, args=arguments, nprocs=options.ranks)


if __name__ == "__main__":
    main()

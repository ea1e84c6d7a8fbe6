"""Train the small transformer of `train_small.py` with DDP, one process a rank; `docs/tutorials/train-ddp.md` explains.

    msd serve demo-corpus/corpus.yaml --rendezvous run.json
    torchrun --nproc-per-node 2 docs/examples/train_ddp.py --address file://$PWD/run.json

or both in one command: `python docs/examples/train_ddp.py --serve demo-corpus/corpus.yaml --ranks 2`.
"""

import argparse
import json
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from train_small import SmallTransformer

import msd


class RowLoss(nn.Module):
    """The loss of one microbatch, as the forward pass that DDP wraps."""

    def __init__(self, model: SmallTransformer, sequence_length: int) -> None:
        super().__init__()
        self.model = model
        self.sequence_length = sequence_length

    def forward(self, row: dict) -> Tensor:
        """Return the summed cross-entropy of a row."""
        # DDP expects a gradient for every parameter on every rank, and not every row holds an image.
        touched = sum(parameter.sum() for parameter in self.model.patches.parameters())
        return self.model.loss(row, self.sequence_length) + 0.0 * touched


def train_step(
    ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, batch: msd.torch.TorchBatch, num_shares: int
) -> float:
    """Take one optimizer step over what all ranks received, and return its loss per labelled token.

    Args:
        ddp: Wraps the row's loss.
        optimizer: Of its parameters.
        batch: Of this rank.
        num_shares: Ranks with rows of their own. DDP averages over all ranks; this makes it the sum over rows.
    """
    optimizer.zero_grad(set_to_none=True)
    total = torch.zeros(())
    for number, row in enumerate(batch.microbatches, 1):
        # Gradients are exchanged once a step, with those of the last microbatch.
        with nullcontext() if number == len(batch.microbatches) else ddp.no_sync():
            loss = ddp(row) * num_shares / batch.global_num_valid_tokens
            loss.backward()
        total += loss.detach()
    optimizer.step()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def train(options: argparse.Namespace) -> None:
    """Train this rank up to step `options.steps`, going on from `options.checkpoint` if that exists."""
    rank, path = dist.get_rank(), options.checkpoint
    torch.manual_seed(options.seed)
    model = SmallTransformer(options.vocab)
    ddp = DistributedDataParallel(RowLoss(model, options.sequence_length))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.01)
    saved = torch.load(path, weights_only=True) if path and path.exists() else None
    first = saved["step"] if saved else 0
    with msd.torch.DataLoader(options.address, rank=rank, steps=max(0, options.steps - first)) as loader:
        num_shares = shares(loader.mesh)
        if saved:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
        for batch in loader:
            loss = train_step(ddp, optimizer, batch, num_shares)
            print(f"rank {rank}  step {batch.step:4d}  loss {loss:.4f}  tokens {batch.num_valid_tokens}", flush=True)
            if options.record is not None:
                note = {"step": batch.step, "loss": loss, "sample_ids": batch.sample_ids}
                with (options.record / f"rank{rank}.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(note) + "\n")
        if path is not None and rank == 0:
            state = {"step": max(first, options.steps), "loader": loader.state_dict()}
            torch.save(state | {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def shares(mesh: msd.Mesh) -> int:
    """Return how many ranks have rows of their own; refuse a mesh that this program cannot train on."""
    num_ranks = dist.get_world_size()
    if mesh.world_size != num_ranks:
        raise SystemExit(
            f"the run serves {mesh.world_size} ranks and {num_ranks} train; serve with mesh.dp={num_ranks}"
        )
    if mesh.size("pp") > 1 or mesh.size("cp") > 1:
        raise SystemExit("this model has no pipeline and no attention across slices; serve with mesh.pp=1 mesh.cp=1")
    return mesh.size("dp")


def spawned(rank: int, num_ranks: int, store: str, options: argparse.Namespace) -> None:
    """Train one of the ranks that `serve` started."""
    torch.set_num_threads(1)  # As torchrun sets it: ranks share the cores.
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks)
    try:
        train(options)
    finally:
        dist.destroy_process_group()


def serve(options: argparse.Namespace) -> None:
    """Start the engine here and each rank in a process of its own."""
    config = msd.load_config(options.serve, options.set)
    if options.ranks is not None:
        config = config.replace(mesh={"dp": options.ranks})
    with msd.start(config, runtime="dask") as engine, tempfile.TemporaryDirectory() as folder:
        options.address, num_ranks = engine.address, engine.mesh.world_size
        mp.spawn(spawned, args=(num_ranks, f"{folder}/store", options), nprocs=num_ranks)


def main() -> None:
    """Train as one rank under torchrun, or start everything."""
    parser = argparse.ArgumentParser(description="Train a small transformer with DDP from a served run.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--address", help="of the run: msd://..., or file://... of the file that msd serve wrote")
    where.add_argument("--serve", type=Path, metavar="CONFIG", help="start the run and its ranks, without torchrun")
    parser.add_argument("--ranks", type=int, help="with --serve: data-parallel ranks")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="with --serve: override a setting")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--sequence-length", type=int, default=1024, help="as the run packs it")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=17, help="of the weights")
    parser.add_argument("--checkpoint", type=Path, help="file to go on from, and to write at the end")
    parser.add_argument("--record", type=Path, metavar="DIR", help="write what each rank received and learned there")
    options = parser.parse_args()
    if options.serve:
        serve(options)
        return
    dist.init_process_group("gloo")
    try:
        train(options)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

r"""Train with DDP, saving model, optimizer and data together; killed at any moment it goes on from what was saved last.

    msd serve demo-corpus/corpus.yaml mesh.dp=2 --rendezvous run.json
    torchrun --standalone --max-restarts 100 --nproc-per-node 2 docs/examples/train_resume.py \
        --address file://$PWD/run.json --checkpoints checkpoints

`docs/how-to/save-model-and-data.md` explains it. The checkpoint fits any number of ranks.
"""

import argparse
import json
import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.nn.parallel import DistributedDataParallel
from train_ddp import RowLoss, shares, train_step
from train_small import SmallTransformer

import msd


class Training(Stateful):
    """Model and optimizer as `torch.distributed.checkpoint` stores them: by the names of parameters, for any mesh."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer

    def state_dict(self) -> dict:
        """Return both states."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict) -> None:
        """Take both states."""
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def save(parts: dict[str, Stateful], folder: Path, step: int, *, keep: int) -> None:
    """Write a checkpoint of all ranks. It has its name once it is whole, so a kill leaves none that is half written."""
    whole, partial = folder / f"step-{step:08d}", folder / f"step-{step:08d}.partial"
    dcp.save(parts, checkpoint_id=partial)  # Ends on every rank once every rank has written.
    if dist.get_rank() == 0:
        os.replace(partial, whole)
        for old in (*finished(folder)[:-keep], *folder.glob("step-*.partial")):
            shutil.rmtree(old)
    dist.barrier()


def finished(folder: Path) -> list[Path]:
    """Return the checkpoints that are whole, the newest last."""
    return sorted(path for path in folder.glob("step-*") if path.suffix != ".partial")


def newest(folder: Path) -> Path | None:
    """Return the newest whole checkpoint as rank 0 sees it, the same on every rank."""
    found = [next(reversed(finished(folder)), None) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    return found[0]


def train(options: argparse.Namespace) -> None:
    """Train this rank up to step `options.steps`, from the newest checkpoint if there is one."""
    rank, folder = dist.get_rank(), options.checkpoints
    torch.manual_seed(options.seed)
    model = SmallTransformer(options.vocab)
    ddp = DistributedDataParallel(RowLoss(model, options.sequence_length))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.01)
    last = newest(folder)
    first = 0 if last is None else int(last.name.removeprefix("step-"))
    with msd.torch.DataLoader(options.address, rank=rank, steps=max(0, options.steps - first)) as loader:
        num_shares = shares(loader.mesh)
        parts = {"training": Training(model, optimizer), "data": loader}
        if last is None:
            # A rank that is killed before the next one begins with the first batch again, as the weights do.
            save(parts, folder, 0, keep=options.keep)
        else:
            dcp.load(parts, checkpoint_id=last)
        for batch in loader:
            loss = train_step(ddp, optimizer, batch, num_shares)
            if rank == 0:
                print(f"step {batch.step:4d}  loss {loss:.4f}", flush=True)
            if options.record is not None:
                note = {"step": batch.step, "loss": loss, "sample_ids": batch.sample_ids, "pid": os.getpid()}
                with (options.record / f"rank{rank}.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(note) + "\n")
            if (batch.step + 1) % options.every == 0:
                save(parts, folder, batch.step + 1, keep=options.keep)


def main() -> None:
    """Train as one rank under torchrun."""
    parser = argparse.ArgumentParser(description="Train a small transformer that survives being killed.")
    parser.add_argument("--address", required=True, help="of the run: msd://..., or file://... that msd serve wrote")
    parser.add_argument("--checkpoints", type=Path, required=True, metavar="DIR", help="shared by all ranks")
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--keep", type=int, default=2, help="checkpoints that stay")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--sequence-length", type=int, default=1024, help="as the run packs it")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=17, help="of the weights")
    parser.add_argument("--record", type=Path, metavar="DIR", help="write what each rank received and learned there")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    try:
        train(options)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

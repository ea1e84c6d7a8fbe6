"""What stands around blocks that show a part of a program: the names that the program of the page has by then."""

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doc_pages import ROOT

import msd

STEPS = 2
SMALL = ["batch.sequence_length=256", "batch.global_batch_size=4", "num_microbatches=2", "mesh.dp=1"]


@contextlib.contextmanager
def names_of(page: Path, corpus: Path, patch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Yield the names that the blocks of a page find; none for pages whose blocks are whole."""
    around = AROUND.get(str(page.relative_to(ROOT)))
    if around is None:
        yield {}
        return
    import torch
    import torch.distributed as dist

    patch.syspath_prepend(ROOT / "docs/examples")
    patch.setattr(msd.torch, "DataLoader", functools.partial(msd.torch.DataLoader, steps=STEPS))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(17)
    before = set(sys.modules)
    try:
        config = msd.load_config(corpus / "corpus.yaml", SMALL)
        with contextlib.ExitStack() as ending:
            yield {"msd": msd, "torch": torch, "rank": 0, **around(config, ending, patch)}
    finally:
        dist.destroy_process_group()
        for name in set(sys.modules) - before:
            if name.startswith("train_"):
                del sys.modules[name]


def example(name: str) -> Any:
    """Return a program of `docs/examples` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs/examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_train(config: msd.Config, ending: contextlib.ExitStack, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """One process: a model, and a row with an image."""
    import torch

    engine = ending.enter_context(msd.start(config))
    # Blocks after the loop use what it opened.
    patch.setattr(msd, "start", lambda config: contextlib.nullcontext(engine))
    model = example("train_small").model_for(config)
    rows = (row for batch in msd.torch.DataLoader(engine, rank=0) for row in batch.microbatches)
    row = next(row for row in rows if row["images"] is not None)
    images = row["images"]
    count = images["grids"].prod(dim=1) // model.merge**2
    spot = torch.cat([at + torch.arange(n) for at, n in zip(images["starts"].tolist(), count.tolist(), strict=True)])
    return {
        "config": config, "model": model, "optimizer": torch.optim.AdamW(model.parameters()),
        "sequence_length": config.batch.sequence_length, "path": "small.pt", "self": model, "images": images,
        "spot": spot, "x": model.tokens(row["input_ids"]), "segment": row["segment_ids"].reshape(1, -1),
        "position": row["position_ids"].reshape(1, -1),
    }  # fmt: skip


def of_train_ddp(config: msd.Config, ending: contextlib.ExitStack, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A rank under torchrun."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    loss = example("train_ddp").RowLoss(example("train_small").model_for(config), config.batch.sequence_length)
    ddp = DistributedDataParallel(loss)
    return {
        "address": ending.enter_context(msd.start(config)), "ddp": ddp, "num_shares": 1,
        "optimizer": torch.optim.AdamW(ddp.parameters()), "nullcontext": contextlib.nullcontext,
    }  # fmt: skip


def of_train_vlm(config: msd.Config, ending: contextlib.ExitStack, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A rank that encodes images, and its batch."""
    small = example("train_small").model_for(config)
    engine = ending.enter_context(msd.start(config.replace(strategy="vlm_hybrid", encoder={"every": "slot"})))
    made = example("train_vlm").VisionEncoder(small.patches.in_features // small.merge**2, small.merge, out=64)
    batch = next(batch for batch in msd.torch.DataLoader(engine, rank=0) if batch.encoder)
    return {"batch": batch, "encoder": made, "exchange": msd.torch.EmbeddingExchange(), "tokens": small.tokens}


def of_save(config: msd.Config, ending: contextlib.ExitStack, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The functions of `train_resume.py`."""
    import torch.distributed.checkpoint as dcp

    resume = example("train_resume")
    names = of_train_ddp(config, ending, patch)
    Path("checkpoints").mkdir()
    return names | {
        "newest": resume.newest, "save": functools.partial(resume.save, keep=2), "Training": resume.Training,
        "dcp": dcp, "folder": Path("checkpoints"), "every": 1, "model": names["ddp"].module.model,
        "train_step": resume.train_step,
    }  # fmt: skip


AROUND = {
    "docs/tutorials/train.md": of_train,
    "docs/tutorials/train-ddp.md": of_train_ddp,
    "docs/tutorials/train-vlm.md": of_train_vlm,
    "docs/how-to/save-model-and-data.md": of_save,
}

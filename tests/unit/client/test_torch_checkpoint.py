"""A loader is saved with a model by torch.distributed.checkpoint, and loaded by another number of processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from link_run import SETTINGS, ScriptedRun, url

from msd.client.link.server import LinkServer
from msd.core.mesh import Mesh

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

RANK = """
import json, sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful
import msd.torch
what, address, rank, world, meet, folder = sys.argv[1:]
dist.init_process_group("gloo", init_method=meet, rank=int(rank), world_size=int(world))
with msd.torch.DataLoader(address, rank=int(rank)) as loader:
    assert isinstance(loader, Stateful)
    steps, model = iter(loader), torch.nn.Linear(2, 2)
    parts = {"model": model, "data": loader}
    if what == "save":
        torch.nn.init.constant_(model.weight, 7.0)
        for _ in range(5):
            next(steps)
        dcp.save(parts, checkpoint_id=folder)
    else:
        next(steps)
        dcp.load(parts, checkpoint_id=folder)
    print(json.dumps({"next": next(steps).step, "weight": model.weight.sum().item()}))
dist.destroy_process_group()
"""


def ranks(what, server, world, folder):
    meet = (folder / f"{what}-meet").as_uri()
    command = [sys.executable, "-W", "ignore", "-c", RANK, what, url(server)]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(world), meet, str(folder / "saved")],
            cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(world)
    ]  # fmt: skip
    found = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0] * world
    return [json.loads(text) for text in found]


def test_a_loader_is_saved_with_its_model_and_loaded_on_another_world_size(tmp_path):
    run = ScriptedRun()
    with LinkServer(run, **SETTINGS) as server:
        assert ranks("save", server, 2, tmp_path) == [{"next": 5, "weight": 28.0}] * 2
        run.change(mesh=Mesh.of(dp=1))
        assert ranks("load", server, 1, tmp_path) == [{"next": 5, "weight": 28.0}]
    assert [load.state for load in run.asked_loads] == [{"generation": 0, "step": 4}]

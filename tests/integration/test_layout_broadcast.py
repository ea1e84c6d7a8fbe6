"""With a broadcast axis one rank fetches, and a group hands its rows to the others: two processes over gloo."""

import functools
import io
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from PIL import Image  # noqa: E402

import msd  # noqa: E402

IMAGE_TOKEN = 300
LAYOUTS = (None, "megatron_packed", "qwen")


def config_for(**changes) -> msd.Config:
    """Texts and pictures for two ranks of one tensor-parallel group."""
    rng = np.random.default_rng(7)
    picture = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (16, 24, 3), dtype=np.uint8)).save(picture, "PNG")
    return msd.Config(
        sources={
            "web": {
                "rows": [{"text": "words " * int(n)} for n in rng.integers(1, 12, 80)],
                "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}],
            },
            "photos": {
                "rows": [{"png": picture.getvalue(), "text": f"picture {n}"} for n in range(40)],
                "transforms": [
                    {"kind": "image", "field": "png", "patch": 4, "merge": 2, "image_token": IMAGE_TOKEN},
                    {"kind": "tokenize", "tokenizer": "bytes"},
                ],
            },
        },
        batch={"sequence_length": 64, "global_batch_size": 8},
        mesh={"pp": 1, "dp": 1, "cp": 1, "tp": 2},
        num_microbatches=2,
        **changes,
    )


def taken(config: msd.Config, rank: int, layout, **options) -> list:
    with msd.start(config, runtime="local") as engine:
        return list(msd.torch.DataLoader(engine, rank=rank, layout=layout, steps=2, **options))


def leaves(value) -> list:
    if isinstance(value, dict):
        return [leaf for name in sorted(value) for leaf in [name, *leaves(value[name])]]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return [(str(value.dtype), value.tolist()) if isinstance(value, torch.Tensor) else value]


def compare(rank: int, store: str) -> None:
    """Compare, in one of the two processes, what the group gives with what the rank would have fetched itself."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        for layout in LAYOUTS:
            shared = taken(config_for(broadcast=["tp"]), rank, layout, broadcast_group=dist.group.WORLD)
            fetched = taken(config_for(), rank, layout)
            for mine, wanted in zip(shared, fetched, strict=True):
                rows, wanted_rows = (getattr(step, "microbatches", step) for step in (mine, wanted))
                assert leaves(rows) == leaves(wanted_rows), layout
                assert len(rows) == 2
                assert mine.num_valid_tokens == wanted.num_valid_tokens > 0
    finally:
        dist.destroy_process_group()


def test_every_rank_of_the_group_has_the_rows_that_one_of_them_fetched(tmp_path: Path):
    mp.spawn(compare, args=(str(tmp_path / "store"),), nprocs=2)


def test_without_a_group_items_say_whom_to_receive_from():
    config = config_for(broadcast=["tp"])
    [first, _] = taken(config, 0, "megatron_packed")
    [second, _] = taken(config, 1, "megatron_packed")
    assert set(first[0]) == {"tokens", "labels", "loss_mask", "position_ids", "packed_seq_params", "images"}
    assert [marker.root for marker in second] == [0, 0]
    assert second[0].shapes["input_ids"] == ((256,), "int32")


def test_images_of_a_run_have_their_placeholders_where_the_layout_of_qwen_looks():
    layout = functools.partial(msd.layouts.qwen, merge=2)
    for step in taken(config_for(), 0, layout):
        for row in step:
            num_placeholders = int((row["input_ids"] == IMAGE_TOKEN).sum())
            assert num_placeholders == int(row["image_grid_thw"].prod(dim=1).sum()) // 4 > 0
            assert len(row["pixel_values"]) == 4 * num_placeholders
            assert row["pixel_values"].shape[1] == 3 * 2 * 4 * 4
            is_image = row["input_ids"][0] == IMAGE_TOKEN
            text, time, tall, wide = row["position_ids"][:, 0]
            assert (time[is_image] <= tall[is_image]).all()
            assert (wide <= text).all()

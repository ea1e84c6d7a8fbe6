"""Images encoded by other ranks, embeddings exchanged: loss and gradients are those of rows with their own images."""

import io

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

from exchange_ranks import MERGE, PATCH, alone, spawn  # noqa: E402
from PIL import Image  # noqa: E402

import msd  # noqa: E402

COST = {"backbone": {"kind": "tokens"}, "encoder": {"kind": "fitted", "linear": 1.0, "quadratic": 0.1}}
CASES = {
    2: {
        "slot by slot": ({"dp": 2}, {}),
        "once a step": ({"dp": 2}, {"every": "step"}),
        "one rank encodes for both": ({"dp": 1, "tp": 2}, {"ranks": "dp"}),
    },
    4: {
        "tensor parallel": ({"dp": 2, "tp": 2}, {}),
        "context parallel": ({"dp": 2, "cp": 2}, {}),
        "one encoder a slice": ({"cp": 2, "dp": 1, "tp": 2}, {"ranks": "dp_cp"}),
        "pipeline": ({"pp": 2, "dp": 2}, {}),
    },
}


def picture(draw: np.random.Generator) -> bytes:
    height, width = draw.integers(1, 4, 2) * PATCH * MERGE
    stream = io.BytesIO()
    Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def config_for(mesh: dict[str, int], strategy: str = "vlm_backbone", **encoder: str) -> msd.Config:
    """Text, and rows of none to three images."""
    draw = np.random.default_rng(5)
    texts = [{"txt": "t" * int(n)} for n in draw.integers(1, 40, 30)]
    photos = [{"png": [picture(draw) for _ in range(n)], "txt": "a caption"} for n in [0, 1, 2, 3] * 8]
    image = {"kind": "image", "field": "png", "patch": PATCH, "merge": MERGE, "max_pixels": 640, "min_pixels": 64}
    text = {"kind": "tokenize", "tokenizer": "bytes", "field": "txt"}
    return msd.Config(
        sources={
            "web": {"rows": texts, "transforms": [text]},
            "photos": {"rows": photos, "transforms": [image, text]},
        },
        batch={"sequence_length": 64, "global_batch_size": 8, "document_multiple": 4},
        mesh={"pp": 1, "dp": 1, "cp": 1, "tp": 1} | mesh,
        num_microbatches=2,
        cost=COST,
        strategy=strategy,
        encoder=encoder,
    )


@pytest.fixture(scope="module", params=CASES, ids=lambda num_ranks: f"{num_ranks} ranks")
def learned(request, tmp_path_factory):
    """For each case: what ranks learned together, and what rows with their own images teach."""
    configs = {
        name: config_for(mesh, "vlm_hybrid", **encoder) for name, (mesh, encoder) in CASES[request.param].items()
    }
    found = spawn(configs, tmp_path_factory.mktemp("ranks"), request.param)
    expected = {name: alone(config_for({**mesh, "cp": 1, "tp": 1})) for name, (mesh, _) in CASES[request.param].items()}
    return found, expected


def test_loss_and_gradients_are_those_of_rows_with_their_own_images(learned):
    found, expected = learned
    for name in expected:
        assert set(found[name]) == set(expected[name])
        for key, wanted in expected[name].items():
            assert float(wanted.norm()) > 0
            error = float((found[name][key] - wanted).norm() / wanted.norm())
            assert error <= 1e-10, (name, key, error)

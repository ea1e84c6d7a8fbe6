"""The training example of the documentation: it learns, resumes identically, and runs as its page says."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from gradient_reference import EXAMPLE, load_example  # noqa: E402

import msd  # noqa: E402

SMALL = ["batch.sequence_length=512", "batch.global_batch_size=4"]


@pytest.fixture
def config(tiny_corpus: Path) -> msd.Config:
    return msd.load_config(tiny_corpus / "corpus.yaml", SMALL)


@pytest.mark.slow
def test_the_loss_falls(config):
    losses = load_example().train(config, steps=20)
    assert len(losses) == 20
    assert np.mean(losses[-4:]) < np.mean(losses[:3]) - 1.0


def test_a_resumed_run_goes_on_as_if_nothing_had_happened(config, tmp_path, capsys):
    example = load_example()
    undisturbed = example.train(config, steps=6)
    first = example.train(config, steps=3, checkpoint=tmp_path / "small.pt")
    second = example.train(config, steps=6, checkpoint=tmp_path / "small.pt")
    assert first + second == undisturbed
    capsys.readouterr()
    assert example.train(config, steps=6, checkpoint=tmp_path / "small.pt") == []
    assert "small.pt stands at step 6: nothing is left of 6 steps; raise --steps to go on" in capsys.readouterr().out


def test_the_mesh_does_not_change_what_is_learned(config):
    example = load_example()
    one, two = (example.train(config.replace(mesh={"dp": dp}), steps=2) for dp in (1, 2))
    assert two == pytest.approx(one, rel=1e-4)


def test_the_script_prints_a_loss_for_each_step_and_goes_on_from_its_checkpoint(tiny_corpus, tmp_path):
    assert EXAMPLE.name == "train_small.py"
    script = [
        sys.executable,
        str(EXAMPLE),
        str(tiny_corpus / "corpus.yaml"),
        "--checkpoint",
        str(tmp_path / "small.pt"),
    ]
    for setting in SMALL:
        script += ["--set", setting]
    lines = []
    for steps in ("2", "3"):
        done = subprocess.run(
            [*script, "--steps", steps], check=True, capture_output=True, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        lines += done.stdout.splitlines()
    assert [line.split()[:3] for line in lines] == [["step", str(step), "loss"] for step in range(3)]

"""Training as users do it: `msd serve` in one process, ranks under torchrun in others."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(240)]

from processes import ROOT, Program, descendants, programs  # noqa: E402

import msd  # noqa: E402

EXAMPLE = ROOT / "docs/examples/train_ddp.py"
RANK = Path(__file__).with_name("rank.py")
SMALL = ["batch.sequence_length=256", "batch.global_batch_size=4", "num_microbatches=2"]
STEPS = 8


@pytest.fixture
def config(tiny_corpus: Path) -> Path:
    return tiny_corpus / "corpus.yaml"


@pytest.fixture
def start(tmp_path):
    with programs(tmp_path) as start:
        yield start


def served(start, config, folder, *settings) -> Program:
    rendezvous = ("--rendezvous", folder / "run.json")
    return start("serve", "-m", "msd.cli.main", "serve", config, *SMALL, "runtime.kind=dask", *settings, *rendezvous)


def trained(start, config, folder, *arguments, steps=STEPS, name="torchrun") -> dict[int, list[dict]]:
    """Train two ranks under torchrun; return what each received and learned."""
    vocab = example().model_for(msd.load_config(config)).tokens.num_embeddings
    record = folder / name
    record.mkdir()
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    options = ("--address", f"file://{folder}/run.json", "--steps", steps, "--record", record)
    model = ("--vocab", vocab, "--sequence-length", 256)
    start(name, *torchrun, EXAMPLE, *options, *model, *arguments).wait(60)
    return {
        rank: [json.loads(line) for line in (record / f"rank{rank}.jsonl").read_text().splitlines()] for rank in (0, 1)
    }


def losses(notes) -> list[float]:
    return [note["loss"] for note in notes]


def ids(notes) -> list[list[tuple]]:
    return [[tuple(one) for one in note["sample_ids"]] for note in notes]


def example():
    """The program whose model is trained."""
    spec = importlib.util.spec_from_file_location("train_small", EXAMPLE.with_name("train_small.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_one_process(config: Path, steps: int) -> list[float]:
    """The losses of the same training on the local engine."""
    return example().train(msd.load_config(config, [*SMALL, "mesh.dp=2"]), steps=steps)


def test_two_ranks_learn_what_one_process_learns_and_go_on_from_a_checkpoint(start, config, tmp_path):
    engine = served(start, config, tmp_path, "mesh.dp=2")
    halfway = ("--checkpoint", tmp_path / "ddp.pt")
    first = trained(start, config, tmp_path, *halfway, steps=STEPS // 2, name="first")
    second = trained(start, config, tmp_path, *halfway, name="second")
    learned = {rank: losses(first[rank] + second[rank]) for rank in (0, 1)}
    assert learned[0] == learned[1]
    assert learned[0] == pytest.approx(in_one_process(config, STEPS), rel=1e-3)
    assert np.mean(learned[0][-2:]) < np.mean(learned[0][:2]) - 0.5
    for mine, other in zip(ids(first[0] + second[0]), ids(first[1] + second[1]), strict=True):
        assert mine
        assert other
        assert not set(mine) & set(other)
    workers = descendants(engine.process.pid)
    assert workers
    assert engine.stop() == 0, engine.output
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    assert not (tmp_path / "run.json").exists()


def test_tensor_parallel_ranks_train_on_the_same_samples(start, config, tmp_path):
    served(start, config, tmp_path, "mesh={dp: 1, tp: 2}")
    notes = trained(start, config, tmp_path, steps=3)
    assert ids(notes[0]) == ids(notes[1])
    assert losses(notes[0]) == losses(notes[1]) == pytest.approx(in_one_process(config, 3), rel=1e-3)


def test_context_parallel_ranks_receive_slices_of_the_same_samples(start, config, tmp_path):
    served(start, config, tmp_path, "mesh={dp: 1, cp: 2}")
    ranks = [
        start(f"rank{rank}", RANK, f"file://{tmp_path}/run.json", rank, 4, tmp_path / f"{rank}.json") for rank in (0, 1)
    ]
    for rank in ranks:
        rank.wait(60)
    received = [json.loads((tmp_path / f"{rank}.json").read_text())["steps"] for rank in (0, 1)]
    assert ids(received[0]) == ids(received[1])
    assert all(a["digest"] != b["digest"] for a, b in zip(*received, strict=True))

"""`docs/examples/train_resume.py`: model and data saved together; killed at any moment it learns the same."""

import importlib.util
import json
import os
import random
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.cluster, pytest.mark.faults, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300),
]  # fmt: skip

from processes import ROOT, Program, Start, programs, wait_until  # noqa: E402

import msd  # noqa: E402

EXAMPLE = ROOT / "docs/examples/train_resume.py"
SMALL = ["batch.sequence_length=256", "batch.global_batch_size=4", "num_microbatches=2"]
HALF, ALL = 9, 13


class Trainer:
    """Serves runs and trains from them, as a user does in two terminals."""

    def __init__(self, start: Start, config: Path, folder: Path) -> None:
        self.start, self.config, self.folder = start, config, folder
        spec = importlib.util.spec_from_file_location("train_small", EXAMPLE.with_name("train_small.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.vocab = module.model_for(msd.load_config(config)).tokens.num_embeddings
        for name in ("record", "checkpoints"):
            (folder / name).mkdir(parents=True)

    def serve(self, dp: int) -> Program:
        options = ("--rendezvous", self.folder / "run.json", *SMALL, f"mesh.dp={dp}", "runtime.workers=1")
        return self.start(f"serve-{self.folder.name}-{dp}", "-m", "msd.cli.main", "serve", self.config, *options)

    def train(self, name: str, ranks: int, steps: int) -> Program:
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks)
        patience = ("--max-restarts", 0, "--monitor-interval", 0.2)
        where = ("--address", f"file://{self.folder}/run.json", "--checkpoints", self.folder / "checkpoints")
        how = ("--steps", steps, "--every", 3, "--record", self.folder / "record")
        model = ("--vocab", self.vocab, "--sequence-length", 256)
        return self.start(f"{self.folder.name}-{name}", *torchrun, *patience, EXAMPLE, *where, *how, *model)

    def notes(self, rank: int) -> list[dict]:
        path = self.folder / "record" / f"rank{rank}.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for(self, step: int, program: Program) -> None:
        def is_there() -> bool:
            return any(note["step"] >= step for note in self.notes(0)) or program.process.poll() is not None

        wait_until(is_there, 100, f"step {step}")
        assert program.process.poll() is None, program.output[-3000:]

    def losses(self) -> dict[int, set[float]]:
        """Return what rank 0 wrote for each step, also where it took the step twice."""
        found: dict[int, set[float]] = {}
        for note in self.notes(0):
            found.setdefault(note["step"], set()).add(note["loss"])
        return found

    def samples(self, ranks: int, first: int, last: int) -> list[list[tuple]]:
        """Return the samples of each step over all ranks."""
        held: dict[int, set[tuple]] = {step: set() for step in range(first, last)}
        for note in (note for rank in range(ranks) for note in self.notes(rank)):
            held.get(note["step"], set()).update(tuple(one) for one in note["sample_ids"])
        return [sorted(held[step]) for step in range(first, last)]


@pytest.fixture
def start(tmp_path):
    with programs(tmp_path) as start:
        yield start


def test_a_trainer_that_is_killed_at_random_learns_the_same_and_goes_on_with_other_ranks(start, tiny_corpus, tmp_path):
    """Answers EN-10."""
    draw = random.Random(3)
    calm, struck = (Trainer(start, tiny_corpus / "corpus.yaml", tmp_path / name) for name in ("calm", "struck"))
    serve = calm.serve(2)
    calm.train("all", 2, ALL).wait(120)
    assert serve.stop() == 0, serve.output
    expected = calm.losses()
    assert all(len(each) == 1 for each in expected.values())

    serve = struck.serve(2)
    torchrun = struck.train("first", 2, HALF)
    struck.wait_for(draw.randrange(1, 3), torchrun)
    # One rank: torchrun ends the others, and is started again. (Its own restarts may find the dead rank's address.)
    os.kill(struck.notes(draw.randrange(2))[-1]["pid"], signal.SIGKILL)
    wait_until(lambda: torchrun.process.poll() is not None, 60, "torchrun to end")
    torchrun = struck.train("second", 2, HALF)
    struck.wait_for(draw.randrange(4, 7), torchrun)
    # Everything at once, perhaps within a save.
    torchrun.kill()
    struck.train("again", 2, HALF).wait(120)
    assert struck.losses() == {step: expected[step] for step in range(HALF)}
    assert serve.stop() == 0, serve.output
    assert [path.name for path in sorted((struck.folder / "checkpoints").iterdir())] == [
        "step-00000006",
        "step-00000009",
    ]

    serve = struck.serve(1)
    struck.train("alone", 1, ALL).wait(120)
    assert serve.stop() == 0, serve.output
    assert struck.samples(1, HALF, ALL) == calm.samples(2, HALF, ALL)
    for step in range(HALF, ALL):
        assert list(struck.losses()[step]) == pytest.approx(list(expected[step]), rel=1e-3)

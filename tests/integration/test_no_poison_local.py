"""A run that is killed in any phase leaves directories in which the same run starts at once, and goes on."""

import json
import os
import subprocess
import sys

import pytest

from msd.checkpoint import open_store

pytestmark = pytest.mark.faults

STEPS = 150
PROGRAM = """
import json, os, signal, sys
import msd
from msd.runtime.local import LocalEngine

folder, phase, count = sys.argv[1], sys.argv[2], int(sys.argv[3])

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def on_index(progress):
    if phase == "index" and progress.shards_done >= count:
        die()

if phase in ("write", "replace", "fsync"):
    calls, real = 0, getattr(os, phase)
    def counted(*arguments, **options):
        global calls
        where = str(arguments[0] if phase == "replace" else os.readlink(f"/proc/self/fd/{arguments[0]}"))
        if "ckpt" in where:
            calls += 1
            if calls == count:
                if phase == "write":
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                die()
        return real(*arguments, **options)
    setattr(os, phase, counted)

config = msd.Config(
    sources={"web": {"path": f"{folder}/data/*.jsonl", "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}]}},
    batch={"sequence_length": 64, "global_batch_size": 4},
    mesh={"dp": 1}, num_microbatches=1,
    checkpoint={"path": f"{folder}/ckpt", "every": 5},
)
with LocalEngine(config, on_index_progress=on_index) as engine:
    if phase == "start":
        die()
    start = engine.stats()["next_step"]
    for batch in engine.client(0):
        print(json.dumps([batch.step, batch.sample_ids, batch.microbatches[0].input_ids.tolist()]), flush=True)
        if phase == "run" and batch.step >= start + count or batch.step == 150 - 1:
            break
    if phase == "run":
        die()
"""


def run(folder, cache, phase, count=0):
    """Return the steps that a run said it had, and how it ended."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), phase, str(count)],
        capture_output=True, text=True, check=False, env={**os.environ, "MSD_CACHE": str(cache)},
    )  # fmt: skip
    return {step: rest for step, *rest in map(json.loads, found.stdout.splitlines())}, found


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    for shard in range(4):
        lines = [json.dumps({"text": f"shard {shard} row {row} " + "x" * (row % 30)}) for row in range(100)]
        (tmp_path / "data" / f"{shard}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


PHASES = [
    ("index", 1), ("index", 3), ("start", 0), ("run", 0), ("run", 7), ("run", 21),
    ("write", 1), ("write", 2), ("write", 4), ("fsync", 1), ("fsync", 6), ("fsync", 9), ("replace", 1), ("replace", 3),
]  # fmt: skip


def test_a_run_that_is_killed_in_each_phase_starts_again_at_once_and_goes_on(folder):
    """One folder for all: what one leaves, the next finds."""
    undisturbed, first = run(folder, folder / "other-cache", "none")
    assert len(undisturbed) == STEPS, first.stderr
    for file in (folder / "ckpt").iterdir():
        file.unlink()
    reached = 0
    for phase, count in PHASES:
        steps, ended = run(folder, folder / "cache", phase, count)
        assert ended.returncode == -9, (phase, count, ended.stderr)
        assert steps == {step: undisturbed[step] for step in steps}
        store = open_store(str(folder / "ckpt"))
        newest = store.newest()
        if steps:
            assert min(steps) <= reached, "nothing that was not used is passed over"
            reached = max(reached, max(steps) + 1)
        assert newest is None or newest.step <= reached
    steps, ended = run(folder, folder / "cache", "none")
    assert ended.returncode == 0, ended.stderr
    assert steps == {step: undisturbed[step] for step in steps}
    assert max(steps) == STEPS - 1
    assert min(steps) <= reached
    assert not [file.name for file in (folder / "ckpt").iterdir() if not file.name.startswith("snapshot-")]

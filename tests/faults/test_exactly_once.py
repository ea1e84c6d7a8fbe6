"""Twenty kills within one epoch: every document that survives its transforms is delivered once."""

import json
from collections import Counter
from pathlib import Path

import pytest
from fault_data import cast_of, undisturbed, write_config
from fault_run import faulty
from fault_schedule import Fault

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(200)]

KILLS = 20
MOST_STEPS = 200


def survivors(folder: Path, names: list[str]) -> dict[str, int]:
    """Return how many rows of each source pass its filter."""
    lengths = {
        name: [len(json.loads(line)["ids"]) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for name in names
    }
    return {name: sum(length >= 6 for length in each) for name, each in lengths.items()}


def test_each_document_of_an_epoch_is_delivered_once_though_twenty_processes_are_killed(tmp_path):
    """Answers WD-6."""
    config = write_config(tmp_path / "data")
    once = [f"sources.{name}.max_epochs=1" for name in ("web", "books")]
    settings = [*once, "mixture.on_exhausted=drop", "batch.last=pad", "batch.global_batch_size=4", "shadows=1"]
    found = undisturbed(config, MOST_STEPS, settings)
    steps = sum(digest is not None for (_, rank), digest in found.items() if rank == 0)
    assert 100 < steps < MOST_STEPS
    # Each rank takes its steps and is told of the end once.
    expected = {(step, rank): digest for (step, rank), digest in found.items() if step <= steps}
    targets = cast_of(shadows=1).workers
    faults = [
        Fault(2 + number * (steps - 10) // KILLS, targets[number % len(targets)], "kill") for number in range(KILLS)
    ]
    with faulty(tmp_path, config, settings=settings) as run:
        run.begin(2, MOST_STEPS, pace_s=0.05)
        outcome = run.go_through(faults, timeout_s=180)
    outcome.check(expected)
    assert len(outcome.struck) == KILLS
    delivered = Counter(one for ids in outcome.sample_ids.values() for one in ids)
    assert set(delivered.values()) == {1}
    rows = {(source, ordinal) for source, ordinal, _ in delivered}
    assert Counter(source for source, _ in rows) == survivors(tmp_path / "data", ["web", "books"])

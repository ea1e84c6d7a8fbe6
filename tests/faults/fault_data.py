"""The run that is disturbed: its data, its configuration, who takes part in it, and what it is undisturbed."""

import json
from collections.abc import Sequence
from pathlib import Path

import yaml
from fault_schedule import Cast

import msd
from msd.testing import scenarios

SILENCE_S = 2.0


def write_config(folder: Path, **changes: object) -> Path:
    """Write a run over two small sources of made-up tokens; return its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = [{"kind": "filter", "field": "ids", "min_length": 6}, {"kind": "tokens", "field": "ids"}]
    shuffle = {"block_bytes": "4KiB", "window": 2}
    sources: dict[str, object] = {}
    for seed, (name, count, mean) in enumerate([("web", 900, 24), ("books", 300, 70)], 1):
        rows = scenarios.token_rows(seed, count, mean)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        sources[name] = {"path": str(folder / f"{name}.jsonl"), "transforms": tokens, "shuffle": shuffle}
    settings = {
        "seed": 5,
        "sources": sources,
        "mixture": {"weights": {"web": 0.6, "books": 0.4}},
        "batch": {"sequence_length": 128, "global_batch_size": 8},
        "mesh": {"dp": 2},
        "num_microbatches": 2,
        "loaders": 2,
        "runtime": {"kind": "dask", "workers": 2, "silence_s": SILENCE_S, "deadline_s": 60},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**settings, **changes}))
    return path


def undisturbed(config: Path, steps: int, settings: Sequence[str] = ()) -> dict[tuple[int, int], str | None]:
    """Return the digests of each step and rank on the local engine."""
    return scenarios.undisturbed(msd.load_config(config, [*settings, "checkpoint=null", "runtime.kind=local"]), steps)


def cast_of(*, loaders: int = 2, shadows: int = 0, compact: bool = True) -> Cast:
    """Return who takes part in a run on a cluster of its own."""
    control = ("msd-control",) if compact else ("msd-control", "msd-planner")
    loading = tuple(f"msd-loader-{number}" for number in range(loaders + shadows))
    return Cast(workers=(*control, *loading), pauses_s=(SILENCE_S / 2, 2 * SILENCE_S))

"""What the local engine costs of its own, beside the plain PyTorch pattern, over the same rows in the same run.

Rows are tokenised beforehand, so what is measured is reading, ordering, mixing, packing and assembling. Both sides run
in a process of their own that serves all ranks, take turns, and the medians of the repeats are compared.

    python perf/bench_local.py [--sources 8] [--steps 30] [--repeats 3] [--json]

The plain pattern is that of `plain.py`, one `DataLoader` a rank. It is measured twice: `plain` takes rows as Python
values (`to_pylist`), `views` is the same with zero-copy views of the columns. Neither has worker processes, whose
copies between processes would come on top.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from machine import describe

RANKS = 8
MICROBATCHES = 4
SEQUENCES = 64
LENGTH = 4096
ROWS_PER_GROUP = 50
WARM_UP = 3
MIB = 1 << 20


def main() -> None:
    """Make rows, measure both sides in turn, print a table or JSON."""
    arguments = _arguments()
    if arguments.side:
        print(json.dumps(_SIDES[arguments.side](Path(arguments.data), arguments.sources, arguments.steps)))
        return
    with tempfile.TemporaryDirectory() as folder:
        make_rows(Path(folder), arguments.sources, arguments.rows)
        runs: dict[str, list[dict[str, float]]] = {side: [] for side in _SIDES}
        for _ in range(arguments.repeats):
            for side in _SIDES:
                runs[side].append(_measure(side, folder, arguments))
    medians = {side: _medians(results) for side, results in runs.items()}
    ratios = {
        f"{side}_over_msd": {key: medians[side][key] / medians["msd"][key] for key in _COMPARED}
        for side in ("plain", "views")
    }
    settings = {key: getattr(arguments, key) for key in ("sources", "rows", "steps", "repeats")}
    settings |= {"ranks": RANKS, "microbatches": MICROBATCHES, "sequences": SEQUENCES, "sequence_length": LENGTH}
    report = {"bench": "local", "machine": describe(), "settings": settings, **medians, **ratios}
    print(json.dumps(report, indent=1) if arguments.json else _table(report))


def make_rows(folder: Path, sources: int, rows: int, *, rows_per_group: int = ROWS_PER_GROUP) -> None:
    """Write Parquet files of token ids with log-normal lengths, one file a source."""
    draw = np.random.default_rng(17)
    for source in range(sources):
        length_S = np.clip(draw.lognormal(5.5, 1.0, rows), 8, LENGTH).astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(length_S)]).astype(np.int32)
        ids = pa.ListArray.from_arrays(offsets, draw.integers(0, 32_000, offsets[-1], dtype=np.int32))
        pq.write_table(pa.table({"ids": ids}), folder / f"source_{source}.parquet", row_group_size=rows_per_group)


def run_msd(folder: Path, sources: int, steps: int) -> dict[str, float]:
    """Take steps of every rank from the local engine."""
    import torch  # noqa: F401  both sides hold torch, so that memory compares

    import msd

    baseline, started = _pss(), time.perf_counter()
    names = [f"source_{source}" for source in range(sources)]
    config = msd.Config(
        sources={
            name: {"format": "parquet", "path": str(folder / f"{name}.parquet"), "transforms": [{"kind": "tokens"}]}
            for name in names
        },
        mixture={"unit": "samples", "weights": {name: 1 + place % 3 for place, name in enumerate(names)}},
        batch={"sequence_length": LENGTH, "global_batch_size": SEQUENCES},
        mesh={"dp": RANKS},
        num_microbatches=MICROBATCHES,
    )
    with msd.start(config, runtime="local") as engine:
        loaders = [iter(msd.torch.DataLoader(engine, rank=rank)) for rank in range(RANKS)]
        return _take(loaders, steps, baseline, started, lambda batch: (len(batch.sample_ids), _real(batch)))


def run_plain(folder: Path, sources: int, steps: int, rows: str = "rows_as_values") -> dict[str, float]:
    """Take steps of every rank from plain PyTorch loaders."""
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
    import plain

    baseline, started = _pss(), time.perf_counter()
    paths = [folder / f"source_{source}.parquet" for source in range(sources)]
    weights = np.array([1 + place % 3 for place in range(sources)], dtype=float)
    mixtures = [
        plain.Mixture(paths, weights, rank, RANKS, LENGTH, rows_of=getattr(plain, rows)) for rank in range(RANKS)
    ]
    loaders = [plain.steps_of(mixture, SEQUENCES // RANKS) for mixture in mixtures]
    return _take(
        loaders,
        steps,
        baseline,
        started,
        lambda batch: (sum(row["num_samples"] for row in batch), sum(int(row["cu_seqlens"][-1]) for row in batch)),
    )


_SIDES = {"msd": run_msd, "plain": run_plain, "views": partial(run_plain, rows="rows_as_views")}
_COMPARED = ("cpu_ms_per_sample", "own_mib", "first_batch_s")


def _take(loaders: list[Any], steps: int, baseline: float, started: float, count: Any) -> dict[str, float]:
    samples = tokens = 0
    cpu, peak, first = 0.0, 0.0, None
    for step in range(WARM_UP + steps):
        before = time.process_time()
        for loader in loaders:
            batch = next(loader)
            if first is None:
                first = time.perf_counter() - started
            if step >= WARM_UP:
                found = count(batch)
                samples, tokens = samples + found[0], tokens + found[1]
        if step >= WARM_UP:
            cpu += time.process_time() - before
        peak = max(peak, _pss())
    return {
        "cpu_ms_per_sample": 1000 * cpu / samples,
        "cpu_us_per_1000_tokens": 1e9 * cpu / tokens,
        "own_mib": peak - baseline,
        "peak_mib": peak,
        "first_batch_s": first or 0.0,
        "samples": samples,
        "fill": tokens / (steps * SEQUENCES * LENGTH),
    }


def _real(batch: Any) -> int:
    return sum(int(row["cu_seqlens"][-1]) for row in batch.microbatches)


def _pss() -> float:
    """Return the proportional set size of this process in MiB."""
    for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/smaps_rollup has no line Pss:; memory is measured on Linux")


def _measure(side: str, folder: str, arguments: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--side", side, "--data", folder]
    command += ["--sources", str(arguments.sources), "--steps", str(arguments.steps)]
    # Indexes are built anew, so that the first batch pays for them.
    with tempfile.TemporaryDirectory() as cache:
        run = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"MSD_CACHE": cache})
    found: dict[str, float] = json.loads(run.stdout)
    return found


def _medians(results: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(result[key] for result in results) for key in results[0]}


def _table(report: dict[str, Any]) -> str:
    rows = [
        ("CPU per sample, ms", "cpu_ms_per_sample", "{:.3f}"),
        ("CPU per 1,000 tokens, µs", "cpu_us_per_1000_tokens", "{:.1f}"),
        ("memory of its own, MiB", "own_mib", "{:.0f}"),
        ("process with torch, MiB", "peak_mib", "{:.0f}"),
        ("start to first batch, s", "first_batch_s", "{:.2f}"),
        ("fill", "fill", "{:.4f}"),
    ]
    machine = report["machine"]
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}; {report['settings']}",
        f"{'':28}{'msd':>10}{'plain':>10}{'views':>10}{'plain/msd':>12}{'views/msd':>12}",
    ]
    for title, key, form in rows:
        found = [report[side][key] for side in ("msd", "plain", "views")]
        cells = "".join(f"{form.format(value):>10}" for value in found)
        lines.append(f"{title:28}{cells}{found[1] / found[0]:>12.2f}{found[2] / found[0]:>12.2f}")
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=int, default=8)
    parser.add_argument("--rows", type=int, default=4000, help="rows a source")
    parser.add_argument("--steps", type=int, default=30, help="measured steps, after a warm-up")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", choices=list(_SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--data", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""How fast `msd run` writes what a stream delivers: samples/s of the files over those of ranks that only take.

The same rows, transforms and workers: text of a few hundred words that is tokenised, so that work is in transforms, and
once more rows of ids, where reading, packing and writing are all there is. A stream is taken flat out by ranks in this
process; a run writes packed sequences. Each has a cluster of its own with the same processes, which is up before the
clock starts; what else it takes to begin counts on both sides.

    python perf/bench_run.py [--steps 400] [--workers 2] [--repeats 3] [--json]
"""

import argparse
import contextlib
import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from machine import describe

import msd
from msd.runtime.dask.batch.contents import Asked
from msd.runtime.dask.batch.driver import run_batch
from msd.runtime.dask.cluster import EmbeddedCluster

LENGTH, SEQUENCES, RANKS = 2048, 64, 2
MEAN_WORDS, SOURCES = 300, 4


def main() -> None:
    """Measure both ways in turn, for both kinds of rows; print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--workers", type=int, default=2, help="loader hosts, or workers that write")
    parser.add_argument("--rows", type=int, default=40_000, help="of each of the sources")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rates: dict[str, dict[str, list[float]]] = {kind: {"stream": [], "run": []} for kind in ("text", "ids")}
    with TemporaryDirectory() as folder:
        os.environ["MSD_CACHE"] = f"{folder}/cache"
        configs = {kind: _config(Path(folder) / kind, kind, arguments) for kind in rates}
        for number in range(arguments.repeats):
            for kind, config in configs.items():
                steps_per_s, samples_per_step = _streamed(config, arguments.steps)
                rates[kind]["stream"].append(steps_per_s * samples_per_step)
                written_per_s = _written(config, Path(folder) / f"out-{kind}-{number}", arguments)
                rates[kind]["run"].append(written_per_s * samples_per_step)
    report = {
        "bench": "run",
        "machine": describe(),
        "setting": {key: value for key, value in vars(arguments).items() if key != "json"},
        "samples_per_s": {
            kind: {way: {"median": statistics.median(runs), "runs": runs} for way, runs in found.items()}
            for kind, found in rates.items()
        },
        "ratio": {
            kind: statistics.median(run / stream for run, stream in zip(found["run"], found["stream"], strict=True))
            for kind, found in rates.items()
        },
    }
    print(json.dumps(report, indent=1) if arguments.json else _table(report))


def _config(folder: Path, kind: str, arguments: argparse.Namespace) -> msd.Config:
    """Write the rows of one kind, and return a run over them."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    words = np.array([f"w{number:x}" for number in range(5000)])
    for source in range(SOURCES):
        lengths = np.clip(draw.lognormal(np.log(MEAN_WORDS), 0.7, arguments.rows).astype(int), 8, 2 * LENGTH)
        if kind == "text":
            rows = pa.array([" ".join(words[draw.integers(0, len(words), length)]) for length in lengths])
        else:
            values = pa.array(draw.integers(1, 50_000, int(lengths.sum())).astype(np.int32))
            rows = pa.ListArray.from_arrays(
                pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)), values
            )
        pq.write_table(pa.table({kind: rows}), folder / f"s{source}.parquet", row_group_size=1000)
    tokenize = {"kind": "tokenize", "tokenizer": "bytes"}
    return msd.Config(
        sources={
            f"s{source}": {
                "format": "parquet",
                "path": str(folder / f"s{source}.parquet"),
                "transforms": [tokenize if kind == "text" else {"kind": "tokens", "field": "ids"}],
            }
            for source in range(SOURCES)
        },
        batch={"sequence_length": LENGTH, "global_batch_size": SEQUENCES},
        mesh={"dp": RANKS},
        num_microbatches=2,
        runtime={"kind": "dask", "workers": arguments.workers},
    )


def _streamed(config: msd.Config, steps: int) -> tuple[float, float]:
    """Return steps/s of ranks that do nothing but take, and samples of a step on the mean."""
    samples = 0
    with _cluster(config.runtime.workers) as cluster:
        began = time.monotonic()
        with msd.start(config.replace(runtime={"scheduler": cluster.address})) as engine:
            clients = [engine.client(rank) for rank in range(RANKS)]
            for _ in range(steps):
                samples += sum(len(next(client).sample_ids) for client in clients)
            took_s = time.monotonic() - began
    return steps / took_s, samples / steps


def _written(config: msd.Config, out: Path, arguments: argparse.Namespace) -> float:
    """Return steps/s of a run that writes packed sequences."""
    with _cluster(arguments.workers) as cluster:
        began = time.monotonic()
        asked = Asked(out=str(out), steps=arguments.steps, workers=arguments.workers, scheduler=cluster.address)
        run_batch(config, asked, lambda at: None)
        took_s = time.monotonic() - began
    return arguments.steps / took_s


@contextlib.contextmanager
def _cluster(workers: int) -> Iterator[EmbeddedCluster]:
    """Yield a cluster that is up: a process for the planner of a stream, and the workers."""
    with EmbeddedCluster(["msd-control", *(f"msd-loader-{number}" for number in range(workers))]) as cluster:
        cluster.wait()
        yield cluster


def _table(report: dict[str, Any]) -> str:
    machine = report["machine"]
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}; {report['setting']}",
        f"{'samples/s':<12}{'stream':>12}{'msd run':>12}{'ratio':>8}",
    ]
    for kind, found in report["samples_per_s"].items():
        stream, run = (found[way]["median"] for way in ("stream", "run"))
        lines.append(f"{kind:<12}{stream:>12,.0f}{run:>12,.0f}{report['ratio'][kind]:>8.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

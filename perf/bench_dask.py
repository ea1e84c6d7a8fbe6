"""What a run on Dask costs of its own: memory, CPU, waits and throughput, beside plain PyTorch in the same run.

Rows are tokenised beforehand, so what is measured is reading, ordering, mixing, packing, assembling and carrying. Each
rank is a process that holds torch; the plain pattern (`plain.py`) has worker processes besides.

    python perf/bench_dask.py [--sources 8 300] [--ranks 8] [--steps 30] [--json]
    python perf/bench_dask.py --shared            8 ranks that need the same data, against 1

Memory is the proportional set size of every process of the run when all sources have been touched, less what the ranks
held before they connected: torch. CPU is that of all processes over the measured steps.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench_local import make_rows
from machine import describe
from tree import cpu_s, descendants, pss_mib

LENGTH = 4096
SEQUENCES = 8
"""Of each data-parallel rank and step."""
MICROBATCHES = 4
WARM_UP = 6
PACED_STEPS, STEP_S = 15, 0.1


def main() -> None:
    """Measure, print a table or JSON."""
    arguments = _arguments()
    if arguments.role:
        _ROLES[arguments.role](json.loads(arguments.task))
        return
    cases = _shared_cases(arguments) if arguments.shared else _cases(arguments)
    report = {"bench": "dask", "machine": describe(), "results": [_measured(case, arguments) for case in cases]}
    print(json.dumps(report, indent=1) if arguments.json else _table(report))


def _cases(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for sources in arguments.sources:
        for side in arguments.sides:
            yield {"side": side, "sources": sources, "ranks": arguments.ranks, "mesh": {"dp": arguments.ranks}}


def _shared_cases(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for ranks in (1, arguments.ranks):
        yield {"side": "msd", "sources": arguments.sources[0], "ranks": ranks, "mesh": {"dp": 1, "tp": ranks}}


def _measured(case: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        make_rows(Path(folder), case["sources"], arguments.rows, rows_per_group=arguments.rows_per_group)
        runs = []
        for repeat in range(arguments.repeats):
            # Indexes are built anew, so that the first batch pays for them.
            os.environ["MSD_CACHE"] = f"{folder}/cache{repeat}"
            runs.append(_run(case | {"folder": folder, "steps": arguments.steps, "workers": arguments.workers}))
    return case | {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def _run(task: dict[str, Any]) -> dict[str, float]:
    """Start every process, take the measured steps, and look at the whole tree."""
    children: list[_Child] = []

    def child(role: str, **more: Any) -> _Child:
        children.append(_Child(role, task | more))
        return children[-1]

    try:
        ranks = [child("rank", rank=rank) for rank in range(task["ranks"])]
        torch_mib = pss_mib([int(rank.read()["pid"]) for rank in ranks])
        began = time.monotonic()
        engine = child("engine") if task["side"] == "msd" else None
        address = engine.read()["address"] if engine else ""
        first = _ask_all(ranks, address)
        parts = {"engine": [engine.pid] if engine else [], "ranks": [rank.pid for rank in ranks]}
        parts["workers"] = [pid for one in children for pid in descendants(one.pid)]
        everyone = [pid for pids in parts.values() for pid in pids]
        spent_before, asked = cpu_s(everyone), time.monotonic()
        taken = _ask_all(ranks, "go")
        seconds = time.monotonic() - asked
        spent = cpu_s(everyone) - spent_before
        held = {name: pss_mib(pids) for name, pids in parts.items()}
        waits = [wait for rank in _ask_all(ranks, "pace") for wait in rank["waits"]]
        counts = engine.ask("stats") if engine else {}
    finally:
        for one in children:  # Ranks first: they would look for the run.
            one.end()
    shares = task["mesh"].get("tp", 1)
    samples, tokens = (sum(rank[key] for rank in taken) / shares for key in ("samples", "tokens"))
    return {
        "own_mib": sum(held.values()) - torch_mib,
        "engine_mib": held["engine"],
        "workers_mib": held["workers"],
        "ranks_mib": held["ranks"] - torch_mib,
        "torch_mib": torch_mib,
        "cpu_ms_per_sample": 1000 * spent / samples,
        "samples_per_s": samples / seconds,
        "tokens_per_s": tokens / seconds,
        "first_batch_s": max(rank["at"] for rank in first) - began,
        "wait_ms": 1000 * statistics.median(waits),
        "wait_ms_p95": 1000 * statistics.quantiles(waits, n=20)[-1],
        "processes": len(everyone),
        **counts,
    }


def _ask_all(children: list["_Child"], word: str) -> list[dict[str, Any]]:
    for one in children:
        one.write(word)
    return [one.read() for one in children]


class _Child:
    """This script in another role: JSON lines come from it, words go to it."""

    def __init__(self, role: str, task: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--role", role, "--task", json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            text=True,
        )
        self.pid = self._process.pid

    def read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the benchmark ended with {self._process.wait()}; see above")
        found: dict[str, Any] = json.loads(line)
        return found

    def write(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def ask(self, word: str) -> dict[str, Any]:
        self.write(word)
        return self.read()

    def end(self) -> None:
        self._process.communicate()


def _engine(task: dict[str, Any]) -> None:
    """Serve until standard input ends."""
    import msd

    names = [f"source_{source}" for source in range(task["sources"])]
    config = msd.Config(
        sources={
            name: {"format": "parquet", "path": f"{task['folder']}/{name}.parquet", "transforms": [{"kind": "tokens"}]}
            for name in names
        },
        mixture={"unit": "samples", "weights": {name: 1 + place % 3 for place, name in enumerate(names)}},
        batch={"sequence_length": LENGTH, "global_batch_size": SEQUENCES * task["mesh"]["dp"]},
        mesh=task["mesh"],
        num_microbatches=MICROBATCHES,
        runtime={"kind": "dask", "workers": task["workers"]},
    )
    with msd.start(config) as engine:
        _say({"address": engine.address})
        for _ in sys.stdin:
            sources = engine.stats()["sources"].values()
            keys = ("rows_examined", "rows_read", "block_reads", "rows_remade")
            _say({key: sum(source[key] for source in sources) for key in keys})


def _rank(task: dict[str, Any]) -> None:
    """Take steps as the benchmark says."""
    import torch

    import msd

    torch.set_num_threads(1)
    loader = msd.torch.DataLoader
    _say({"pid": os.getpid()})
    address = sys.stdin.readline()
    if not address:
        return  # The benchmark failed elsewhere.
    if task["side"] == "msd":
        take = _counting(iter(loader(address.strip(), rank=task["rank"])), _of_msd)
    else:
        take = _counting(_plain(task), _of_plain)
    take(1)
    at = time.monotonic()
    take(WARM_UP)
    _say({"at": at})
    if not sys.stdin.readline():
        return
    samples, tokens, _ = take(task["steps"])
    _say({"samples": samples, "tokens": tokens})
    sys.stdin.readline()
    _say({"waits": take(PACED_STEPS, STEP_S)[2]})
    sys.stdin.readline()
    os._exit(0)  # Torch's worker processes end with it.


def _plain(task: dict[str, Any]) -> Iterator[Any]:
    import numpy as np
    import plain

    paths = [Path(task["folder"]) / f"source_{source}.parquet" for source in range(task["sources"])]
    weights = np.array([1 + place % 3 for place in range(len(paths))], dtype=float)
    return plain.steps_of(plain.Mixture(paths, weights, task["rank"], task["ranks"], LENGTH), SEQUENCES, workers=2)


def _counting(batches: Iterator[Any], count: Callable[[Any], tuple[int, int]]) -> Any:
    def take(steps: int, pause_s: float = 0.0) -> tuple[int, int, list[float]]:
        samples = tokens = 0
        waits = []
        for _ in range(steps):
            time.sleep(pause_s)
            asked = time.perf_counter()
            found = count(next(batches))
            waits.append(time.perf_counter() - asked)
            samples, tokens = samples + found[0], tokens + found[1]
        return samples, tokens, waits

    return take


def _of_msd(batch: Any) -> tuple[int, int]:
    return len(batch.sample_ids), sum(int(row["cu_seqlens"][-1]) for row in batch.microbatches)


def _of_plain(batch: Any) -> tuple[int, int]:
    return sum(row["num_samples"] for row in batch), sum(int(row["cu_seqlens"][-1]) for row in batch)


def _say(facts: dict[str, Any]) -> None:
    print(json.dumps(facts), flush=True)


_ROLES = {"engine": _engine, "rank": _rank}
_ROWS = (
    ("memory of its own, MiB", "own_mib", "{:.0f}"),
    ("  engine and scheduler", "engine_mib", "{:.0f}"),
    ("  workers", "workers_mib", "{:.0f}"),
    ("  ranks above torch", "ranks_mib", "{:.0f}"),
    ("torch in the ranks, MiB", "torch_mib", "{:.0f}"),
    ("processes", "processes", "{:.0f}"),
    ("CPU per sample, ms", "cpu_ms_per_sample", "{:.3f}"),
    ("samples per s", "samples_per_s", "{:.0f}"),
    ("tokens per s, thousands", "tokens_per_s", "{:.0f}"),
    ("start to first batch, s", "first_batch_s", "{:.2f}"),
    ("wait at 0.1 s a step, ms", "wait_ms", "{:.1f}"),
    ("  95th percentile", "wait_ms_p95", "{:.1f}"),
    ("rows transformed", "rows_examined", "{:.0f}"),
    ("rows read", "rows_read", "{:.0f}"),
    ("row groups read", "block_reads", "{:.0f}"),
    ("rows made again", "rows_remade", "{:.0f}"),
)


def _table(report: dict[str, Any]) -> str:
    machine, results = report["machine"], report["results"]
    heads = [f"{result['side']} {result['sources']}s {result['ranks']}r" for result in results]
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}",
        f"{'':28}" + "".join(f"{head:>16}" for head in heads),
    ]
    for title, key, form in _ROWS:
        scale = 1000 if key == "tokens_per_s" else 1
        cells = (form.format(result[key] / scale) if key in result else "" for result in results)
        lines.append(f"{title:28}" + "".join(f"{cell:>16}" for cell in cells))
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=int, nargs="+", default=[8, 300])
    parser.add_argument("--sides", choices=("msd", "plain"), nargs="+", default=["msd", "plain"])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2, help="loader hosts")
    parser.add_argument("--rows", type=int, default=1200, help="rows a source")
    parser.add_argument("--rows-per-group", type=int, default=600, help="about 1 MB")
    parser.add_argument("--steps", type=int, default=30, help="measured steps, after a warm-up")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--shared", action="store_true", help="ranks that need the same data instead")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--role", choices=list(_ROLES), help=argparse.SUPPRESS)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

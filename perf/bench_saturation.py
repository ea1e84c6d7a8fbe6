"""How much of the machine's time goes into transforms when ranks wait for nothing but data.

Each row costs a known CPU time (hashing, which lets other threads run), so that the time in transforms is rows times
that cost. Ranks take steps as fast as they come: what is missing to 1 is everything else (reading, planning, packing,
carrying) and idle cores. The second setting gives one row in a thousand 200 times the cost.

    python perf/bench_saturation.py [--cost-ms 5] [--seconds 12] [--workers 2] [--json]
"""

import argparse
import hashlib
import json
import os
import statistics
import struct
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from machine import describe

import msd

LENGTH, SEQUENCES, MICROBATCHES, RANKS = 2048, 16, 4, 2
TOKENS_PER_ROW = 256
SHARE_OF_SLOW, TIMES_SLOWER = 1000, 200
SLICE = bytes(1 << 16)
COST_VARIABLE, LEDGER_VARIABLE = "MSD_BENCH_COST_MS", "MSD_BENCH_LEDGER"


_spent: dict[int, tuple[int, float]] = {}
"""Of each thread: the file it writes to, and the CPU time that went into its rows."""


def spend(sample: dict[str, Any]) -> dict[str, Any]:
    """Spend what the row says it costs, and note it; hashing lets go of the interpreter."""
    began = time.thread_time()
    until = began + sample["cost"] * float(os.environ[COST_VARIABLE]) / 1000
    while time.thread_time() < until:
        hashlib.sha256(SLICE).digest()
    thread = threading.get_ident()
    if thread not in _spent:
        path = Path(os.environ[LEDGER_VARIABLE]) / f"{os.getpid()}-{thread}"
        _spent[thread] = os.open(path, os.O_CREAT | os.O_WRONLY), 0.0
    ledger, spent_s = _spent[thread]
    spent_s += time.thread_time() - began
    _spent[thread] = ledger, spent_s
    os.pwrite(ledger, struct.pack("d", spent_s), 0)
    return sample


def main() -> None:
    """Measure both settings in turn, several times; print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cost-ms", type=float, default=5.0, help="CPU time of an ordinary row")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each measurement, after a warm-up")
    parser.add_argument("--workers", type=int, default=2, help="loader hosts")
    parser.add_argument("--sources", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ[COST_VARIABLE] = str(arguments.cost_ms)
    measured: dict[str, list[float]] = {"even": [], "one in 1,000 costs 200 times": []}
    with TemporaryDirectory() as folder:
        os.environ["MSD_CACHE"] = f"{folder}/cache"
        for name in measured:
            _make_rows(Path(folder) / name.partition(" ")[0], arguments.sources, slow=name != "even")
        for _ in range(arguments.repeats):
            for name, runs in measured.items():
                runs.append(_saturation(Path(folder) / name.partition(" ")[0], arguments))
    even, uneven = (statistics.median(runs) for runs in measured.values())
    report = {
        "bench": "saturation",
        "machine": describe(),
        "setting": {key: value for key, value in vars(arguments).items() if key != "json"},
        "saturation": {name: {"median": statistics.median(runs), "runs": runs} for name, runs in measured.items()},
        "lost": 1 - uneven / even,
    }
    print(json.dumps(report, indent=1) if arguments.json else _table(report))


def _make_rows(folder: Path, num_sources: int, *, slow: bool) -> None:
    folder.mkdir()
    draw = np.random.default_rng(0)
    for source in range(num_sources):
        cost = np.ones(20_000)
        if slow:
            cost[draw.random(len(cost)) < 1 / SHARE_OF_SLOW] = TIMES_SLOWER
        ids = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(len(cost) * TOKENS_PER_ROW, np.int32)), TOKENS_PER_ROW)
        pq.write_table(pa.table({"ids": ids, "cost": cost}), folder / f"s{source}.parquet", row_group_size=1000)


def _saturation(folder: Path, arguments: argparse.Namespace) -> float:
    """Return CPU in transforms over cores times seconds, between two looks at a run that is under way."""
    transforms = [spend, {"kind": "tokens", "field": "ids"}]
    config = msd.Config(
        sources={
            path.stem: {"format": "parquet", "path": str(path), "transforms": transforms}
            for path in sorted(folder.glob("*.parquet"))
        },
        batch={"sequence_length": LENGTH, "global_batch_size": SEQUENCES * RANKS},
        mesh={"dp": RANKS},
        num_microbatches=MICROBATCHES,
        cost={"backbone": {"kind": "tokens"}},
        runtime={"kind": "dask", "workers": arguments.workers},
    )
    cores = len(os.sched_getaffinity(0))
    with TemporaryDirectory() as ledger:
        os.environ[LEDGER_VARIABLE] = ledger
        with msd.start(config) as engine:
            clients = [engine.client(rank) for rank in range(RANKS)]
            until, looks = time.monotonic() + arguments.seconds / 3, []
            while len(looks) < 2:
                for client in clients:
                    next(client)
                if time.monotonic() > until:
                    looks.append((_spent_s(Path(ledger)), time.monotonic()))
                    until = time.monotonic() + arguments.seconds
    (before_s, since), (after_s, now) = looks
    return (after_s - before_s) / (cores * (now - since))


def _spent_s(ledger: Path) -> float:
    """Return the CPU time that transforms have spent so far, in every process."""
    return sum(struct.unpack("d", entry.read_bytes())[0] for entry in ledger.iterdir())


def _table(report: dict[str, Any]) -> str:
    machine = report["machine"]
    lines = [f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}; {report['setting']}"]
    for name, found in report["saturation"].items():
        runs = ", ".join(f"{run:.3f}" for run in found["runs"])
        lines.append(f"{name:<32}{found['median']:.3f}  ({runs})")
    return "\n".join([*lines, f"{'lost':<32}{report['lost']:.1%}"])


if __name__ == "__main__":
    main()

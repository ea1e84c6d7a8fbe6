"""What it takes to go on at step 1,000,000, how large a state is, and what saving costs.

Rows are tokenised beforehand and indexed before the first measurement: a run that goes on finds its index, and so does
the fresh start that it is compared with. The state of the far step is written by arithmetic (`msd.testing.far`).

    python perf/bench_resume.py [--sources 3 300] [--engines local dask] [--repeats 5] [--saving-steps 105] [--json]

Each start runs in a process of its own, in turn: `fresh`, `load` (`load_state_dict` on every rank) and `resume`
(`checkpoint: resume`). Times are medians; a ratio is the median of those of the rounds, whose starts lie side by side.
Time begins at `msd.start`, with all of msd imported, and ends when every rank has its first batch. CPU is that of all
processes of the run; on a machine with other work it says more than time does.

Saving is measured on a run that takes far steps with a pause between them, once without a checkpoint, once with one
`every: 1`, once `every: 100`; costs are told by step, over a step of 1 s. Waits that are compared with the target are
medians: the mean is shown beside them, and says on a machine with other work what that did. `one save` is a snapshot of
that state by itself; a thread writes it, and whoever plans the step is held up only while it is told to. The exit
status is 1 when a target was missed.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_local import make_rows
from machine import describe
from tree import cpu_s, descendants

FAR = 1_000_000
RANKS = 2
LENGTH = 4096
SEQUENCES = 8
"""Of each rank and step."""
WARM_UP = 5
PAUSE_S = 0.2
ALONE = 50
STARTS = ("fresh", "load", "resume")
EVERY = (None, 1, 100)

MAX_OVER_FRESH = 1.2
MAX_BYTES, MAX_BYTES_PER_SOURCE = 4096, 64
MAX_SAVING_MS = 10.0
"""1 % of a step of 1 s."""


def main() -> int:
    """Measure every engine over every number of sources, print a table or JSON, and say whether targets were met."""
    arguments = _arguments()
    if arguments.role:
        print(json.dumps(_ROLES[arguments.role](json.loads(arguments.task))))
        return 0
    results = [found for sources in arguments.sources for found in _measured(sources, arguments)]
    settings = {key: getattr(arguments, key) for key in ("repeats", "saving_steps", "rows")}
    settings |= {"ranks": RANKS, "sequences": SEQUENCES, "sequence_length": LENGTH, "pause_s": PAUSE_S, "step": FAR}
    report = {"bench": "resume", "machine": describe(), "settings": settings, "results": results}
    report["missed"] = [missed for result in results for missed in _missed(result)]
    print(json.dumps(report, indent=1) if arguments.json else _table(report))
    return 1 if report["missed"] else 0


def _measured(sources: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    results = []
    with tempfile.TemporaryDirectory() as folder:
        make_rows(Path(folder), sources, arguments.rows, rows_per_group=arguments.rows_per_group)
        os.environ["MSD_CACHE"] = f"{folder}/cache"
        task = {"folder": folder, "sources": sources, "steps": arguments.saving_steps}
        sizes = _run("prepare", task)
        for engine in arguments.engines:
            of_engine = task | {"engine": engine}
            load = os.getloadavg()[0]
            result = {"engine": engine, "sources": sources, "load_average": load, **sizes}
            results.append(result | _starts(of_engine, arguments.repeats) | _saving(of_engine))
    return results


def _starts(task: dict[str, Any], repeats: int) -> dict[str, Any]:
    _run("first", task | {"start": "fresh"})  # Files are in the page cache for all.
    runs: dict[str, list[dict[str, float]]] = {start: [] for start in STARTS}
    for repeat in range(repeats):
        # Whoever comes first in a round is not always the same.
        for start in (*STARTS[repeat % 3 :], *STARTS[: repeat % 3]):
            runs[start].append(_run("first", task | {"start": start}))
    found: dict[str, Any] = {}
    for start, results in runs.items():
        for key in ("start_s", "first_batch_s", "first_batch_cpu_s"):
            found[f"{start}_{key}"] = statistics.median(result[key] for result in results)
        found[f"{start}_spread_s"] = [f(result["first_batch_s"] for result in results) for f in (min, max)]
    for start in STARTS[1:]:
        for name, key in (("over_fresh", "first_batch_s"), ("cpu_over_fresh", "first_batch_cpu_s")):
            rounds = zip(runs[start], runs["fresh"], strict=True)
            found[f"{start}_{name}"] = statistics.median(one[key] / fresh[key] for one, fresh in rounds)
    return found


def _saving(task: dict[str, Any]) -> dict[str, Any]:
    runs = {every: _run("saving", task | {"every": every}) for every in EVERY}
    found: dict[str, Any] = {f"{key}_none": value for key, value in runs[None].items()}
    for every in EVERY[1:]:
        for key in ("wait_ms", "wait_ms_median", "cpu_ms"):
            found[f"{key}_every_{every}"] = runs[every][key] - runs[None][key]
        found[f"wait_ms_most_every_{every}"] = runs[every]["wait_ms_most"]
        found[f"last_saved_every_{every}"] = runs[every]["last_saved"]
    return found


def _prepare(task: dict[str, Any]) -> dict[str, float]:
    """Index the sources, write the far state to a file and to a checkpoint, and save it by itself a few times."""
    from msd.checkpoint import open_store
    from msd.runtime.checkpointing import CheckpointWriter
    from msd.runtime.state import read_state
    from msd.testing.far import far_state

    folder = Path(task["folder"])
    state = far_state(_config(task | {"engine": "local"}), FAR)
    text = json.dumps(state)
    (folder / "state.json").write_text(text, encoding="utf-8")
    saved = open_store(str(folder / "far")).save(state, step=FAR, run="far", lineage="far")
    parts = read_state(state)
    writer = CheckpointWriter(open_store(str(folder / "alone")), run="far", every=1, identity=parts.identity)
    wall, cpu, held = [], [], []
    for step in range(FAR, FAR + ALONE):
        began, spent = time.perf_counter(), time.process_time()
        writer.save({**parts.progress, "step": step})
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - spent)
    for step in range(FAR + ALONE, FAR + 2 * ALONE):
        began = time.perf_counter()
        writer.note(step, lambda step: {**parts.progress, "step": step})
        held.append(time.perf_counter() - began)
        writer.flush()
    writer.close()
    return {
        "state_bytes": len(text),
        "max_state_bytes": MAX_BYTES + MAX_BYTES_PER_SOURCE * task["sources"],
        "snapshot_bytes": saved.size,
        "one_save_ms": 1000 * statistics.median(wall),
        "one_save_cpu_ms": 1000 * statistics.median(cpu),
        "held_us": 1e6 * statistics.median(held),
        "held_most_us": 1e6 * max(held),
    }


def _first(task: dict[str, Any]) -> dict[str, float]:
    """Start a run as asked, and wait until every rank has its first batch."""
    import msd
    import msd.runtime.dask.engine  # Imports are no part of a start.
    import msd.runtime.local

    start, folder = task["start"], Path(task["folder"])
    state = json.loads((folder / "state.json").read_text(encoding="utf-8")) if start == "load" else None
    with tempfile.TemporaryDirectory() as place:
        changes: dict[str, Any] = {}
        if start == "resume":
            shutil.copytree(folder / "far", f"{place}/store")
            changes = {"checkpoint": {"path": f"{place}/store", "resume": "must"}}
        config = _config(task, **changes)
        began, spent = time.perf_counter(), _spent_s()
        with msd.start(config) as engine:
            started = time.perf_counter()
            clients = [engine.client(rank) for rank in range(RANKS)]
            for client in clients:
                if state is not None:
                    client.load_state_dict(state)
            steps = {next(client).step for client in clients}
            ended, spent = time.perf_counter(), _spent_s() - spent
    if steps != {0 if start == "fresh" else FAR}:
        raise RuntimeError(f"{start}: the first batches were of steps {steps}")
    return {"start_s": started - began, "first_batch_s": ended - began, "first_batch_cpu_s": spent}


def _saves(task: dict[str, Any]) -> dict[str, float]:
    """Take far steps with a pause before each, and tell what they cost."""
    import msd

    state = json.loads((Path(task["folder"]) / "state.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as place:
        checkpoint = None if task["every"] is None else {"path": f"{place}/store", "every": task["every"]}
        with msd.start(_config(task, checkpoint=checkpoint)) as engine:
            clients = [engine.client(rank) for rank in range(RANKS)]
            for client in clients:
                client.load_state_dict(state)
            waits = []
            for step in range(WARM_UP + task["steps"]):
                if step == WARM_UP:
                    spent = _spent_s()
                time.sleep(PAUSE_S)
                asked = time.perf_counter()
                for client in clients:
                    next(client)
                waits.append(1000 * (time.perf_counter() - asked))
            cpu_ms = 1000 * (_spent_s() - spent) / task["steps"]
            time.sleep(PAUSE_S)
            kept = engine.stats()["checkpoint"]
    due = None if kept is None else (FAR + len(waits) - 1) // task["every"] * task["every"]
    if kept is not None and (kept["failures"] or kept["step"] < due - 2):
        raise RuntimeError(f"every {task['every']}: step {due} should be saved, and it is {kept}")
    measured = waits[WARM_UP:]
    return {
        "wait_ms": statistics.mean(measured),
        "wait_ms_median": statistics.median(measured),
        "wait_ms_most": max(measured),
        "cpu_ms": cpu_ms,
        "last_saved": 0 if kept is None else kept["step"],
    }


def _spent_s() -> float:
    """Return the processor time of this process and all that it started."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime + cpu_s(descendants(os.getpid()))


def _config(task: dict[str, Any], **changes: Any) -> Any:
    import msd

    names = [f"source_{source}" for source in range(task["sources"])]
    return msd.Config(
        sources={
            name: {"format": "parquet", "path": f"{task['folder']}/{name}.parquet", "transforms": [{"kind": "tokens"}]}
            for name in names
        },
        mixture={"unit": "samples", "weights": {name: 1 + place % 3 for place, name in enumerate(names)}},
        batch={"sequence_length": LENGTH, "global_batch_size": SEQUENCES * RANKS},
        mesh={"dp": RANKS},
        num_microbatches=4,
        runtime={"kind": task["engine"], "workers": 2},
        **changes,
    )


def _run(role: str, task: dict[str, Any]) -> dict[str, float]:
    command = [sys.executable, __file__, "--role", role, "--task", json.dumps(task)]
    # What it says of resuming is expected; what it says when it fails is shown.
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"{role} of {task} ended with {run.returncode}:\n{run.stderr}")
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def _missed(result: dict[str, Any]) -> list[str]:
    checks = [(f"{start} over fresh", result[f"{start}_over_fresh"], MAX_OVER_FRESH) for start in STARTS[1:]]
    checks.append(("bytes of the state", result["state_bytes"], result["max_state_bytes"]))
    for every in EVERY[1:]:
        checks += [(f"{key}, every {every}", result[f"{key}_every_{every}"], MAX_SAVING_MS) for key in _SAVING]
    case = f"{result['engine']}, {result['sources']} sources"
    return [f"{case}: {what} is {found:.4g}, over {most:g}" for what, found, most in checks if found > most]


_SAVING = ("wait_ms_median", "cpu_ms")
_ROWS = (
    ("start to first batch, s", "fresh_first_batch_s", "{:.2f}"),
    ("  load_state_dict at 10^6", "load_first_batch_s", "{:.2f}"),
    ("  checkpoint: resume at 10^6", "resume_first_batch_s", "{:.2f}"),
    ("load over fresh", "load_over_fresh", "{:.2f}"),
    ("resume over fresh", "resume_over_fresh", "{:.2f}"),
    ("CPU of all until then, s", "fresh_first_batch_cpu_s", "{:.2f}"),
    ("  load over fresh", "load_cpu_over_fresh", "{:.2f}"),
    ("  resume over fresh", "resume_cpu_over_fresh", "{:.2f}"),
    ("until start returns, s", "fresh_start_s", "{:.2f}"),
    ("  checkpoint: resume", "resume_start_s", "{:.2f}"),
    ("state, bytes", "state_bytes", "{:,.0f}"),
    ("  may be", "max_state_bytes", "{:,.0f}"),
    ("  file of a snapshot, bytes", "snapshot_bytes", "{:,.0f}"),
    ("one save by itself, ms", "one_save_ms", "{:.1f}"),
    ("  CPU, ms", "one_save_cpu_ms", "{:.1f}"),
    ("  a step is held up by, µs", "held_us", "{:.0f}"),
    ("  at most, µs", "held_most_us", "{:.0f}"),
    ("without saving: CPU a step, ms", "cpu_ms_none", "{:.1f}"),
    ("  ranks wait a step, ms", "wait_ms_none", "{:.1f}"),
    ("  longest wait, ms", "wait_ms_most_none", "{:.1f}"),
    ("every 1: CPU added a step, ms", "cpu_ms_every_1", "{:+.1f}"),
    ("  wait added, mean, ms", "wait_ms_every_1", "{:+.1f}"),
    ("  wait added, median, ms", "wait_ms_median_every_1", "{:+.1f}"),
    ("  longest wait, ms", "wait_ms_most_every_1", "{:.1f}"),
    ("every 100: CPU added a step, ms", "cpu_ms_every_100", "{:+.1f}"),
    ("  wait added, mean, ms", "wait_ms_every_100", "{:+.1f}"),
    ("  wait added, median, ms", "wait_ms_median_every_100", "{:+.1f}"),
    ("  longest wait, ms", "wait_ms_most_every_100", "{:.1f}"),
    ("load average before", "load_average", "{:.2f}"),
)


def _table(report: dict[str, Any]) -> str:
    machine, results = report["machine"], report["results"]
    heads = [f"{result['engine']} {result['sources']}s" for result in results]
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}; {report['settings']}",
        f"{'':34}" + "".join(f"{head:>14}" for head in heads),
    ]
    for title, key, form in _ROWS:
        lines.append(f"{title:34}" + "".join(f"{form.format(result[key]):>14}" for result in results))
    return "\n".join([*lines, *(f"MISSED {missed}" for missed in report["missed"])])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=int, nargs="+", default=[3, 300])
    parser.add_argument("--engines", choices=("local", "dask"), nargs="+", default=["local", "dask"])
    parser.add_argument("--repeats", type=int, default=5, help="of each start")
    parser.add_argument("--saving-steps", type=int, default=105, help="measured steps of each saving run")
    parser.add_argument("--rows", type=int, default=1200, help="rows a source")
    parser.add_argument("--rows-per-group", type=int, default=600, help="about 1 MB")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--role", choices=list(_ROLES), help=argparse.SUPPRESS)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    return parser.parse_args()


_ROLES = {"prepare": _prepare, "first": _first, "saving": _saves}


if __name__ == "__main__":
    sys.exit(main())

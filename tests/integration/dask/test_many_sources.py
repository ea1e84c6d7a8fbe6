"""Hundreds of sources cost files, threads and memory by process, not by source; run with `-s` to see the numbers."""

import contextlib
import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from processes import descendants

import msd
from msd.runtime.dask.engine import DaskEngine
from msd.testing import scenarios

pytestmark = pytest.mark.cluster


class Cost(NamedTuple):
    files: int
    threads: int
    pss_mib: float


def cost_of(pid: int) -> Cost:
    threads = Path(f"/proc/{pid}/status").read_text().partition("Threads:")[2].split()[0]
    pss_kib = Path(f"/proc/{pid}/smaps_rollup").read_text().partition("\nPss:")[2].split()[0]
    return Cost(len(os.listdir(f"/proc/{pid}/fd")), int(threads), int(pss_kib) / 1024)


def tiny_sources(folder: Path, count: int) -> msd.Config:
    sources = {}
    for number in range(count):
        path = folder / f"s{number:04d}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in scenarios.token_rows(number, 6, 12, longest=40)))
        sources[path.stem] = {"path": str(path), "transforms": [{"kind": "tokens", "field": "ids"}]}
    return msd.Config(
        sources=sources,
        batch={"sequence_length": 512, "global_batch_size": 8},
        mesh={"dp": 2},
        num_microbatches=2,
        runtime={"kind": "dask", "workers": 2, "deadline_s": 60},
    )


def is_worker(pid: int) -> bool:
    return b"dask_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()


def run_steps(config: msd.Config, steps: int) -> tuple[dict[str, Cost], float, float]:
    """Return what each process costs after some steps, and the seconds to start and to run them."""
    before = descendants(os.getpid())
    began = time.monotonic()
    with msd.start(config) as engine:
        assert isinstance(engine, DaskEngine)
        clients = [engine.client(rank) for rank in range(2)]
        drawn = {sample_id[0] for client in clients for sample_id in next(client).sample_ids}
        started_s = time.monotonic() - began
        for _ in range(steps - 1):
            drawn |= {sample_id[0] for client in clients for sample_id in next(client).sample_ids}
        ran_s = time.monotonic() - began - started_s
        loading = {host["pid"]: host["host"] for host in engine.stats()["hosts"]}
        workers = {pid for pid in descendants(os.getpid()) - before if is_worker(pid)}
        costs = {loading.get(pid, "control"): cost_of(pid) for pid in sorted(workers)}
    assert drawn == set(config.sources), "every source was drawn from"
    for name, cost in sorted(costs.items()):
        print(f"{name:14} files {cost.files:4}  threads {cost.threads:3}  PSS {cost.pss_mib:6.1f} MiB")
    print(f"first batch after {started_s:.1f} s, {steps - 1} more steps in {ran_s:.1f} s")
    return costs, started_s, ran_s


@contextlib.contextmanager
def few_files(count: int) -> Iterator[None]:
    """Have processes that are started meanwhile begin with a low limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_three_hundred_sources_cost_three_processes(tmp_path):
    """Answers GR-1."""
    with few_files(128):
        costs, _, _ = run_steps(tiny_sources(tmp_path, 300), 10)
    assert max(cost.files for cost in costs.values()) > 128, "more files than the workers began with"
    assert sorted(costs) == ["control", "msd-loader-0", "msd-loader-1"]
    for name, cost in costs.items():
        assert cost.files < 300, name
        assert cost.threads < 40, name
        assert cost.pss_mib < 200, name


@pytest.mark.slow
def test_a_thousand_sources_start(tmp_path):
    costs, started_s, _ = run_steps(tiny_sources(tmp_path, 1000), 20)
    assert started_s < 60
    assert max(cost.pss_mib for cost in costs.values()) < 300
    assert max(cost.files for cost in costs.values()) < 600

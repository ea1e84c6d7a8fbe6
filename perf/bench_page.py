"""What the page of a run costs the scheduler: CPU of its process, with figures coming in and with the page open.

    python perf/bench_page.py [--sources 300] [--ranks 64] [--seconds 30] [--json]

A Dask scheduler in a process of its own; figures as a run of so many sources and ranks reports them every two seconds;
the page held open by a client that takes every update, as a browser does. CPU is what the scheduler's process used over
what passed.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from machine import describe

_TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.append(str(_TESTS / "unit/runtime"))

from test_watching import stats as made_up  # noqa: E402

from msd.runtime.dask.plugin import RunPlugin  # noqa: E402
from msd.runtime.dask.watching.feed import INTERVAL_S  # noqa: E402

RANKS_OF_CONSTRUCTOR = 8
_VIEWER = """
import sys, time
from bokeh.client import pull_session
session = pull_session(url=sys.argv[1])
print("open", flush=True)
while True:
    session.force_roundtrip()
    time.sleep(0.5)
"""
MUST = 0.03
"""Of a core, at 300 sources."""


def main() -> None:
    """Measure in turn, and print a table or JSON."""
    parser = argparse.ArgumentParser(description="What the page of a run costs the scheduler.")
    parser.add_argument("--sources", type=int, default=300)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    shares = asyncio.run(_measured(arguments.sources, arguments.ranks, arguments.seconds))
    report = {"bench": "page", "machine": describe(), **vars(arguments), "cpu_share": shares}
    if arguments.json:
        print(json.dumps(report, indent=1))
        return
    print(f"{describe()['cpu']}, {describe()['cores']} cores; {arguments.sources} sources, {arguments.ranks} ranks")
    for name, share in shares.items():
        print(f"{name:24s} {share:6.2%} of a core")
    page = shares["the page is open"] - shares["nothing"]
    print(f"figures and page together {page:.2%} (must {MUST:.0%})")


async def _measured(sources: int, ranks: int, seconds: float) -> dict[str, float]:
    from distributed import Client

    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "scheduler.json"
        command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
        command += ["--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(found)]
        scheduler = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not found.exists():
                await asyncio.sleep(0.1)
            async with Client(scheduler_file=str(found), asynchronous=True) as client:
                await client.register_plugin(RunPlugin())
                shares = {"nothing": await _share(scheduler.pid, seconds)}
                feeding = asyncio.create_task(_feed(client, sources, ranks))
                shares["figures come in"] = await _share(scheduler.pid, seconds)
                with _watched(client.dashboard_link.replace("/status", "/msd")):
                    shares["the page is open"] = await _share(scheduler.pid, seconds)
                feeding.cancel()
            return shares
        finally:
            scheduler.terminate()
            scheduler.wait()


async def _feed(client: Any, sources: int, ranks: int) -> None:
    """Report as a run does."""
    step = 60
    while True:
        groups = [list(range(first, first + RANKS_OF_CONSTRUCTOR)) for first in range(0, ranks, RANKS_OF_CONSTRUCTOR)]
        constructors = [
            {"constructor": f"constructor-{number}", "pid": 100 + number, "pss_bytes": 90 << 20, "connected": group,
             "ranks": group, "assemble_s": 0.02 * step, "held_bytes": 1 << 20}
            for number, group in enumerate(groups)
        ]  # fmt: skip
        await client.scheduler.msd_report(
            run="bench", stats=made_up(step, num_sources=sources, constructors=constructors), at_s=time.time()
        )
        step += 2
        await asyncio.sleep(INTERVAL_S)


@contextlib.contextmanager
def _watched(url: str) -> Iterator[None]:
    """Hold a page open in a process of its own, which takes every update."""
    viewer = subprocess.Popen([sys.executable, "-c", _VIEWER, url], stdout=subprocess.PIPE)
    try:
        assert viewer.stdout is not None
        assert viewer.stdout.readline().strip() == b"open", "the page did not open"
        yield
    finally:
        viewer.terminate()
        viewer.wait()


async def _share(pid: int, seconds: float) -> float:
    """Return the part of a core that a process uses."""
    await asyncio.sleep(2.0)
    began_s, used_s = time.monotonic(), _cpu_s(pid)
    await asyncio.sleep(seconds)
    return (_cpu_s(pid) - used_s) / (time.monotonic() - began_s)


def _cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()

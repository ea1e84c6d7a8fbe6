"""Dividing workers by cost, and following a mixture that moves: what it brings, and whether it comes as predicted.

    python perf/bench_scaling.py divide      workers by cost against the same number for each source, live
    python perf/bench_scaling.py curriculum  text to images over 100 steps, with scaling and without
    python perf/bench_scaling.py decide      seconds that the decisions take at 306 sources and 4,096 ranks
    python perf/bench_scaling.py             all of it

Transforms wait as well as compute: two cores that are busy anyway do as much work whoever has them, so that with
transforms that only compute any division that keeps both busy gives the same rate. Divisions are measured in turn,
several times, in one run; figures are medians.
"""

import argparse
import hashlib
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from machine import describe

import msd
from msd.coordinator.staff import PLANNER
from msd.core.allocation import Allocation
from msd.core.demand import HostBudget, RowCost, SourceDemand
from msd.profiling.demands import demands_of
from msd.runtime.dask.autoscaler import seats_to_wire
from msd.scaling.autoscale import decide
from msd.scaling.baselines import uniform
from msd.scaling.config import ScalingConfig
from msd.scaling.need import memory_of
from msd.scaling.partition import partition_sources, sustained
from msd.scaling.reading import HostReading, Reading, ScalerMemory, SourceReading
from msd.simulator import SimulatedSource, simulate_scaling

SLICE = bytes(1 << 14)
WORKERS = 12
SECONDS = 10.0
BUDGET_BYTES = 1 << 30


def spend(wait_s: float, cpu_s: float) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a transform that waits and computes; hashing lets go of the interpreter's lock."""

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        time.sleep(wait_s)
        until = time.thread_time() + cpu_s
        while time.thread_time() < until:
            hashlib.sha256(SLICE).digest()
        return sample

    return transform


COSTS = {"text": (0.0, 0.0001), "pages": (0.005, 0.0005), "photos": (0.0, 0.003), "clips": (0.04, 0.002)}
"""Seconds a row: waiting, computing."""


def config_of(weights: dict[str, float], costs: dict[str, tuple[float, float]], **settings: Any) -> msd.Config:
    """Return a run over sources in memory, all of whose rows are as long."""
    draw = random.Random(1)
    sources = {
        name: {
            "rows": [{"ids": [draw.randrange(1000) for _ in range(64)]} for _ in range(4000)],
            "transforms": [spend(*costs[name]), {"kind": "tokens", "field": "ids"}],
            "transform_in": "threads",
        }
        for name in weights
    }
    return msd.Config(**{
        "sources": sources,
        "mixture": {"weights": weights, "unit": "samples"},
        "batch": {"sequence_length": 1024, "global_batch_size": 8},
        "mesh": {"dp": 2},
        "runtime": {"kind": "dask", "workers": 1},
        **settings,
    })  # fmt: skip


# Workers by cost against the same number for each.


def divide(repeats: int, seconds: float) -> dict[str, Any]:
    """Return samples/s of both divisions, measured in turn, with what each was predicted to sustain."""
    from msd.cli.profile import profiled

    config = config_of(dict.fromkeys(COSTS, 1.0), COSTS)
    with msd.start(config) as engine:
        supervised: Any = engine
        clients = [engine.client(rank) for rank in range(2)]
        profile, problems, _ = profiled(config, seconds=12.0)
        assert not problems, problems
        demands = demands_of(config, supervised.orders, profile)
        (host,) = engine.stats()["hosts"]
        budget = HostBudget(host=host["host"], cpus=2.0, memory_bytes=BUDGET_BYTES, most_workers=WORKERS)
        by_cost = _with_all(partition_sources(demands, [budget], rate=None, headroom=1.0).allocation, demands, budget)
        divisions = {"for each the same": uniform(demands, [budget], WORKERS), "by cost": by_cost}
        found: dict[str, Any] = {
            name: {
                "workers": {source: seating.workers for source, seating in allocation.items()},
                "predicted": sustained(allocation, demands, [budget]),
                "runs": [],
            }
            for name, allocation in divisions.items()
        }
        found["by cost"]["memory_predicted"] = profile.process_bytes + sum(
            memory_of(one, by_cost[one.source].workers or 1) for one in demands
        )
        for _ in range(repeats):
            for name, allocation in divisions.items():
                supervised._loop.run(supervised._supervised.ask(PLANNER, "seat", seats_to_wire(allocation)))
                _rate(clients, seconds / 3)
                found[name]["runs"].append(_rate(clients, seconds))
                found[name]["memory_pss"] = engine.stats()["hosts"][0]["pss_bytes"]
    for one in found.values():
        one["measured"] = statistics.median(one["runs"])
    return {"divisions": found, "ratio": found["by cost"]["measured"] / found["for each the same"]["measured"]}


def _with_all(allocation: Allocation, demands: list[SourceDemand], budget: HostBudget) -> Allocation:
    """Return the division for as many workers as the other one has: more where that lifts what is sustained."""
    workers = {source: seating.workers or 1 for source, seating in allocation.items()}
    while sum(workers.values()) < WORKERS:
        need = {one.source: one.share * one.rows_per_sample * one.cost.prepare_s for one in demands}
        workers[min(workers, key=lambda name: workers[name] / need[name])] += 1
    seat = {source: seating.seats[0] for source, seating in allocation.items()}
    return {source: type(allocation[source])((type(seat[source])(seat[source].partition, budget.host, count),))
            for source, count in workers.items()}  # fmt: skip


def _rate(clients: list[Any], seconds: float) -> float:
    """Return samples/s over all ranks while they take steps as fast as they come."""
    began, samples = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        samples += sum(len(next(client).sample_ids) for client in clients)
    return samples / (time.monotonic() - began)


# A mixture that moves.


def curriculum(steps: int) -> dict[str, Any]:
    """Return how long ranks waited for steps, with scaling and without, and whether bytes were the same."""
    costs = {"text": (0.0, 0.0001), "images": (0.03, 0.001)}
    schedule = [{"step": 50, "ramp": 100, "weights": {"text": 0.1, "images": 0.9}}]
    mixture = {"weights": {"text": 0.9, "images": 0.1}, "schedule": schedule, "unit": "samples"}
    step_s = 0.25
    scaling = {"interval_s": 0.5, "lookahead_s": 10.0, "cool_down_s": 5.0, "up_after": 2}
    # What the mixture at the start needs.
    start = {"text": 1, "images": 2}
    found: dict[str, Any] = {"step_s": step_s}
    digests = {}
    for name, settings in {"fixed": None, "scaled": scaling}.items():
        config = config_of({"text": 1.0, "images": 1.0}, costs, mixture=mixture, scaling=settings)
        waits, seats = [], []
        with msd.start(config) as engine:
            supervised: Any = engine
            clients = [engine.client(rank) for rank in range(2)]
            host = engine.stats()["hosts"][0]["host"]
            allocation = _seated(start, host)
            supervised._loop.run(supervised._supervised.ask(PLANNER, "seat", seats_to_wire(allocation)))
            digest = hashlib.sha256()
            for _ in range(steps):
                began = time.monotonic()
                for client in clients:
                    batch = next(client)
                    digest.update(repr(batch.sample_ids).encode())
                    for microbatch in batch.microbatches:
                        digest.update(microbatch.input_ids.tobytes())
                waits.append(time.monotonic() - began)
                time.sleep(max(0.0, step_s - waits[-1]))
                if len(waits) % 10 == 0:
                    seats.append({one["source"]: one["workers"] for one in engine.stats()["seats"]})
        digests[name] = digest.hexdigest()
        parts = {"before": waits[5:50], "while it moves": waits[50:150], "after": waits[150:]}
        found[name] = {
            "longest_wait_s": {part: max(some) for part, some in parts.items()},
            "waited_s": {part: sum(some) for part, some in parts.items()},
            "workers": seats[-1],
        }
    found["is_same"] = len(set(digests.values())) == 1
    return found


def _seated(workers: dict[str, int], host: str) -> Allocation:
    from msd.core.allocation import Seat, Seating

    return {source: Seating((Seat(0, host, count),)) for source, count in workers.items()}


# Deciding.


def decisions() -> dict[str, Any]:
    """Return seconds that sizing and a look take at the largest size, and what a simulated curriculum comes to."""
    draw = random.Random(1)
    demands = []
    for number in range(306):
        prepare_s = 10 ** draw.uniform(-4, -0.5)
        cost = RowCost(
            prepare_s=prepare_s, cpu_s=prepare_s * draw.uniform(0.3, 1.0), transfer_s=0.0, payload_bytes=10_000.0
        )
        demands.append(
            SourceDemand(
                source=f"s{number}", share=1 / 306, rows_per_sample=1.0, cost=cost, loader_bytes=16 << 20,
                most_loaders=50,
            )
        )  # fmt: skip
    hosts = [HostBudget(host=f"h{number}", cpus=16.0, memory_bytes=64 << 30, most_workers=96) for number in range(512)]
    found: dict[str, Any] = {"sources": len(demands), "hosts": len(hosts), "ranks": 8 * len(hosts)}
    sized, found["size_s"] = _timed(lambda: partition_sources(demands, hosts, rate=20_000.0))
    _, found["size_highest_s"] = _timed(lambda: partition_sources(demands, hosts, rate=None))
    readings = {budget.host: HostReading(budget=budget, memory_bytes=0) for budget in hosts}

    def look(rate: float) -> Reading:
        sources = {
            one.source: SourceReading(seating=sized.allocation[one.source], now=one, ahead=one, occupancy=0.5)
            for one in demands
        }
        return Reading(now_s=0.0, rate=rate, sources=sources, hosts=readings)

    memory, _ = decide(ScalerMemory(), look(20_000.0), ScalingConfig())
    _, found["look_s"] = _timed(lambda: decide(memory, look(60_000.0), ScalingConfig(up_after=1)))
    sources = [
        SimulatedSource(name="text", share=lambda s: max(0.1, 0.9 - s / 100), row_s=lambda row: 0.001),
        SimulatedSource(name="images", share=lambda s: min(0.9, 0.1 + s / 100), row_s=lambda row: 0.04),
    ]
    budgets = [HostBudget(host="a", cpus=8, memory_bytes=8 << 30)]
    found["simulated_waited"] = {
        "scaled": simulate_scaling(sources, budgets, rate=150, seconds=200, settings=ScalingConfig()).waited,
        "fixed": simulate_scaling(sources, budgets, rate=150, seconds=200, settings=None).waited,
    }
    return found


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    took = []
    for _ in range(3):
        began = time.perf_counter()
        result = work()
        took.append(time.perf_counter() - began)
    return result, statistics.median(took)


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.0f} MiB"


def main() -> None:
    """Measure what was asked for; print a table, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="*", default=[], metavar="divide | curriculum | decide")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each measurement")
    parser.add_argument("--steps", type=int, default=250, help="of the curriculum")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    what = arguments.what or ["divide", "curriculum", "decide"]
    report: dict[str, Any] = {"bench": "scaling", "machine": describe(), "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["MSD_CACHE"] = scratch
        if "divide" in what:
            report["divide"] = divide(arguments.repeats, arguments.seconds)
        if "curriculum" in what:
            report["curriculum"] = curriculum(arguments.steps)
        if "decide" in what:
            report["decide"] = decisions()
    print(json.dumps(report, indent=1) if arguments.json else _table(report))


def _table(report: dict[str, Any]) -> str:
    machine = report["machine"]
    lines = [f"{machine['cpu']}, {machine['cores']} cores, load before {report['load']:.2f}"]
    if divided := report.get("divide"):
        lines += ["", f"{'division':<20}{'workers':<48}{'predicted':>10}{'measured':>10}{'off':>7}  runs"]
        for name, one in divided["divisions"].items():
            workers = ", ".join(f"{source} {count}" for source, count in one["workers"].items())
            runs = ", ".join(f"{run:.0f}" for run in one["runs"])
            off = one["measured"] / one["predicted"] - 1
            lines.append(f"{name:<20}{workers:<48}{one['predicted']:>10.0f}{one['measured']:>10.0f}{off:>7.1%}  {runs}")
        by_cost = divided["divisions"]["by cost"]
        lines.append(
            f"by cost over the same for each: {divided['ratio']:.2f}; memory of the host {_mib(by_cost['memory_pss'])} "
            f"(PSS), predicted {_mib(by_cost['memory_predicted'])}, budget {_mib(BUDGET_BYTES)}"
        )
    if moved := report.get("curriculum"):
        lines += ["", f"curriculum, a step takes {moved['step_s']} s; waits: longest (sum) in s"]
        for name in ("fixed", "scaled"):
            one = moved[name]
            parts = ", ".join(
                f"{part} {one['longest_wait_s'][part]:.2f} ({one['waited_s'][part]:.1f})"
                for part in one["longest_wait_s"]
            )
            lines.append(f"{name:<10}{parts}; workers at the end {one['workers']}")
        lines.append(f"bytes the same: {moved['is_same']}")
    if decided := report.get("decide"):
        lines += ["", *(f"{key}: {value}" for key, value in decided.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""What faults cost: random runs on real processes, gaps by role and fault, useful time, and what shadows buy.

    python perf/bench_faults.py --runs 200 --seed 1     the soak: bytes of all ranks against the undisturbed run
    python perf/bench_faults.py --minutes 10            one fault a minute: useful time over total, longest stall
    python perf/bench_faults.py --ettr 60               a loader host killed every few seconds, with 0, 1, 2 shadows

Every run is `msd serve` with workers in processes of their own, two ranks, and faults drawn from its seed: SIGKILL,
SIGSTOP for good or for a while, SIGTERM, singly and in pairs, of every role (`tests/faults/fault_run.py` deals them). A
run of which a byte differs, or of which a process or a file stays, is told with its seed; `--only SEED` repeats it.
With `--log FILE` every run is a line of JSON there, with its faults, the load before it and, if it failed, what every
program wrote last. A seed that is there already is not run again: a soak that was cut off goes on. Without `--runs` and
`--only` the table is that of the file.

A gap is the longest that a rank waited for one step between a fault and the next. A rank works `PACE_S` a step.
"""

import argparse
import contextlib
import json
import logging
import math
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import describe

_TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path += [str(_TESTS / "faults"), str(_TESTS / "integration/dask")]

from fault_data import SILENCE_S, cast_of, undisturbed, write_config  # noqa: E402
from fault_outcome import Outcome, Struck  # noqa: E402
from fault_run import faulty, standing_cluster  # noqa: E402
from fault_schedule import Cast, Fault, drawn  # noqa: E402

PACE_S = 0.04
FIRST, LAST, STEPS, APART = 10, 100, 130, 22
TARGETS = {"loader, shadow": 2.0, "loader": 5.0, "planner": 3.0, "control": 3.0, "scheduler": 15.0, "serve": 15.0}
"""Seconds that a gap of this role may take when it is killed."""


@dataclass(frozen=True)
class Shape:
    """How a run is laid out, and who takes part."""

    name: str
    cast: Cast
    settings: tuple[str, ...] = ()
    is_standing: bool = False
    are_ranks_struck: bool = False

    @property
    def has_shadow(self) -> bool:
        """Whether a shadow stands by."""
        return any(setting.startswith("shadows=") for setting in self.settings)


_STANDING = ("msd-control", "msd-loader-0", "msd-loader-1")
SHAPES = (
    Shape("compact", cast_of()),
    Shape("shadow", cast_of(shadows=1), ("shadows=1",)),
    Shape("apart", cast_of(compact=False, shadows=1), ("runtime.compact=false", "shadows=1")),
    Shape("ranks", Cast(cast_of().workers, ("serve", "rank-0", "rank-1"), (1.0, 2 * SILENCE_S)), (), False, True),
    Shape("standing", Cast((), ("scheduler", *_STANDING), (1.0, 2 * SILENCE_S)), (), True),
)


@dataclass
class Soak:
    """What the random runs came to."""

    runs: int = 0
    faults: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    loads: list[float] = field(default_factory=list)
    gaps_s: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    useful: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    def add(self, run: dict[str, Any]) -> None:
        """Count a run, as `run_of` or a log tells it."""
        self.runs += 1
        if "load" in run:
            self.loads.append(run["load"])
        if run["failed"]:
            self.failed[run["seed"]] = run["failed"]
            return
        self.faults += len(run["gaps"])
        self.waits_s.append(run["longest_s"])
        self.useful.append(run["useful"])
        for role, how, gap_s in run["gaps"]:
            self.gaps_s[role, how].append(gap_s)


def run_of(seed: int, shape: Shape, outcome: Outcome) -> dict[str, Any]:
    """Return what a run that went as it should came to, as a line of the log."""
    at_once = [struck.fault.at_step for struck in outcome.struck]
    pairs = {step for step in at_once if at_once.count(step) > 1}
    gaps = [
        (*(("pairs", "of any") if struck.fault.at_step in pairs else key_of(shape, struck)), struck.gap_s)
        for struck in outcome.struck
    ]
    return {
        "seed": seed,
        "shape": shape.name,
        "failed": "",
        "gaps": gaps,
        "useful": (STEPS - 1) * PACE_S / outcome.took_s,
        "longest_s": max(outcome.waits_s),
    }


def main() -> None:
    """Measure, print a table or JSON."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # What was started is ended then, too.
    logging.getLogger("msd").setLevel(logging.ERROR)  # Ranks of this process tell of every reconnection.
    report: dict[str, Any] = {"bench": "faults", "machine": describe(), "load": os.getloadavg()[0], "pace_s": PACE_S}
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="mf-") as folder:
        os.environ["MSD_CACHE"] = f"{folder}/cache"
        config = write_config(Path(folder) / "data")
        if arguments.minutes:
            report["one a minute"] = _one_a_minute(config, arguments.minutes, arguments.seed)
        if arguments.ettr:
            report["ettr"] = [_ettr(config, shadows, arguments) for shadows in (0, 1, 2)]
        known = _logged(arguments.log)
        seeds = arguments.only or range(arguments.seed, arguments.seed + arguments.runs) or known
        soak = _soaked(config, seeds, known, arguments.shapes, arguments.log)
        report["soak"] = _told(soak)
    print(json.dumps(report, indent=1) if arguments.json else _tables(report))
    sys.exit(bool(soak.failed))


def _logged(log: Path | None) -> dict[int, dict[str, Any]]:
    """Return the runs of a log by seed; a last line that was cut off does not count."""
    runs: dict[int, dict[str, Any]] = {}
    for line in log.read_text().splitlines() if log is not None and log.exists() else ():
        with contextlib.suppress(ValueError):
            run = json.loads(line)
            runs[run["seed"]] = run
    return runs


def _soaked(
    config: Path, seeds: Iterable[int], known: dict[int, dict[str, Any]], names: Sequence[str], log: Path | None
) -> Soak:
    soak = Soak()
    shapes = [shape for shape in SHAPES if shape.name in names]
    expected = undisturbed(config, STEPS) if set(seeds) - set(known) else {}
    for seed in seeds:
        if seed in known:
            soak.add(known[seed])
            continue
        shape = random.Random(seed).choice(shapes)
        faults = drawn(seed, shape.cast, first=FIRST, last=LAST, apart=APART)
        began, load = time.monotonic(), os.getloadavg()[0]
        try:
            outcome = _run(config, shape, faults)
            outcome.check(expected)
            run = run_of(seed, shape, outcome)
            said = "waits " + ", ".join(f"{struck.gap_s:.2f}" for struck in outcome.struck)
        except Exception as error:
            notes = "\n".join(getattr(error, "__notes__", []))
            failed = f"{shape.name}: {type(error).__name__}: {error}"
            run = {"seed": seed, "shape": shape.name, "failed": failed, "last_words": notes}
            said = f"FAILED {error}\n{notes}"
        dealt = ", ".join(map(str, faults))
        run |= {"load": load, "faults": dealt}
        soak.add(run)
        if log is not None:
            with log.open("a") as out:
                out.write(json.dumps(run) + "\n")
        print(
            f"seed {seed} {shape.name} ({time.monotonic() - began:.0f} s): {dealt}: {said}", file=sys.stderr, flush=True
        )
    return soak


def _run(config: Path, shape: Shape, faults: Sequence[Fault], *, steps: int = STEPS, timeout_s: float = 300) -> Outcome:
    """Return what came of a run. Ranks have a deadline for each step: the time is that of a busy machine."""
    with (
        tempfile.TemporaryDirectory(dir="/tmp", prefix="mf-") as folder,
        faulty(Path(folder), config, settings=shape.settings) as run,
    ):
        if shape.is_standing:
            run.serve.command += ("--scheduler", standing_cluster(run, _STANDING))
        run.begin(2, steps, pace_s=PACE_S, as_programs=shape.are_ranks_struck)
        return run.go_through(faults, timeout_s=timeout_s)


def key_of(shape: Shape, struck: Struck) -> tuple[str, str]:
    """Return role and fault as the table names them."""
    fault = struck.fault
    role = re.sub(r"^msd-|-\d+$", "", fault.target)
    if role == "loader" and shape.has_shadow:
        role = "loader, shadow"
    how = fault.how if fault.how != "pause" else f"pause {fault.back_after_s:g} s"
    return role, how


def _one_a_minute(config: Path, minutes: int, seed: int) -> dict[str, Any]:
    """Deal one fault a minute; return useful time over total, and the longest stall."""
    shape, draw = SHAPES[2], random.Random(seed)
    targets = (*shape.cast.workers, *shape.cast.others)
    per_minute = int(60 / PACE_S)
    chosen = [draw.choice(targets) for _ in range(minutes)]
    faults = [
        Fault(per_minute // 2 + number * per_minute, target, draw.choice(shape.cast.hows(target)), 2 * SILENCE_S)
        for number, target in enumerate(chosen)
    ]
    steps = minutes * per_minute
    outcome = _run(config, shape, faults, steps=steps, timeout_s=90 * minutes)
    return {
        "minutes": minutes,
        "faults": [f"{struck.fault}: {struck.gap_s:.2f} s" for struck in outcome.struck],
        "useful": (steps - 1) * PACE_S / outcome.took_s,
        "longest_stall_s": max(outcome.waits_s),
        "left": outcome.left,
    }


def _ettr(config: Path, shadows: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Kill loader hosts in turn, one every few seconds; return the share of time in which ranks trained."""
    names = [f"msd-loader-{number}" for number in range(2 + shadows)]
    steps, every = int(arguments.ettr / PACE_S), int(arguments.every / PACE_S)
    faults = [
        Fault(step, names[number % len(names)], "kill")
        for number, step in enumerate(range(every, steps - every, every))
    ]
    shape = Shape("ettr", cast_of(shadows=shadows), (f"shadows={shadows}",))
    outcome = _run(config, shape, faults, steps=steps, timeout_s=10 * arguments.ettr)
    gaps = [struck.gap_s for struck in outcome.struck]
    return {
        "shadows": shadows,
        "kills": len(faults),
        "every_s": arguments.every,
        "ettr": (steps - 1) * PACE_S / outcome.took_s,
        "median_gap_s": statistics.median(gaps),
        "worst_gap_s": max(gaps),
    }


def _told(soak: Soak) -> dict[str, Any]:
    gaps = [
        {
            "role": role,
            "fault": how,
            "count": len(found),
            "median_s": statistics.median(found),
            "p90_s": sorted(found)[math.ceil(0.9 * len(found)) - 1],
            "worst_s": max(found),
            "target_s": TARGETS.get(role) if how == "kill" else None,
        }
        for (role, how), found in sorted(soak.gaps_s.items())
    ]
    return {
        "runs": soak.runs,
        "faults": soak.faults,
        "failed": {str(seed): reason for seed, reason in soak.failed.items()},
        "gaps": gaps,
        "loads": [min(soak.loads), statistics.median(soak.loads), max(soak.loads)] if soak.loads else None,
        "useful": statistics.mean(soak.useful) if soak.useful else None,
        "longest_stall_s": max(soak.waits_s, default=None),
    }


def _tables(report: dict[str, Any]) -> str:
    lines = [f"load before: {report['load']:.1f}; a step takes {report['pace_s']:g} s of a rank's work", ""]
    if minute := report.get("one a minute"):
        lines += [
            f"one fault a minute for {minute['minutes']} minutes: useful {minute['useful']:.3f}, "
            f"longest stall {minute['longest_stall_s']:.2f} s",
            *(f"  {fault}" for fault in minute["faults"]),
            "",
        ]
    if ettr := report.get("ettr"):
        lines += ["| shadows | kills of loader hosts | one every, s | ETTR | median gap, s | worst |", "|---" * 6 + "|"]
        lines += [
            f"| {one['shadows']} | {one['kills']} | {one['every_s']:g} | {one['ettr']:.3f} | "
            f"{one['median_gap_s']:.2f} | {one['worst_gap_s']:.2f} |"
            for one in ettr
        ] + [""]
    soak = report["soak"]
    if soak["runs"]:
        lines += ["| role | fault | count | median gap, s | 90 % | worst | target |", "|---" * 7 + "|"]
        lines += [
            f"| {one['role']} | {one['fault']} | {one['count']} | {one['median_s']:.2f} | {one['p90_s']:.2f} | "
            f"{one['worst_s']:.2f} | {one['target_s'] or ''} |"
            for one in soak["gaps"]
        ]
        lines += ["", f"{soak['runs']} runs, {soak['faults']} faults, {len(soak['failed'])} runs failed"]
        if loads := soak["loads"]:
            lines.append(f"load before a run: {loads[0]:.1f} to {loads[2]:.1f}, median {loads[1]:.1f}")
        lines += [f"  seed {seed}: {reason[:300]}" for seed, reason in soak["failed"].items()]
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What faults cost.")
    parser.add_argument("--runs", type=int, default=0, help="random runs")
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the others count up")
    parser.add_argument("--only", type=int, nargs="+", metavar="SEED", help="repeat these runs")
    names = [shape.name for shape in SHAPES]
    parser.add_argument("--shapes", nargs="+", choices=names, default=names, help="how runs are laid out")
    parser.add_argument("--minutes", type=int, default=0, help="of a run with one fault a minute")
    parser.add_argument("--ettr", type=float, default=0, metavar="SECONDS", help="of each of three runs")
    parser.add_argument("--every", type=float, default=8.0, metavar="SECONDS", help="between kills of --ettr")
    parser.add_argument("--log", type=Path, metavar="FILE", help="lines of JSON, one a run; those there are kept")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Does the simulator predict? Predicted and measured step-time ratios of data-parallel training on two processes.

    python perf/bench_simulator.py [--repeats 5] [--json]

Two processes of one thread train a small causal transformer with DDP over gloo, document by document, without padding.
First the cost of a document is timed and fitted as a + b s + c s^2 (`cost: {kind: fitted}`), and the synchronisation of
gradients. Then steps of several laws of lengths, numbers of microbatches and ways to meet are run as `dealt` and as
planned, in turn; the ratio of their median times is compared with the ratio predicted from plans alone. Laws of equal
lengths have nothing to gain. The exit status is 1 when fewer than 12 settings, or not all of them, are within 10 %.

Needs two idle cores. On a busy machine look at `CPU`, the same ratio from the CPU time of each microbatch, and let
`--judge cpu` fit and decide.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from machine import describe
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import msd
from msd.core.plan import StepPlan
from msd.cost.analytic import build_cost
from msd.cost.config import FittedCost
from msd.simulator import Trainer
from msd.simulator.assign import Assignment, Grid, dealt, from_plan
from msd.simulator.step_time import Speeds, step_time
from msd.simulator.work import canonical_order, work_of

RANKS, LENGTH, HIDDEN, HEADS, LAYERS, VOCAB = 2, 2048, 128, 4, 3, 512
TOLERANCE, LEAST_SETTINGS = 0.10, 12
CALIBRATED = (16, 48, 96, 192, 384, 768, 1280, 2048)

LAWS = {
    "equal": ([512, 0.0], 1.0),
    "mild": ([400, 0.5], 1.0),
    "heavy": ([150, 1.3], 1.0),
    "few long": ([60, 0.4], 0.4),
}
"""Median and sigma of lengths, and their share of the tokens; the rest are documents of a whole sequence."""

Rows = list[list[int]]
"""Lengths of the documents of each microbatch of one rank."""


@dataclass(frozen=True)
class Setting:
    """One comparison."""

    law: str
    num_microbatches: int
    sync: str
    step: int


@dataclass(frozen=True)
class Fit:
    """What was timed: seconds of a document, forward and backward, and of a synchronisation of gradients."""

    constant: float
    linear: float
    quadratic: float
    sync_s: float


class Layer(nn.Module):
    """Attention and MLP, pre-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)])
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.GELU(), nn.Linear(4 * HIDDEN, HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the next hidden states [1, s, hidden]."""
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norms[0](x)).chunk(3, -1))
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class Decoder(nn.Module):
    """A causal language model that sees one document at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, VOCAB)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))

    def forward(self, lengths: Sequence[int]) -> torch.Tensor:
        """Return the summed loss of documents of these lengths."""
        losses = []
        for length in lengths:
            ids = (torch.arange(length) % VOCAB)[None]
            losses.append(cross_entropy(self.head(self.layers(self.embed(ids))).flatten(0, 1), ids[0], reduction="sum"))
        return torch.stack(losses).sum()


def main() -> int:
    """Calibrate, measure, predict, and say whether all settings are within the tolerance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="of each step, in turn")
    parser.add_argument("--judge", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    settings = [
        Setting(law, microbatches, sync, step)
        for step, (law, microbatches, sync) in enumerate(
            (law, microbatches, sync) for law in LAWS for microbatches in (2, 6) for sync in ("step", "microbatch")
        )
    ]
    made = [_assigned(setting) for setting in settings]
    jobs = [(rows, setting.sync) for setting, (_, _, pair) in zip(settings, made, strict=True) for rows in pair]
    fit, measured = _run(jobs, arguments.repeats, arguments.judge)
    results = []
    for number, (setting, (plan, assignments, _)) in enumerate(zip(settings, made, strict=True)):
        predicted = [_predicted(plan, one, fit, setting.sync) for one in assignments]
        wall = [measured[2 * number + side]["wall"] for side in (0, 1)]
        cpu = [measured[2 * number + side]["cpu"] for side in (0, 1)]
        results.append(_result(setting, predicted, wall, cpu, arguments.judge))
    met = len(results) >= LEAST_SETTINGS and all(result["met"] for result in results)
    if arguments.json:
        print(json.dumps({"machine": describe(), "fit": vars(fit), "results": results, "met": met}))
    else:
        _print(results, fit, arguments.judge)
    return 0 if met else 1


def _assigned(setting: Setting) -> tuple[StepPlan, list[Assignment], list[list[Rows]]]:
    """Return a step's plan, `dealt` and planned, and the lengths of both by rank and microbatch."""
    (median, sigma), share = LAWS[setting.law]
    blank = [{"kind": "function", "function": "msd.testing.synthetic:blank"}]
    laws = {"short": [median, sigma]} | ({"whole": [LENGTH, 0.0]} if share < 1 else {})
    config = msd.Config(
        seed=17 + setting.step,
        sources={
            name: {
                "format": "msd.testing.synthetic:HeavyTailed",
                "options": {"name": f"{setting.law} {name}", "text": text, "max_tokens": LENGTH},
                "transforms": blank,
            }
            for name, text in laws.items()
        },
        mixture={"weights": {"short": share} | ({"whole": 1 - share} if share < 1 else {})},
        batch={"sequence_length": LENGTH, "global_batch_size": RANKS * setting.num_microbatches},
        mesh={"dp": RANKS},
        num_microbatches=setting.num_microbatches,
        cost={"backbone": {"kind": "transformer", "hidden": HIDDEN, "layers": LAYERS, "vocab": VOCAB}},
    )
    (plan,) = msd.plan(config, steps=1)
    grid, work = Grid.of(plan), work_of(plan, {"backbone": _LengthCost()})
    assignments = [dealt(work, grid), from_plan("planned", plan)]
    length_D = plan.length_D[canonical_order(plan)]
    rows = [
        [
            [length_D[(one.bucket_D == rank) & (one.slot_D == slot)].tolist() for slot in range(grid.num_microbatches)]
            for rank in range(RANKS)
        ]
        for one in assignments
    ]
    return plan, assignments, rows


class _LengthCost:
    """Cost by length, where only the order of the documents is asked."""

    is_flops, flops_per_s = False, None

    def __call__(self, num_tokens_D: Any, num_patches_D: Any) -> Any:
        return num_tokens_D * 1.0


def _predicted(plan: StepPlan, assignment: Assignment, fit: Fit, sync: str) -> float:
    """Return the seconds that the simulator gives a step."""
    cost = build_cost(FittedCost(constant=fit.constant, linear=fit.linear, quadratic=fit.quadratic), str)
    work, grid = work_of(plan, {"backbone": cost}), Grid.of(plan)
    num_syncs = grid.num_microbatches if sync == "microbatch" else 1
    trainer = Trainer(sync=sync, pads=False, step_overhead_s=num_syncs * fit.sync_s)  # type: ignore[arg-type]
    return step_time(work, assignment, grid, trainer, Speeds(1.0, 1.0))[0].step_s


def _result(
    setting: Setting, predicted: Sequence[float], wall: Sequence[float], cpu: Sequence[float], judge: str
) -> dict[str, Any]:
    ratio, found, by_cpu = (pair[0] / pair[1] for pair in (predicted, wall, cpu))
    judged = found if judge == "wall" else by_cpu
    return {
        "law": setting.law,
        "microbatches": setting.num_microbatches,
        "meet": setting.sync,
        "predicted_s": list(predicted),
        "wall_s": list(wall),
        "predicted": ratio,
        "wall": found,
        "cpu": by_cpu,
        "error": ratio / judged - 1,
        "met": abs(ratio / judged - 1) <= TOLERANCE,
    }


def _run(jobs: Sequence[tuple[list[Rows], str]], repeats: int, judge: str) -> tuple[Fit, list[dict[str, float]]]:
    """Time documents and steps on two processes; return the fit and the medians of each job."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (folder, jobs, repeats), nprocs=RANKS, join=True)
        found = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(RANKS)]
    documents = np.array([rank["documents"] for rank in found])[..., ("wall", "cpu").index(judge)]
    fit = Fit(*_fitted(np.array(CALIBRATED), np.median(documents, axis=(0, 1))), statistics.median(found[0]["syncs"]))
    medians = []
    for job, (_, sync) in enumerate(jobs):
        wall = np.median([[step[job]["wall"] for step in rank["steps"]] for rank in found], axis=1).max()
        cpu_RM = np.median([[step[job]["cpu"] for step in rank["steps"]] for rank in found], axis=1)
        # What the ranks would wait for if each had a core to itself.
        cpu = cpu_RM.max(axis=0).sum() if sync == "microbatch" else cpu_RM.sum(axis=1).max()
        medians.append({"wall": float(wall), "cpu": float(cpu)})
    return fit, medians


def _fitted(length_N: np.ndarray, seconds_N: np.ndarray) -> list[float]:
    """Return the polynomial with coefficients of at least 0 that is nearest in relative terms."""
    from itertools import combinations

    terms = np.stack([np.ones(len(length_N)), length_N, length_N.astype(float) ** 2], axis=1) / seconds_N[:, None]
    best, chosen = np.inf, [0.0, 0.0, 0.0]
    for count in (1, 2, 3):
        for places in combinations(range(3), count):
            solved, *_ = np.linalg.lstsq(terms[:, places], np.ones(len(length_N)), rcond=None)
            error = float(np.square(terms[:, places] @ solved - 1).sum())
            if (solved >= 0).all() and error < best:
                best, chosen = error, [0.0, 0.0, 0.0]
                for place, value in zip(places, solved.tolist(), strict=True):
                    chosen[place] = value
    return chosen


def _rank(rank: int, folder: str, jobs: Sequence[tuple[list[Rows], str]], repeats: int) -> None:
    """Measure on one process; both do the same at the same time, as in training."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = DistributedDataParallel(Decoder())
    for _ in range(2):
        model([LENGTH, 64]).backward()
    documents = [[_timed_documents(model, length) for length in CALIBRATED] for _ in range(repeats)]
    syncs = [seconds for _ in range(4) for seconds in _timed_syncs(model)]
    steps = [[_timed_step(model, rows[rank], sync) for rows, sync in jobs] for _ in range(repeats)]
    Path(folder, f"{rank}.json").write_text(json.dumps({"documents": documents, "syncs": syncs, "steps": steps}))
    dist.destroy_process_group()


def _timed_documents(model: DistributedDataParallel, length: int) -> tuple[float, float]:
    """Return wall and CPU seconds of one document, forward and backward, in a microbatch of several."""
    count = max(2, 1024 // length)
    dist.barrier()
    begun, spent = time.perf_counter(), time.process_time()
    _pass(model, [length] * count, is_synced=False)
    return (time.perf_counter() - begun) / count, (time.process_time() - spent) / count


def _timed_syncs(model: DistributedDataParallel) -> Iterator[float]:
    """Yield what a backward pass takes longer when gradients are synchronised."""
    for _ in range(4):
        alone, together = ([], [])
        for seconds, is_synced in ((alone, False), (together, True)):
            dist.barrier()
            begun = time.perf_counter()
            _pass(model, [64], is_synced=is_synced)
            seconds.append(time.perf_counter() - begun)
        yield max(0.0, together[0] - alone[0])


def _timed_step(model: DistributedDataParallel, rows: Rows, sync: str) -> dict[str, Any]:
    """Return wall seconds of one step of a rank, and the CPU seconds of each microbatch."""
    dist.barrier()
    begun, spent = time.perf_counter(), [time.process_time()]
    for number, lengths in enumerate(rows):
        _pass(model, lengths, is_synced=sync == "microbatch" or number == len(rows) - 1)
        spent.append(time.process_time())
    wall = time.perf_counter() - begun
    model.zero_grad(set_to_none=False)
    return {"wall": wall, "cpu": np.diff(spent).tolist()}


def _pass(model: DistributedDataParallel, lengths: Sequence[int], *, is_synced: bool) -> None:
    if is_synced:
        model(lengths).backward()
        return
    with model.no_sync():
        model(lengths).backward()


def _print(results: Sequence[dict[str, Any]], fit: Fit, judge: str) -> None:
    machine = describe()
    print(f"{machine['cpu']}, {machine['cores']} cores, torch {machine['versions'].get('torch')}")
    print(
        f"a document of length s takes {1e3 * fit.constant:.3f} ms + {1e6 * fit.linear:.3f} us s + "
        f"{1e9 * fit.quadratic:.3f} ns s^2; a synchronisation {1e3 * fit.sync_s:.2f} ms"
    )
    print("step time as dealt over step time as planned:")
    head = f"{'lengths':10}{'microbatches':>13}{'ranks meet':>12}{'predicted':>11}{'wall':>8}{'CPU':>8}{'error':>8}"
    print(f"{head}  within")
    for result in results:
        meet = "each step" if result["meet"] == "step" else "every row"
        figures = f"{result['predicted']:11.3f}{result['wall']:8.3f}{result['cpu']:8.3f}{result['error']:8.1%}"
        print(f"{result['law']:10}{result['microbatches']:13}{meet:>12}{figures}  {'yes' if result['met'] else 'NO'}")
    inside = sum(result["met"] for result in results)
    print(f"{inside} of {len(results)} settings within {TOLERANCE:.0%} by {judge} time")


if __name__ == "__main__":
    sys.exit(main())

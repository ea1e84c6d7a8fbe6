"""Fill, balance and the cap together, in one run: nothing is traded off unseen.

    python perf/bench_fill.py [--steps 20] [--json]

Plans over 8 data-parallel ranks, with no batch assembled, for the demo corpus and for made-up documents of log-normal
length up to 16,384 tokens, in every packing. The exit status is 1 when a target was missed.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

import msd
from msd.testing.corpus import make_corpus

RANKS = 8
LONGEST = 16_384
MAX_OVER_FLOOR = 0.02
MIN_FILL = {"best_fit": 0.995, "first_fit_decreasing": 0.995, "concat": 1.0, "none": 0.0}
MIN_FILL_WITH_IMAGES = 0.99
"""Of concat, which cuts no run of image placeholders."""


class LogNormalRows:
    """Documents whose lengths are log-normal with a heavy tail, cut at `longest`; the tokens are zeros."""

    def __init__(self, count: int, longest: int, seed: int) -> None:
        """Draw the lengths."""
        draw = np.random.default_rng(seed)
        self.length_S = np.clip(draw.lognormal(6.8, 1.2, count), 16, longest).astype(np.int64)

    def __len__(self) -> int:
        return len(self.length_S)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"ids": np.zeros(self.length_S[row], dtype=np.int32)}


def main() -> int:
    """Plan every case, print a table or JSON, and say whether every target was met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_corpus(Path(folder) / "corpus")
        corpus = msd.load_config(Path(folder) / "corpus" / "corpus.yaml").replace(
            mesh={"dp": RANKS}, num_microbatches=2, batch={"global_batch_size": 64, "sequence_length": 2048}
        )
        cases = {
            "demo corpus": corpus.replace(cost={"backbone": corpus.cost["backbone"]}),
            "demo, two modules": corpus,
            "log-normal to 16k": _synthetic(),
        }
        results = [
            measure(name, config.replace(batch={"packing": {"method": method}}), method, arguments.steps)
            for name, config in cases.items()
            for method in MIN_FILL
        ]
    if arguments.json:
        print(
            json.dumps({"bench": "fill", "machine": describe(), "steps": arguments.steps, "results": results}, indent=1)
        )
    else:
        print(_table(results))
    return 0 if all(result["is_met"] for result in results) else 1


def measure(case: str, config: msd.Config, method: str, steps: int) -> dict[str, Any]:
    """Plan `steps` steps and return means, the worst step, and whether every target was met."""
    plans = list(msd.plan(config, steps=steps))
    if not plans:
        raise SystemExit(f"{case}: no step could be planned")
    reports = [plan.report for plan in plans]
    mean = {field: float(np.mean([getattr(report, field) for report in reports])) for field in _FIELDS}
    over = [max(0.0, report.imbalance - report.imbalance_floor) for report in reports]
    tallest = max(_tallest_sequence(plan) for plan in plans)
    has_images = any(plan.num_images_D.any() for plan in plans)
    fill = min(report.fill for report in reports)
    is_filled = mean["fill"] >= (MIN_FILL_WITH_IMAGES if has_images and method == "concat" else MIN_FILL[method])
    return {
        "case": case, "packing": method, "steps": len(plans), **mean, "worst_fill": fill,
        "worst_over_floor": max(over), "mean_over_floor": float(np.mean(over)),
        "tallest_sequence": tallest, "cap": config.batch.sequence_length,
        "is_met": bool(
            is_filled and tallest <= config.batch.sequence_length
            and (method in ("concat", "none") or np.mean(over) <= MAX_OVER_FLOOR)
        ),
    }  # fmt: skip


_FIELDS = (
    "fill", "imbalance", "imbalance_floor", "packed_imbalance", "lockstep", "lockstep_floor", "packed_lockstep",
)  # fmt: skip


def _tallest_sequence(plan: msd.StepPlan) -> int:
    sequence_D = plan.offset_D // plan.sequence_length
    place_D = (plan.bucket_D * plan.num_microbatches + plan.slot_D) * plan.sequences_per_microbatch + sequence_D
    return int(np.bincount(place_D, weights=plan.padded_D).max())


def _synthetic() -> msd.Config:
    return msd.Config(
        sources={
            "long": {
                "cls": LogNormalRows,
                "options": {"count": 20_000, "longest": LONGEST, "seed": 17},
                "transforms": [{"kind": "tokens"}],
            }
        },
        batch={"sequence_length": LONGEST, "global_batch_size": 64},
        mesh={"dp": RANKS},
        num_microbatches=4,
    )


def _table(results: list[dict[str, Any]]) -> str:
    machine = describe()
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}; {RANKS} ranks",
        f"{'case':20}{'packing':22}{'fill':>8}{'imbalance':>11}{'floor':>8}{'packed':>8}"
        f"{'lockstep':>10}{'floor':>8}{'packed':>8}{'cap':>8}{'met':>6}",
    ]
    for result in results:
        cap = "kept" if result["tallest_sequence"] <= result["cap"] else "BROKEN"
        lines.append(
            f"{result['case']:20}{result['packing']:22}{result['fill']:8.4f}{result['imbalance']:11.4f}"
            f"{result['imbalance_floor']:8.4f}{result['packed_imbalance']:8.4f}{result['lockstep']:10.4f}"
            f"{result['lockstep_floor']:8.4f}{result['packed_lockstep']:8.4f}"
            f"{cap:>8}{'yes' if result['is_met'] else 'NO':>6}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

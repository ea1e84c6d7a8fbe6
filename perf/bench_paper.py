"""The gains that the paper reports, predicted: balance of a 12B backbone with a 2B image encoder on 576 ranks and more.

    python perf/bench_paper.py [--steps 4] [--part contexts|models|sensitivity|best|all] [--json]
    python perf/bench_paper.py --part contexts --set sources.documents.options.text=[1000,1.0] --trainer sync=microbatch

Plans are real, from `configs/coyo700m.yaml` (laws of lengths and image sizes stated there); seconds are those of the
simulator (`docs/explanation/simulator.md`), whose assumptions are printed. `hybrid` has all ranks encode images,
`joint` balances both modules at once, `backbone` one of them; `tokens` (Karmarkar-Karp) and `length_groups` are good
baselines.
Everything is over `dealt`, the unbalanced assignment. The exit status is 1 when a target was missed.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from machine import describe

import msd
from msd.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs" / "coyo700m.yaml"
TRAINER = {"encoder": "every_rank", "embedding_bytes": 9216, "flops_per_s": 2e14}
"""An embedding has 4,608 values of 2 bytes."""
RATIOS = (3.2, 6.9)
"""Between which the paper measured the costliest microbatch over the mean."""
NAMES = ("length_groups", "tokens", "packed", "backbone", "joint", "hybrid")


@dataclass(frozen=True)
class Case:
    """One setting, and the least gains that are asked of it."""

    name: str
    overrides: tuple[str, ...] = ()
    trainer: Mapping[str, Any] = field(default_factory=dict)
    least: Mapping[str, float] = field(default_factory=dict)
    """By assignment: times faster than `dealt`."""
    has_ratio: bool = False
    """The unbalanced FLOP ratio must lie between `RATIOS`."""


def sizes(length: int, microbatches: int, dp: int = 8) -> tuple[str, ...]:
    """Return overrides for sequences of one length, one a microbatch."""
    return (
        f"batch.sequence_length={length}",
        f"num_microbatches={microbatches}",
        f"batch.global_batch_size={dp * microbatches}",
        f"mesh.dp={dp}",
    )


CONTEXTS = [
    Case("4k", sizes(4096, 48), least={"hybrid": 1.71}, has_ratio=True),
    Case("8k", sizes(8192, 24), least={"hybrid": 2.63}, has_ratio=True),
    Case("16k", sizes(16384, 12), least={"hybrid": 3.09}, has_ratio=True),
]
"""The same tokens a step. The paper's own case, at least 2.34, is the one of 8k."""

BEST = [
    Case("8k, experts", sizes(8192, 24), {"sync": "microbatch"}, {"hybrid": 4.5}),
    Case("8k, 8 microbatches", sizes(8192, 8)),
    Case("8k, dp=32", sizes(8192, 24, dp=32)),
]
"""Where balance pays most: data-parallel ranks that meet in every microbatch, few microbatches, many ranks."""


def models() -> list[Case]:
    """Return a case for each pair of models."""
    pairs = [(b, e) for b in ("llama_12b", "tmoe_25b", "mixtral_8x7b") for e in ("vit_1b", "vit_2b")]
    folder = ROOT / "configs" / "models"
    stages = {"llama_12b": 9, "tmoe_25b": 7, "mixtral_8x7b": 8}
    return [
        Case(
            f"{backbone} {encoder}",
            (
                *sizes(8192, 24),
                f"cost.backbone=@{folder / backbone}.yaml",
                f"cost.encoder=@{folder / encoder}.yaml",
                f"mesh.pp={stages[backbone]}",
            ),
            {} if backbone == "llama_12b" else {"sync": "microbatch"},
        )
        for backbone, encoder in pairs
    ]


SENSITIVITY = [
    Case("as above", sizes(8192, 24)),
    Case("long rows truncated, not split", (*sizes(8192, 24), *(f"sources.{s}.overflow=truncate" for s in
         ("interleaved", "documents")))),
    Case("documents of a fifth, median 800", (*sizes(8192, 24), "sources.documents.options.text=[800,1.0]",
         "sources.interleaved.options.text=[200,1.0]")),
    Case("image and alt text alone", (*sizes(8192, 24), "mixture.weights={alt_text: 0.5, alt_text_large: 0.5}")),
    Case("no pipeline: pp=1 dp=8", (*sizes(8192, 24), "mesh.pp=1")),
    Case("96 microbatches", sizes(8192, 96)),
    Case("encoder in the first stage", sizes(8192, 24), {"encoder": "first_stage"}),
    Case("encoder twice as fast", sizes(8192, 24), {"encoder_flops_per_s": 4e14}),
    Case("1 ms a pass", sizes(8192, 24), {"pass_overhead_s": 0.001}),
    Case("rows of one length", (*sizes(8192, 24), *(f"sources.{s}.options={{name: {s}, text: [1000, 0.0]}}" for s in
         ("alt_text", "alt_text_large", "recaptioned", "interleaved", "documents")))),
]  # fmt: skip
"""Settings that change one thing of the 8k case; some have no gain."""


def main() -> int:
    """Simulate the cases of a part, print tables or JSON, and say whether every target was met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4, help="steps planned for each case")
    parser.add_argument("--part", choices=("contexts", "models", "sensitivity", "best", "all"), default="all")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="a setting of the configuration")
    parser.add_argument("--trainer", action="append", default=[], metavar="A=B", help="an assumption of the trainer")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    parts = {"contexts": CONTEXTS, "models": models(), "sensitivity": SENSITIVITY, "best": BEST}
    chosen = parts if arguments.part == "all" else {arguments.part: parts[arguments.part]}
    trainer = {name: yaml.safe_load(value) for name, _, value in (text.partition("=") for text in arguments.trainer)}
    results: dict[str, list[dict[str, Any]]] = {}
    for part, cases in chosen.items():
        results[part] = [measure(case, arguments.steps, arguments.set, trainer) for case in cases]
        if not arguments.json:
            print_table(part, results[part])
    if arguments.json:
        print(json.dumps({"machine": describe(), "steps": arguments.steps, "results": results}))
    else:
        print("\n".join(["assumed in the last case:", *next(reversed(results.values()))[-1]["assumptions"]]))
    return 0 if all(result["met"] for part in results.values() for result in part) else 1


def measure(case: Case, steps: int, settings: Sequence[str], trainer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a case, means over the steps."""
    try:
        config = msd.load_config(CONFIG, overrides=[*case.overrides, *settings])
    except ConfigError as error:
        sys.exit(f"{case.name}: {error}")
    found = msd.simulate(config, {**TRAINER, **case.trainer, **trainer}, steps=steps)
    gains = {name: found.speedup(name) for name in NAMES if name in found.names}
    ratio = found.mean("dealt", "row_ratio")
    is_gained = all(gains[name] >= least for name, least in case.least.items())
    is_in_range = not case.has_ratio or RATIOS[0] <= ratio <= RATIOS[1]
    is_hybrid_best = not case.least or gains["hybrid"] > gains["backbone"]
    return {
        "case": case.name,
        "ranks": found.mesh.world_size,
        "flop_ratio": ratio,
        "attention_ratio": found.mean("dealt", "attention_ratio"),
        "dealt_longest_row": found.mean("dealt", "longest_row"),
        "gains": gains,
        "even": found.mean("dealt") / found.even_s,
        "fill": found.mean("planned", "fill"),
        "least": dict(case.least),
        "met": is_gained and is_in_range and is_hybrid_best,
        "assumptions": found.assumptions(),
    }


def print_table(part: str, results: Sequence[Mapping[str, Any]]) -> None:
    """Print one line a case: times faster than the unbalanced assignment."""
    print(f"{part}: step time of `dealt` over that of each assignment; flops, attn: costliest microbatch over the mean")
    print(
        f"{'case':34}{'flops':>6}{'attn':>6}"
        + "".join(f"{name[:8]:>9}" for name in NAMES)
        + f"{'even':>7}{'fill':>8}  met"
    )
    for result in results:
        gains = "".join(f"{result['gains'][name]:9.2f}" if name in result["gains"] else f"{'-':>9}" for name in NAMES)
        asked = "" if not result["least"] else f" (at least {', '.join(map(str, result['least'].values()))})"
        print(
            f"{result['case']:34}{result['flop_ratio']:6.2f}{result['attention_ratio']:6.1f}{gains}{result['even']:7.2f}"
            f"{result['fill']:8.4f}  {('yes' if result['met'] else 'NO') + asked if asked else ''}"
        )
    print()


if __name__ == "__main__":
    sys.exit(main())

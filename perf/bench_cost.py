"""How well what a row costs is predicted from what is known of it before, on real rows.

    python perf/bench_cost.py FOLDER [--seconds 20] [--source NAME]... [--json]

FOLDER holds data that `msd init` finds, and a `tokenizer.json` somewhere: with the tokenizer of bytes nothing would be
measured of tokenisation. Without FOLDER the demo corpus is made. Labels are CPU of the thread that transforms (wall
time of a busy machine says little), the least of up to nine repeats of a row, all rows together at the level of their
medians: noise only adds. Rows that fail are left out. Errors are on rows that a model had not seen, by five-fold
cross-validation; beside them stands how far two measurements of the same rows lie apart, below which no model can be
expected to come.
"""

import argparse
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe

import msd
from msd.cost.estimators import fit
from msd.cost.features import FEATURES
from msd.cost.scores import score
from msd.profiling import timed_rows

LEAST_ROWS = 60
MUST = {"image": 0.20, "tokenize": 0.25}
"""Error of a row, by what a source does to it."""
SUMS = 0.03


def main() -> None:
    """Measure every source, print a table or JSON."""
    parser = argparse.ArgumentParser(description="How well costs of rows are predicted.")
    parser.add_argument("folder", nargs="?", type=Path, help="data; left out, the demo corpus is made")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each source")
    parser.add_argument("--source", action="append", help="only this one; repeat it")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    logging.getLogger("msd").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["MSD_CACHE"] = f"{scratch}/cache"
        folder = arguments.folder
        if folder is None:
            from msd.testing.corpus import make_corpus

            folder = Path(scratch) / "corpus"
            make_corpus(folder)
        tokenizer = next(iter(sorted(folder.rglob("tokenizer.json"))), None)
        if tokenizer is None:
            parser.error(f"{str(folder)!r} holds no tokenizer.json; put one there")
        config = msd.init(folder, tokenizer=tokenizer, sequence_length=4096)
        names = arguments.source or list(config.sources)
        found = [one for name in names if (one := _measured(config, name, arguments.seconds)) is not None]
    report = {"bench": "cost", "machine": describe(), "load": os.getloadavg()[0], "sources": found}
    print(json.dumps(report, indent=1) if arguments.json else _table(report))


def _measured(config: msd.Config, name: str, seconds: float) -> dict[str, Any] | None:
    try:
        rows, again = (timed_rows(config, name, seconds=seconds) for _ in range(2))
    except msd.MsdError as error:
        print(f"{name}: {error}")
        return None
    features_RF, cpu_R = rows.features_RF[rows.is_good_R], rows.cpu_R[rows.is_good_R]
    if len(cpu_R) < LEAST_ROWS:
        print(f"{name}: {len(cpu_R)} rows are too few to judge by; give it more --seconds")
        return None
    used = [index for index in range(len(FEATURES)) if features_RF[:, index].std() > 0]
    fitted = fit(features_RF[:, used], cpu_R, [FEATURES[index] for index in used])
    kinds = {transform.__struct_config__.tag for transform in config.sources[name].transforms}
    does = [kind for kind in MUST if kind in kinds]
    return {
        "source": name,
        "does": does[0] if does else "other",
        "rows": len(cpu_R),
        "median_ms": float(1e3 * np.median(cpu_R)),
        "chosen": fitted.name,
        "model": str(fitted.model),
        "again": _repeated(rows, again),
        "scores": {
            key: {"mape": one.mape, "sum_error": one.sum_error, "calibration": one.calibration, "r2": one.r2}
            for key, one in fitted.scores.items()
        },
    }


def _repeated(rows: Any, again: Any) -> dict[str, float]:
    """Return how far two measurements of the same rows lie apart, right on the whole: no model can do much better."""
    count = min(len(rows.cpu_R), len(again.cpu_R))
    good_R = rows.is_good_R[:count] & again.is_good_R[:count]
    first_R, second_R = rows.cpu_R[:count][good_R], again.cpu_R[:count][good_R]
    found = score(first_R * second_R.sum() / first_R.sum(), second_R)
    return {"mape": found.mape, "sum_error": found.sum_error}


def _table(report: dict[str, Any]) -> str:
    machine = report["machine"]
    names = sorted({key for one in report["sources"] for key in one["scores"]}, key=_rank)
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}; load before {report['load']:.1f}",
        "",
        "| source | does | rows | median, ms | measured again | chosen | " + " | ".join(names) + " |",
        "|---" * (6 + len(names)) + "|",
    ]
    for one in report["sources"]:
        cells = [
            f"{100 * one['scores'][key]['mape']:.0f} / {100 * one['scores'][key]['sum_error']:.1f}"
            if key in one["scores"]
            else ""
            for key in names
        ]
        repeat = f"{100 * one['again']['mape']:.0f} / {100 * one['again']['sum_error']:.1f}"
        head = [one["source"], one["does"], str(one["rows"]), f"{one['median_ms']:.2f}", repeat, one["chosen"]]
        lines.append("| " + " | ".join([*head, *cells]) + " |")
    lines += ["", "Each: mean error of a row / median error of sums over 32 rows, in per cent.", ""]
    for kind, must in MUST.items():
        of_kind = [one for one in report["sources"] if one["does"] == kind]
        if of_kind:
            worst = max(one["scores"][one["chosen"]]["mape"] for one in of_kind)
            sums = max(one["scores"][one["chosen"]]["sum_error"] for one in of_kind)
            lines.append(
                f"{kind}: rows at worst {worst:.0%} (must {must:.0%}), sums at worst {sums:.1%} (must {SUMS:.0%}), "
                f"over {len(of_kind)} sources"
            )
    return "\n".join(lines)


def _rank(name: str) -> tuple[bool, str]:
    return name in ("bytes", "constant"), name


if __name__ == "__main__":
    main()

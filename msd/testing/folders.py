"""Folders of packed sequences as `msd run` writes them, made in one process."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from msd.build import build_constructor, build_loaders, build_orders, build_planner, index_all, plan_steps
from msd.config import PipelineConfig
from msd.core.plan import StepPlan
from msd.core.written import MANIFEST
from msd.runtime.assembly import Assembly
from msd.runtime.dask.batch.contents import Asked, content_of, totals
from msd.runtime.parts import SUFFIXES, FileKind, encoded, steps_table


def write_packed(
    config: PipelineConfig, out: Path, *, steps: int | None = None, kind: FileKind = "parquet", steps_per_file: int = 3
) -> list[StepPlan]:
    """Write what a configuration gives into a folder, and return the plans of its steps.

    Args:
        config: The run.
        out: The folder; it is made.
        steps: So many; None is all of finite data.
        kind: Of file.
        steps_per_file: Steps of a file.
    """
    orders = build_orders(config, index_all(config))
    loaders = build_loaders(config, orders)
    assembly = Assembly(build_constructor(config), loaders)
    out.mkdir(parents=True)
    try:
        plans = list(plan_steps(build_planner(config, orders), loaders, steps=steps))
        parts = []
        for number, first in enumerate(range(0, len(plans), steps_per_file)):
            held = [replace(plan, encoder=None) for plan in plans[first : first + steps_per_file]]
            table = steps_table(held, lambda plan, bucket: assembly.rows(plan, bucket))
            content = encoded(table, kind)
            name = f"part-{number:06d}{SUFFIXES[kind]}"
            (out / name).write_bytes(content)
            parts.append(
                {
                    "name": name,
                    "first_step": first,
                    "steps": len(held),
                    "rows": table.num_rows,
                    "tokens": _tokens(held),
                    "bytes": len(content),
                    "sha256": hashlib.sha256(content).hexdigest(),
                }
            )
    finally:
        for loader in loaders.values():
            loader.close()
    said = content_of(config, Asked(out=str(out), kind=kind, steps=steps if steps is not None else len(plans)), orders)
    (out / MANIFEST).write_text(json.dumps({**said, "parts": parts, "totals": totals(parts)}, sort_keys=True))
    return plans


def _tokens(plans: Iterable[StepPlan]) -> int:
    return sum(int(plan.length_D.sum()) for plan in plans)

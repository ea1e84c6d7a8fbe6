"""Tables of metadata, cut: from a row on, or without the samples of rows that are passed over."""

# R = rows of a table. S = samples (parts) of a table.

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from msd.core.arrays import BoolArray
from msd.core.journal import SkipRows
from msd.core.sample import Failure, MetaTable, Outcome

KILLED = "it ended or hung its process twice"


def rows_from(table: MetaTable, ordinal: int) -> MetaTable:
    """Return the rows of a table from an ordinal on."""
    gone = max(0, ordinal - table.start)
    if not gone:
        return table
    kept_S = np.arange(len(table.num_tokens_S)) >= table.num_parts_R[:gone].sum()
    return replace(
        _with_samples(table, kept_S),
        start=table.start + gone,
        num_parts_R=table.num_parts_R[gone:],
        outcome_R=table.outcome_R[gone:],
        failures=tuple(failure for failure in table.failures if failure.ordinal >= ordinal),
    )


def passed_over(table: MetaTable, skips: Iterable[SkipRows]) -> MetaTable:
    """Return a table whose rows give nothing where one of `skips` says so; of several the last counts."""
    outcome_R, hit_R = table.outcome_R.copy(), np.zeros(table.num_rows, dtype=np.bool_)
    killed: dict[int, str] = {}
    for skip in skips:
        first, end = max(skip.first, table.start), min(skip.last + 1, table.end)
        if first >= end:
            continue
        span = slice(first - table.start, end - table.start)
        hit_R[span] = True
        outcome_R[span] = Outcome.KILLED if skip.reason == "killed" else Outcome.SKIPPED
        for ordinal in range(first, end):
            killed.pop(ordinal, None)
            if skip.reason == "killed":
                killed[ordinal] = f"{KILLED}{f' ({skip.how})' if skip.how else ''}"
    if not hit_R.any():
        return table
    told = {failure.ordinal: failure for failure in table.failures}
    failures = [failure for failure in table.failures if not hit_R[failure.ordinal - table.start]]
    failures += [
        Failure(ordinal=ordinal, reason=why, shard=told[ordinal].shard, row=told[ordinal].row)
        if ordinal in told
        else Failure(ordinal=ordinal, reason=why, shard="", row=0)
        for ordinal, why in killed.items()
    ]
    return replace(
        _with_samples(table, ~np.repeat(hit_R, table.num_parts_R)),
        num_parts_R=np.where(hit_R, 0, table.num_parts_R).astype(np.int32),
        outcome_R=outcome_R,
        failures=tuple(sorted(failures, key=lambda failure: failure.ordinal)),
    )


def _with_samples(table: MetaTable, kept_S: BoolArray) -> MetaTable:
    """Return a table with some of its samples; its rows still count them all."""
    columns: dict[str, Any] = {
        name: getattr(table, name)[kept_S]
        for name in (
            "num_tokens_S", "num_image_tokens_S", "num_images_S", "num_patches_S", "num_bytes_S", "num_runs_S",
        )
    }  # fmt: skip
    columns["runs_L2"] = table.runs_L2[np.repeat(kept_S, table.num_runs_S)]
    if len(table.num_patches_I):
        columns["num_patches_I"] = table.num_patches_I[np.repeat(kept_S, table.num_images_S)]
    return replace(table, **columns)

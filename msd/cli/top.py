"""`msd top RUN`: a run as it goes, in a terminal."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msd.cli import output
from msd.cli.mix import RunAddress, run_at
from msd.cli.options import Json

if TYPE_CHECKING:
    from rich.console import Group

MOST_SOURCES = 20
"""Those with the largest shares; the others are one line."""
MOST_TOLD = 5
"""Decisions, and losses: the newest."""


def top(
    run: RunAddress,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
    as_json: Json = False,
) -> None:
    """Show steps, waits, sources, memory, decisions and losses of a run until interrupted."""
    at = run_at(run)
    now = at.stats(), time.monotonic()
    if as_json:
        output.print_json(now[0])
        return
    if once or not sys.stdout.isatty():
        output.stdout().print(look(now[0], None, 1.0))
        return
    from rich.live import Live

    with Live(look(now[0], None, 1.0), console=output.stdout(), auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(interval)
            before, now = now, (at.stats(), time.monotonic())
            live.update(look(now[0], before[0], now[1] - before[1]), refresh=True)


def look(now: dict[str, Any], before: dict[str, Any] | None, seconds: float) -> "Group":
    """Return one look at a run.

    Args:
        now: `engine.stats()`.
        before: The same some time ago, None for the first look.
        seconds: Between the two.
    """
    from rich.console import Group
    from rich.text import Text

    limit = now.get("limited_by")
    lines = [
        f"step {now['next_step']} · {_rate(now, before, seconds)}planner {now['term']}",
        f"ranks wait for {output.percent(_waited(now, before, seconds))} of the time"
        + (f" · {limit['text']}" if limit else "")
        + (f" · now for {now['waits_for']}" if now.get("waits_for") else ""),
        f"fill {output.percent(now['fill'], 2)} · imbalance {_plain(now['imbalance'])} over a floor of "
        f"{_plain(now['imbalance_floor'])}",
    ]
    told = [Text(line) for line in lines]
    parts: list[Any] = [*told, Text(""), _sources(now, before, seconds), Text(""), _processes(now)]
    scaling = now.get("scaling") or {}
    parts += _newest("sizes", [f"{one['about']}: {one['why']}" for one in scaling.get("decisions", [])])
    parts += _newest(
        "lost",
        [
            f"{one['name']} ({one['how']})" + (f", replaced after {one['took_s']:.1f} s" if one["took_s"] else "")
            for one in now["recoveries"]
        ],
    )
    return Group(*parts)


def _sources(now: dict[str, Any], before: dict[str, Any] | None, seconds: float) -> Any:
    names = sorted(now["sources"], key=lambda name: (-now["sources"][name]["target_share"], name))
    rows = [_source(name, now, before, seconds) for name in names[:MOST_SOURCES]]
    if len(names) > MOST_SOURCES:
        rest = [now["sources"][name] for name in names[MOST_SOURCES:]]
        share = sum(one["target_share"] for one in rest)
        rows.append((f"and {len(rest)} more", output.percent(share), "", "", "", "", ""))
    return _table(("source", "target", "tokens", "samples/s", "waited for", "failed", "rows held back"), rows)


def _source(name: str, now: dict[str, Any], before: dict[str, Any] | None, seconds: float) -> tuple[str, ...]:
    one = now["sources"][name]
    then = one if before is None else before["sources"].get(name, one)
    return (
        f"{name} (suspended)" if one["is_suspended"] else name,
        output.percent(one["target_share"]),
        output.percent(one["token_share"]),
        output.short(max(0.0, (one["samples"] - then["samples"]) / seconds)),
        output.percent(max(0.0, one["starved_s"] - then["starved_s"]) / seconds),
        output.short(one.get("failed_rows", 0)),
        output.short(one.get("killed", 0)),
    )


def _processes(now: dict[str, Any]) -> Any:
    rows = [
        (one["host"], one["role"], output.size(one["pss_bytes"] or 0), output.size(one.get("payload_bytes") or 0))
        for one in now["hosts"]
    ]
    rows += [
        (one["constructor"], f"constructor of {len(one['ranks'])} ranks", output.size(one.get("pss_bytes") or 0),
         output.size(one.get("held_bytes") or 0))
        for one in now["constructors"]
    ]  # fmt: skip
    return _table(("process", "role", "memory", "payload"), rows, num_texts=2)


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, num_texts: int = 1) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < num_texts else "right", no_wrap=number >= num_texts)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _newest(title: str, entries: list[str]) -> list[Any]:
    from rich.text import Text

    if not entries:
        return []
    return [Text(""), Text(title, style="bold"), *(Text(f"  {entry}") for entry in entries[-MOST_TOLD:])]


def _rate(now: dict[str, Any], before: dict[str, Any] | None, seconds: float) -> str:
    return "" if before is None else f"{max(0, now['next_step'] - before['next_step']) / seconds:.2f} steps/s · "


def _waited(now: dict[str, Any], before: dict[str, Any] | None, seconds: float) -> float | None:
    return None if before is None else min(1.0, max(0.0, now["waited_s"] - before["waited_s"]) / seconds)


def _plain(number: float | None) -> str:
    return "-" if number is None else f"{number:.4f}"

"""What commands print: tables and JSON on standard output, progress and notes on standard error."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_WIDTH = 160
"""Columns of a table that is not shown on a terminal and where COLUMNS does not say how many: none is cut."""


def stdout() -> "Console":
    """Return the console of results; `BrokenPipeError` reaches the caller."""
    from rich.console import Console

    class _Results(Console):
        def on_broken_pipe(self) -> None:
            # Rich would end the process with status 1 here, which says that the command failed.
            raise BrokenPipeError

    is_known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return _Results(file=sys.stdout, highlight=False, soft_wrap=False, width=None if is_known else _WIDTH)


def stderr() -> "Console":
    """Return the console of progress and notes."""
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """Print a remark that is no result."""
    stderr().print(text, style="dim", markup=False)


def print_json(value: Any) -> None:
    """Print one JSON value and nothing else."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, text_columns: int = 1, caption: str = ""
) -> None:
    """Print a table; the first `text_columns` columns are words and may be folded, the others numbers.

    Callers see to it that 80 columns are enough.
    """
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=escape(title),
        caption=escape(caption) or None,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for number, column in enumerate(columns):
        is_text = number < text_columns
        justify: Literal["left", "right"] = "left" if is_text else "right"
        widest = max(len(str(row[number])) for row in rows) if rows and not is_text else None
        table.add_column(column, justify=justify, overflow="fold", no_wrap=not is_text, min_width=widest)
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    console = stdout()
    console.print(table)
    console.print()


@contextmanager
def progress_bar() -> "Iterator[Progress]":
    """Show progress on standard error while it is a terminal; say nothing otherwise."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=stderr(),
        transient=True,
        disable=not sys.stderr.isatty(),
    ) as progress:
        yield progress


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share as text: 0.123 is `12.3 %`."""
    return "-" if share is None else f"{100 * share:.{digits}f} %"


def size(nbytes: float) -> str:
    """Return a number of bytes as text with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def count(number: float | None) -> str:
    """Return a number with thousands separated, or a dash."""
    return "-" if number is None else f"{number:,.0f}"


def short(number: float | None) -> str:
    """Return a number in at most six characters: 9,999, 12.3k, 114k, 1.23M."""
    if number is None or abs(number) < 9_999.5:
        return count(number)
    units = ((1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"))
    power, unit = next((choice for choice in units if abs(number) < 999.5 * choice[0]), units[-1])
    scaled = number / power
    return f"{scaled:.{0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2}f}{unit}"

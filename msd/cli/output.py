"""What commands print: tables and JSON on standard output, progress and notes on standard error."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_WIDTH = 160
"""Columns of a table that is not shown on a terminal: wide enough that none is cut."""


def stdout() -> "Console":
    """Return the console of results; `BrokenPipeError` reaches the caller."""
    from rich.console import Console

    class _Results(Console):
        def on_broken_pipe(self) -> None:
            # Rich would end the process with status 1 here, which says that the command failed.
            raise BrokenPipeError

    is_terminal = sys.stdout.isatty()
    return _Results(file=sys.stdout, highlight=False, soft_wrap=False, width=None if is_terminal else _WIDTH)


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
    """Print a table; the first `text_columns` columns are words, the others numbers."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), caption=escape(caption) or None, title_justify="left", caption_justify="left")
    for number, column in enumerate(columns):
        justify: Literal["left", "right"] = "left" if number < text_columns else "right"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=not number)
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    stdout().print(table)


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

"""`msd doctor [CONFIG]`: look at what a run needs before it is started, and say what to do."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msd.cli import output
from msd.cli.options import Json, Overrides, Sets, read_config

if TYPE_CHECKING:
    from msd.config import Config
    from msd.runtime.health import Finding

_MARKS = {"fine": "ok", "notice": "look", "bad": "BAD"}


def doctor(
    config_path: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="Its storage and checkpoint, too.", show_default=False)
    ] = None,
    overrides: Overrides = None,
    scheduler: Annotated[
        str | None,
        typer.Option(help="Address of a running Dask scheduler; else runtime.scheduler.", show_default=False),
    ] = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Look at packages, limits, ports, storage, checkpoint and cluster; the status is 1 if a run could not start."""
    config = None if config_path is None else read_config(config_path, overrides, sets)
    found = []
    for finding in _findings(config, scheduler):
        found.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        output.print_json([finding.as_dict() for finding in found])
    if any(finding.verdict == "bad" for finding in found):
        raise typer.Exit(1)


def _findings(config: "Config | None", scheduler: str | None) -> "Iterator[Finding]":
    from msd.runtime import health
    from msd.runtime.dask.health import look_at_cluster, look_at_processors

    yield from health.look_at_machine()
    yield look_at_processors()
    if config is not None:
        yield from health.look_at_storage(config)
        yield from health.look_at_checkpoint(config)
        scheduler = scheduler or config.runtime.scheduler
    if scheduler is not None:
        yield from look_at_cluster(scheduler)


def _print(finding: "Finding") -> None:
    lines = f"{_MARKS[finding.verdict]:<5} {finding.subject}: {finding.found}"
    if finding.advice:
        lines += f"\n      {finding.advice}"
    output.stdout().print(lines, soft_wrap=True, markup=False)

"""`msd doctor [CONFIG]`: look at what a run needs before it is started, and say what to do; make certificates."""

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
    make_certs: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Make a CA and a certificate for a trial of TLS there, print the `security:` to paste, and end.",
            show_default=False,
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="HOST",
            help="With --make-certs: a host name or address more that the certificate is of; repeat it.",
            show_default=False,
        ),
    ] = None,
    any_host: Annotated[
        bool, typer.Option("--any-host", help="With --make-certs: no names, so that it is good on every host.")
    ] = False,
    days: Annotated[int, typer.Option(min=1, max=3650, help="With --make-certs: for how long they are good.")] = 90,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Look at packages, limits, ports, storage, checkpoint, certificates and cluster.

    The status is 1 if a run could not start.
    """
    if make_certs is not None:
        _make_certificates(make_certs, names or [], any_host, days, as_json)
        return
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
    from msd.runtime.certificates import look_at_certificates
    from msd.runtime.dask.health import look_at_cluster, look_at_processors

    yield from health.look_at_machine()
    yield look_at_processors()
    if config is not None:
        yield from health.look_at_storage(config)
        yield from health.look_at_checkpoint(config)
        yield from look_at_certificates(config)
        scheduler = scheduler or config.runtime.scheduler
    if scheduler is not None:
        yield from look_at_cluster(scheduler, None if config is None else config.security)


def _make_certificates(folder: Path, names: list[str], any_host: bool, days: int, as_json: bool) -> None:
    from msd.client.link.certificates import VARIABLES
    from msd.errors import ConfigError
    from msd.runtime.authority import make_certificates

    if any_host and names:
        raise ConfigError("--any-host makes a certificate without names; leave --name out, or --any-host")
    made = make_certificates(folder, names=names, any_host=any_host, days=days)
    security = made.security
    if as_json:
        output.print_json({"security": security, "names": list(made.names), "ends": made.ends.isoformat()})
        return
    lines = ["security:", *(f"  {name}: {path}" for name, path in security.items())]
    output.stdout().print("\n".join(lines), soft_wrap=True, markup=False, highlight=False)
    output.note(f"good until {made.ends:%Y-%m-%d}, for {', '.join(made.names) or 'every host'}")
    output.note(f"{made.ca_key} signs others: keep it away from machines that only train")
    output.note("for ranks: export " + " ".join(f"{VARIABLES[name]}={path}" for name, path in security.items()))


def _print(finding: "Finding") -> None:
    lines = f"{_MARKS[finding.verdict]:<5} {finding.subject}: {finding.found}"
    if finding.advice:
        lines += f"\n      {finding.advice}"
    output.stdout().print(lines, soft_wrap=True, markup=False)

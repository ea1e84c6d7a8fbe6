"""`msd serve CONFIG`: run the engine for ranks that live in processes of their own."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from msd.cli import output
from msd.cli.options import ConfigPath, Json, Overrides, Sets, read_config

if TYPE_CHECKING:
    from types import FrameType

TOKEN_VARIABLE = "MSD_TOKEN"
CHECK_S = 2.0
"""A run that failed ends the command within this."""


def _print_dask_config(is_wanted: bool) -> None:
    if is_wanted:
        from msd.runtime.dask.securing import settings_for_others
        from msd.runtime.dask.settings import as_yaml

        print(as_yaml(settings_for_others()))
        raise typer.Exit


def serve(
    config_path: ConfigPath,
    overrides: Overrides = None,
    rendezvous: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the address there for `file://FILE`; removed at the end."),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a running Dask scheduler.", show_default=False)
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where ranks ask first: a run started again with the same is found by them.",
            show_default=False,
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take the token of ranks from there; the first time it is made up and kept there.",
            show_default=False,
        ),
    ] = None,
    dask_config: Annotated[
        bool,
        typer.Option(
            "--dask-config",
            is_eager=True,
            callback=_print_dask_config,
            help="Print the Dask settings that schedulers and workers started by other means need, and exit.",
        ),
    ] = False,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Serve batches to ranks until interrupted; they call msd.connect(ADDRESS, rank=...).

    The token that ranks must show is made up, or taken from --token-file or MSD_TOKEN.
    """
    from msd.client.link.address import Address, kept_token, write_rendezvous
    from msd.runtime.dask.engine import DaskEngine

    if rendezvous is not None:
        _check_rendezvous(rendezvous)
    config = read_config(config_path, overrides, sets)
    if scheduler is not None:
        config = config.replace(runtime={"scheduler": scheduler})
    at = (None, 0) if listen is None else _host_and_port(listen)
    token = os.environ.get(TOKEN_VARIABLE) if token_file is None else kept_token(token_file)
    stopped = threading.Event()
    previous = {name: signal.signal(name, _stop(stopped)) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        with DaskEngine(config, listen=at, token=token) as engine:
            if rendezvous is not None:
                write_rendezvous(rendezvous, Address.parse(engine.address))
            if as_json:
                output.print_json({"address": engine.address, "dashboard": engine.dashboard_link})
            else:
                output.stdout().print(engine.address, soft_wrap=True, highlight=False, markup=False)
                if engine.dashboard_link is not None:
                    output.note(f"dashboard: {engine.dashboard_link}")
                if config.checkpoint is not None:
                    output.note(f"checkpoint: {config.checkpoint.path}, every {config.checkpoint.every} steps")
            sys.stdout.flush()
            try:
                while not stopped.wait(CHECK_S):
                    engine.check()
            finally:
                if rendezvous is not None:
                    _remove(rendezvous, engine.address)
    finally:
        for name, handler in previous.items():
            signal.signal(name, handler)


def _host_and_port(listen: str) -> tuple[str | None, int]:
    """Return where to listen; without a host the engine chooses one, without a port the system."""
    from msd.errors import ConfigError

    parts = urlsplit(f"//{listen}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if (host is None and port is None) or parts.path or parts.query or parts.username is not None:
        raise ConfigError(
            f"--listen {listen} is no place to listen at; give HOST:PORT such as 10.0.0.1:7077, [::]:7077 or :7077"
        )
    return host, port or 0


def _check_rendezvous(rendezvous: Path) -> None:
    """Refuse what cannot become the file, before a cluster is started for it."""
    from msd.errors import ConfigError

    folder = rendezvous.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"--rendezvous {rendezvous} lies in no folder that exists; make the folder first")
    if rendezvous.is_dir():
        raise ConfigError(
            f"--rendezvous {rendezvous} is a folder; name a file in it, such as {rendezvous / 'run.json'}"
        )
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"--rendezvous {rendezvous} lies in a folder that cannot be written; name another")


def _remove(rendezvous: Path, address: str) -> None:
    """Remove the file unless another run wrote its own there."""
    from msd.client.link.address import Address, resolve

    with contextlib.suppress(OSError):
        if resolve(rendezvous.absolute().as_uri()) == Address.parse(address):
            rendezvous.unlink()


def _stop(stopped: threading.Event) -> Callable[[int, "FrameType | None"], None]:
    def stop(number: int, frame: "FrameType | None") -> None:
        del frame
        if stopped.is_set() or number == signal.SIGINT:
            stopped.set()
            raise KeyboardInterrupt
        stopped.set()

    return stop

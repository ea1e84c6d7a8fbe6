"""Arguments that several commands take."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from msd.config import Config

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="Configuration (YAML).", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[A.B=C]...", help="Settings that win over the file: mesh.dp=2.", show_default=False),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="A.B=C", help="The same, as an option; repeat it.", show_default=False),
]
Storage = Annotated[
    list[str] | None,
    typer.Option("--storage", metavar="KEY=VALUE", help="For fsspec, of a URL; repeat it.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON alone on standard output.")]


def read_config(path: Path, overrides: list[str] | None, sets: list[str] | None) -> "Config":
    """Return the configuration of a command, with its overrides applied from left to right.

    Dotted paths in it find modules beside the file and in the working directory.
    """
    from msd.config import load_config
    from msd.core.checks import working_directory
    from msd.core.dotted import look_in

    config = load_config(path, overrides=[*(overrides or []), *(sets or [])])
    # After the directory of the file; `msd` is a program, so Python does not look in the working directory by itself.
    look_in(working_directory())
    return config


def storage_options(pairs: list[str] | None) -> dict[str, Any] | None:
    """Return what `--storage` says, None if it is left out.

    Raises:
        ConfigError: If an entry is no KEY=VALUE.
    """
    from msd.errors import ConfigError

    split = [text.partition("=") for text in pairs or []]
    wrong = [key for key, sign, _ in split if not sign]
    if wrong:
        raise ConfigError(f"--storage {wrong[0]!r} has no value; write KEY=VALUE")
    return {key: value for key, _, value in split} or None

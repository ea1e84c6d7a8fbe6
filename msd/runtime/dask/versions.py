"""A worker that differs from the run would make other bytes: it is refused before anything starts."""

import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from distributed import Client

from msd.errors import ConfigError

DECIDING = ("msd", "tokenizers", "pillow", "numpy", "pyarrow", "zstandard")
"""Packages that what is delivered may depend on, besides Python itself."""


def versions() -> dict[str, str]:
    """Return the versions of this process."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in DECIDING}}


async def check_versions(client: Client, workers: Sequence[str]) -> None:
    """Raise `ConfigError` unless every worker has what this process has.

    Raises:
        ConfigError: Naming the worker, the package, and both versions.
    """
    ours = versions()
    try:
        theirs: dict[str, dict[str, Any]] = await client.run(versions, workers=list(workers))
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"a Dask worker has no module {error.name!r}; install msd in the worker's environment"
        ) from None
    for worker, found in theirs.items():
        for package, version in ours.items():
            if found.get(package) != version:
                raise ConfigError(
                    f"worker {worker} has {package} {found.get(package, 'not at all')}, this process has {version}; "
                    f"install {package}=={version} on the worker, so that it makes the same samples"
                )

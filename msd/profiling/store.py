"""Where profiles are kept, and which of them fits a run."""

import importlib.metadata
import os
import platform
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msd.config import PipelineConfig
from msd.core.order import SourceOrder
from msd.core.state import fingerprint
from msd.cost.profile import Profile
from msd.errors import ConfigError
from msd.loader.transforms.chain import TransformChain
from msd.sources.cache import default_cache_dir

LIBRARIES = ("numpy", "pyarrow", "pillow", "tokenizers")
"""That read and transform: of other versions rows may take something else."""


def fingerprints(
    config: PipelineConfig, orders: Mapping[str, SourceOrder], chains: Mapping[str, TransformChain]
) -> dict[str, tuple[str, str]]:
    """Return by source what its data and its transforms are, as a profile names them."""
    return {
        name: (
            orders[name].blocks.digest[:16],
            fingerprint([chains[name].identity, source.overflow])[:16],
        )
        for name, source in config.sources.items()
    }


def machine() -> dict[str, str | int | float]:
    """Return what a profile holds for: the processor, and the cores that this process may use."""
    return {"cpu": _cpu(), "cores": len(os.sched_getaffinity(0))}


def versions() -> dict[str, str]:
    """Return the versions of the libraries that read and transform."""
    return {name: importlib.metadata.version(name) for name in LIBRARIES}


def profile_path(found: Mapping[str, tuple[str, str]]) -> Path:
    """Return where the profile of a configuration is kept, by what its sources are."""
    return default_cache_dir() / "profiles" / f"{fingerprint(sorted(found.items()))[:24]}.json"


def keep(profile: Profile, path: Path) -> None:
    """Write a profile, as a whole or not at all.

    Raises:
        ConfigError: If it cannot be written there.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(profile.to_json())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise ConfigError(f"the profile cannot be written to {str(path)!r}: {error.strerror or error}") from None


def read(path: Path) -> Profile:
    """Return a profile.

    Raises:
        ConfigError: If there is none, or it is of another release.
    """
    try:
        return Profile.from_json(path.read_bytes(), name=repr(str(path)))
    except OSError as error:
        raise ConfigError(f"there is no profile at {str(path)!r}: {error.strerror or error}") from None


def find(found: Mapping[str, tuple[str, str]]) -> tuple[Profile | None, list[str]]:
    """Return the profile that is kept for a configuration and fits here, else None and what speaks against it."""
    path = profile_path(found)
    if not path.exists():
        return None, []
    try:
        profile = read(path)
    except ConfigError as error:
        return None, [str(error)]
    against = profile.differences(found, machine(), versions())
    return (None, against) if against else (profile, [])


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines: list[Any] = info.read_text(errors="replace").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return str(names[0]) if names else platform.processor() or platform.machine()

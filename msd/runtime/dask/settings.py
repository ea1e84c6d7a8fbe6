"""The Dask configuration that a run ships to each of its processes."""

import json
import os
import sys
from typing import Any

DASK_SETTINGS: dict[str, Any] = {
    "distributed": {
        # The default would proxy every actor call through the scheduler.
        "client": {"direct-to-workers": True},
        # A call to a worker that just died retries "refused" for this long.
        "comm": {"timeouts": {"connect": "5s"}},
        "scheduler": {
            "worker-ttl": "30s",
            "work-stealing": False,
            "active-memory-manager": {"start": False},
        },
        "worker": {
            # Else no process pool inside a worker that a nanny runs.
            "daemon": False,
            "profile": {"enabled": False},
            # The state of an actor cannot be spilled, and a pause stops tasks but not actor calls.
            "memory": {"target": False, "spill": False, "pause": False},
        },
        "admin": {"tick": {"interval": "200ms"}, "system-monitor": {"interval": "2s", "gil": {"enabled": False}}},
    }
}
"""Idle cost of a worker falls to a fraction of a core with the profile, tick and monitor lines."""


def as_set(settings: dict[str, Any] = DASK_SETTINGS, prefix: str = "") -> dict[str, Any]:
    """Return the settings by dotted name, as `dask.config.set` adds them to what is there."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        inner = {f"{prefix}{name}": value}
        flat |= as_set(value, f"{prefix}{name}.") if isinstance(value, dict) else inner
    return flat


def worker_environment() -> dict[str, str]:
    """Return the environment of a worker process: our Dask settings, and the modules that this process can import."""
    environment = dict(os.environ)
    environment["DASK_INTERNAL_INHERIT_CONFIG"] = encoded(DASK_SETTINGS)
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path or os.getcwd() for path in sys.path))
    # One thread a call: hosts have their own threads, and numerical libraries would start more than there are cores.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.setdefault(name, "1")
    # Freed payload goes back to the system instead of staying in one arena per thread.
    environment.setdefault("MALLOC_ARENA_MAX", "2")
    # Arrow's own allocator keeps a third more than it holds where each of many sources holds a little.
    environment.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    return environment


def encoded(settings: dict[str, Any]) -> str:
    """Return settings as a process inherits them."""
    from dask.config import serialize

    text: str = serialize(settings)
    return text


def as_yaml(settings: dict[str, Any] = DASK_SETTINGS) -> str:
    """Return the settings as a file for `DASK_CONFIG`, for clusters that are started by other means."""
    return json.dumps(settings, indent=2)

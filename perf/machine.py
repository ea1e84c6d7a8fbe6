"""What a benchmark ran on: named in every report, without the name of the host."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

LIBRARIES = ("msd", "numpy", "pyarrow", "msgspec", "tokenizers", "torch")


def describe() -> dict[str, Any]:
    """Return processor, cores this process may use, memory, and versions."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "versions": {name: version for name in LIBRARIES if (version := _version(name)) is not None},
    }


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None

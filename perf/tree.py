"""What a process and all that it started hold and spend, from /proc."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> list[int]:
    """Return the processes that a process started, and what those started."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            children.setdefault(int(_fields(stat)[1]), []).append(int(stat.parent.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        started = children.get(waiting.pop(), [])
        found += started
        waiting += started
    return found


def pss_mib(pids: Iterable[int]) -> float:
    """Return the proportional set size of processes together: what is shared among them counts once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
                total += int(line.split()[1]) if line.startswith("Pss:") else 0
    return total / 1024


def cpu_s(pids: Iterable[int]) -> float:
    """Return the processor time that processes have spent."""
    spent = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = _fields(Path(f"/proc/{pid}/stat"))
            spent += int(fields[11]) + int(fields[12])
    return spent / _TICKS


def _fields(stat: Path) -> list[str]:
    # The name, in parentheses, may hold anything.
    return stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()

"""What a process takes of the machine's memory."""

from pathlib import Path

_ROLLUP = Path("/proc/self/smaps_rollup")


def pss_bytes() -> int | None:
    """Return this process's proportional share of memory, None where the system does not tell. Takes milliseconds."""
    try:
        lines = _ROLLUP.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), None)

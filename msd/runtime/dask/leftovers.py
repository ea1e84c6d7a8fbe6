"""What killed runs of this machine left in the folder for temporary files, and how to tell that they are dead."""

import contextlib
import os
import shutil
import signal
import socket
import stat
import tempfile
import time
from pathlib import Path

OWNER_FILE = "owner"
MEMBERS_FILE = "members"
OPENING_S = 60.0
"""A socket that is not at its path yet is being opened, unless it is older than this."""
_DEAD = ("Z", "X")
_FROZEN = ("T", "t")


def own(folder: Path) -> None:
    """Note in a folder, which is made if need be, that this process owns it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / OWNER_FILE).write_text(f"{os.getpid()}\n{_life(os.getpid())}\n")


def add_member(folder: Path, pid: int) -> None:
    """Note in a folder a process that the owner started: `remove` sees to it if it is frozen when the owner is dead."""
    with (folder / MEMBERS_FILE).open("a") as file:
        file.write(f"{pid} {_life(pid)}\n")


def remove(folder: Path) -> None:
    """Remove the folder of a dead owner. Processes of its own end by themselves then, but for those that are frozen."""
    with contextlib.suppress(OSError):
        for line in (folder / MEMBERS_FILE).read_text().splitlines():
            pid, _, life = line.partition(" ")
            if life and pid.isdecimal() and _life(int(pid)) == life and _state(int(pid)) in _FROZEN:
                os.kill(int(pid), signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def clean() -> list[Path]:
    """Remove folders and sockets of runs whose processes are dead, never by their names alone; return what went."""
    removed = []
    for path in Path(tempfile.gettempdir()).glob("msd-*"):
        with contextlib.suppress(OSError):
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            if path.is_dir() and _is_orphaned(path):
                remove(path)
                removed.append(path)
            elif stat.S_ISSOCK(path.stat().st_mode) and _is_deserted(path):
                path.unlink()
                removed.append(path)
    return removed


def _is_orphaned(folder: Path) -> bool:
    """Return whether a folder names an owner of this machine that lives no longer."""
    try:
        pid, life = (folder / OWNER_FILE).read_text().splitlines()
        now = _life(int(pid))
    except (OSError, ValueError):
        return False
    # What was started at another time is another process, whatever its number.
    return bool(life) and now != life and _machine() == life.partition(" ")[2]


def _is_deserted(path: Path) -> bool:
    if path.suffix != ".sock" and time.time() - path.stat().st_mtime < OPENING_S:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        return False


def _life(pid: int) -> str:
    """Return what no other process has: when it started, on which machine since when; empty if it is gone."""
    fields = _fields(pid)
    return "" if not fields or fields[0] in _DEAD else f"{fields[19]} {_machine()}"


def _state(pid: int) -> str:
    fields = _fields(pid)
    return fields[0] if fields else ""


def _fields(pid: int) -> list[str]:
    """Return what Linux says of a process after its name, nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _machine() -> str:
    """Return what process numbers are valid in: this machine since it started, and this name space."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""

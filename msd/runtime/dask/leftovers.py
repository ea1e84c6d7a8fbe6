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
_AT_WORK = ("R", "D")
BUSY_S = 2.0
"""A process that is at work for so long, when its owner is dead, is not about to end."""
IDLE_LOOKS = 4
"""At processes that are all asleep, in a row: they hear that they should end."""


def own(folder: Path) -> None:
    """Note in a folder, which is made if need be, that this process owns it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / OWNER_FILE).write_text(f"{os.getpid()}\n{_life(os.getpid())}\n")


def add_member(folder: Path, pid: int) -> None:
    """Note in a folder a process that the owner started: `remove` ends it if it cannot do so when the owner is dead."""
    with (folder / MEMBERS_FILE).open("a") as file:
        file.write(f"{pid} {_life(pid)}\n")


def remove(folder: Path) -> None:
    """Remove the folder of a dead owner, and processes of its own that cannot end by themselves as the others do.

    Those are the ones that are frozen, and those in which something never lets go of the interpreter.
    """
    members: dict[int, str] = {}
    with contextlib.suppress(OSError):
        for line in (folder / MEMBERS_FILE).read_text().splitlines():
            number, _, life = line.partition(" ")
            if life and number.isdecimal() and int(number) != os.getpid():
                members[int(number)] = life
    shutil.rmtree(folder, ignore_errors=True)
    for pid, life in members.items():
        if _state(pid) in _FROZEN:
            _kill(pid, life)
    began = {pid: _cpu_s(pid) for pid, life in members.items() if _life(pid) == life}
    until, idle_looks = time.monotonic() + BUSY_S, 0
    # Most end meanwhile, or sleep until they hear that they should.
    while idle_looks < IDLE_LOOKS and time.monotonic() < until:
        idle_looks = 0 if any(_state(pid) in _AT_WORK for pid in began) else idle_looks + 1
        time.sleep(0.05)
    for pid, cpu_s in began.items():
        if idle_looks < IDLE_LOOKS and _cpu_s(pid) - cpu_s > BUSY_S / 10:
            _kill(pid, members[pid])


def _kill(pid: int, life: str) -> None:
    """End a process, unless its number is another one's by now."""
    if _life(pid) == life:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


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


def _cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used; 0 of one that is gone."""
    fields = _fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else 0.0


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

"""What killed runs of this machine left in the folder for temporary files, and how to tell that they are dead.

As a program, `python leftovers.py FOLDER OWNER GRACE_S`: outlives an owner, and ends what does not end without it. It
waits beside each run, and so imports nothing but the standard library.
"""

import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OWNER_FILE = "owner"
MEMBERS_FILE = "members"
OPENING_S = 60.0
"""A socket that is not at its path yet is being opened, unless it is older than this."""
_DEAD = ("Z", "X")
_FROZEN = ("T", "t")
GRACE_S = 15.0
"""A process ends by itself within this when its owner is dead, or it cannot: something in it never lets go of the
interpreter, say. How busy it is tells nothing: on a machine that is, the others may be slow to end."""
LOOK_S = 0.5


def own(folder: Path) -> None:
    """Note in a folder, which is made if need be, that this process owns it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / OWNER_FILE).write_text(f"{os.getpid()}\n{_life(os.getpid())}\n")


def add_member(folder: Path, pid: int) -> None:
    """Note in a folder a process that the owner started: when the owner is dead it is ended if it cannot end itself."""
    with (folder / MEMBERS_FILE).open("a") as file:
        file.write(f"{pid} {_life(pid)}\n")


def watch(folder: Path, grace_s: float = GRACE_S) -> "subprocess.Popen[bytes]":
    """Start a process that outlives this one, and then ends the members of a folder that have not after a grace."""
    command = [sys.executable, "-I", "-S", __file__, str(folder), str(os.getpid()), str(grace_s)]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, cwd="/", start_new_session=True)


def outlive(folder: Path, owner: int, grace_s: float) -> None:
    """Wait until the process that started this one is dead, then end the members of its folder that do not end.

    Args:
        folder: Of the owner.
        owner: Its number.
        grace_s: Seconds that members have.
    """
    members: dict[int, str] = {}
    while os.getppid() == owner:
        time.sleep(LOOK_S)
        # The first member that ends removes the folder.
        members = _members(folder) or members
    until = time.monotonic() + grace_s
    while any(_life(pid) == life for pid, life in members.items()) and time.monotonic() < until:
        time.sleep(LOOK_S)
    for pid, life in members.items():
        _kill(pid, life)
    shutil.rmtree(folder, ignore_errors=True)


def remove(folder: Path) -> None:
    """Remove the folder of a dead owner, and processes of its own that are frozen: they cannot end as the others do."""
    members = _members(folder)
    shutil.rmtree(folder, ignore_errors=True)
    for pid, life in members.items():
        if pid != os.getpid() and _state(pid) in _FROZEN:
            _kill(pid, life)


def _members(folder: Path) -> dict[int, str]:
    """Return the life of each process that is noted in a folder, by its number."""
    members: dict[int, str] = {}
    with contextlib.suppress(OSError):
        for line in (folder / MEMBERS_FILE).read_text().splitlines():
            number, _, life = line.partition(" ")
            if life and number.isdecimal():
                members[int(number)] = life
    return members


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


if __name__ == "__main__":
    outlive(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))

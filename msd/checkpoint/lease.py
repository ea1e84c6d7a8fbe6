"""Who may write to a store: one live run at a time, and none that is dead keeps the others out."""

import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from msd.checkpoint.folder import Folder
from msd.core.state import canonical_json
from msd.errors import LeaseError

LEASE_FILE = "lease.json"


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a lease, as the file says it."""

    run: str
    token: str
    """Of one `Lease`: two of one process differ."""
    host: str
    pid: int
    started: int
    """When the process started, in ticks since the machine did: a pid that comes again is another process."""
    boot: str
    """Of the machine, since it started, and of the name space that the pid is from."""
    renewed_at: float
    """Seconds since 1970, by the owner's clock."""
    lease_s: float


class Lease:
    """The right to write to a store, of one run.

    It is renewed while the run lives. Another run of the same machine takes it over at once when the owner's process
    is gone; one of another machine when it has not been renewed for its `lease_s`.
    """

    def __init__(
        self, folder: Folder, *, run: str, lease_s: float = 30.0, clock: Callable[[], float] = time.time
    ) -> None:
        """Name what is wanted; nothing is taken yet.

        Args:
            folder: Of the store.
            run: Which wants it.
            lease_s: Seconds without renewal after which others may take it; renew a few times in that.
            clock: Seconds since 1970.
        """
        self._folder, self._clock = folder, clock
        self._run, self.lease_s = run, lease_s
        self._token = uuid.uuid4().hex
        self._pid = os.getpid()

    def acquire(self, *, take_over: bool = False) -> Owner | None:
        """Take the lease, and return whose it was if a run left it behind.

        Args:
            take_over: Take it from a live run, too; that one ends when it notices.

        Raises:
            LeaseError: If another run holds it; says who, and what to do.
            EngineError: If the store cannot be written.
        """
        with self._folder.alone():
            owner = read_owner(self._folder)
            is_others = owner is not None and owner.token != self._token
            if owner is not None and is_others and not take_over:
                found = liveness(owner, now=self._clock())
                if found != "dead":
                    raise LeaseError(self._refusal(owner, found))
            self._write()
        return owner if is_others else None

    def renew(self) -> None:
        """Say that the run lives.

        Raises:
            LeaseError: If another run has taken the lease; the caller's may write no more.
            EngineError: If the store cannot be read or written.
        """
        with self._folder.alone():
            self.check()
            self._write()

    def check(self) -> None:
        """Raise `LeaseError` if another run has taken the lease."""
        owner = read_owner(self._folder)
        if owner is not None and owner.token != self._token:
            raise _lost(self._folder, self._run, owner)

    def release(self) -> None:
        """Give the lease up, if it is still held. Never raises: a lease that stays is found dead by the next run."""
        if os.getpid() != self._pid:
            return  # A child that was forked ends; the run does not.
        with suppress(Exception), self._folder.alone():
            owner = read_owner(self._folder)
            if owner is not None and owner.token == self._token:
                self._folder.remove(LEASE_FILE)

    def _write(self) -> None:
        owner = Owner(
            run=self._run,
            token=self._token,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=_started(os.getpid()) or 0,
            boot=_boot(),
            renewed_at=self._clock(),
            lease_s=self.lease_s,
        )
        self._folder.write(LEASE_FILE, canonical_json(msgspec.to_builtins(owner)).encode())

    def _refusal(self, owner: Owner, found: str) -> str:
        age = max(0.0, self._clock() - owner.renewed_at)
        if found == "alive":
            what = "end that run first"
        else:
            what = f"end that run; if it is gone, wait until it has been silent for {owner.lease_s:g} s"
        return (
            f"the checkpoint {self._folder.path} belongs to run {owner.run} ({_where(owner)}), renewed {age:.1f} s "
            f"ago; {what}, use another checkpoint.path, or set checkpoint.take_over: true"
        )


def read_owner(folder: Folder) -> Owner | None:
    """Return who holds the lease of a folder: dead or alive, None if nobody does or the file says nothing."""
    content = folder.read(LEASE_FILE)
    try:
        return None if content is None else msgspec.json.decode(content, type=Owner)
    except (msgspec.MsgspecError, ValueError):
        return None


def check_owner(folder: Folder, run: str) -> None:
    """Raise `LeaseError` if another run than this one holds the lease."""
    owner = read_owner(folder)
    if owner is not None and owner.run != run:
        raise _lost(folder, run, owner)


def liveness(owner: Owner, *, now: float) -> str:
    """Return `alive`, `dead`, or `unknown` for a process of elsewhere that may still live."""
    if owner.boot and owner.boot == _boot():
        if not _exists(owner.pid):
            return "dead"
        started = _started(owner.pid)
        if started is not None:
            return "alive" if started == owner.started else "dead"
    return "dead" if now - owner.renewed_at > owner.lease_s else "unknown"


def _lost(folder: Folder, run: str, owner: Owner) -> LeaseError:
    return LeaseError(
        f"run {run} has lost the checkpoint {folder.path} to run {owner.run} ({_where(owner)}) and ends; one run at a "
        "time may write there: give each its own checkpoint.path"
    )


def _where(owner: Owner) -> str:
    return f"process {owner.pid} on {owner.host}"


def _boot() -> str:
    """Return what a pid is valid in: this machine since it started, and this name space; empty if it is not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # Of another user.
        return True
    return True


def _started(pid: int) -> int | None:
    """Return when a process of this machine started, -1 if it has ended, None if that cannot be read."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, *rest = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return -1 if state in ("Z", "X") else int(rest[18])


def describe(owner: Owner) -> dict[str, Any]:
    """Return an owner as JSON-able values, for people."""
    shown: dict[str, Any] = json.loads(msgspec.json.encode(owner))
    del shown["token"]
    return shown

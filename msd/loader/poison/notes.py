"""Crash notes: what each loader host of a run has in hand, in files that outlive it, and who reads them.

A host's file is locked as long as the host lives, in whatever way it ends: the kernel lets go of the lock. So whoever
gets the lock knows that the writer is gone, and that nobody else reads the same notes.
"""

import contextlib
import fcntl
import json
import mmap
import os
import shutil
import struct
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from msd.loader.poison.slots import HEAD_BYTES, InHand, Slot, Slots, in_hand, to_blame, writer

SLOTS = 1024
"""Threads of one host that transform rows, at most."""
STALE_S = 10.0
"""A folder of another run in which all are gone is kept so long for those that take their place."""

_NAMES = struct.Struct("<4sI")
_NAMES_AT = 32
_MAGIC = b"msd1"
_SUFFIX = ".notes"
_own: set[str] = set()
"""Files of this process: closing one of them a second time would let go of its lock."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Rows that were in hand when a process ended or hung: one of them may be why."""

    rows: tuple[tuple[str, int], ...]
    """(source, ordinal)"""
    how: str
    """For people."""
    is_alone: bool = False
    """The row had been run apart, after it was in hand before when a process ended: it is why."""


def folder_of(run: str) -> Path:
    """Return the folder of a run's notes on this machine."""
    return Path(tempfile.gettempdir()) / f"msd-{run}-notes"


class CrashNotes:
    """The notes of one loader host."""

    def __init__(self, folder: Path, sources: Sequence[str]) -> None:
        """Make the file.

        Args:
            folder: Of the run on this machine; made if need be.
            sources: Names of all that may be in hand.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._path = folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}{_SUFFIX}"
        self._numbers = {name: number for number, name in enumerate(sources)}
        names = json.dumps(list(sources)).encode()
        end = Slots.size(SLOTS)
        _own.add(str(self._path))
        # Under its name only once it is locked: until then it would be taken for that of somebody who is gone.
        new = self._path.with_suffix(".new")
        self._file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(self._file, end + len(names))
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._shared = mmap.mmap(self._file, end + len(names))
            self._shared[end:] = names
            _NAMES.pack_into(self._shared, _NAMES_AT, _MAGIC, len(names))
            self._slots = Slots(self._shared, SLOTS)
            new.rename(self._path)
        except BaseException:
            os.close(self._file)
            new.unlink(missing_ok=True)
            raise

    def hold(
        self, source: str, ordinals: Sequence[int], *, is_alone: bool = False
    ) -> contextlib.AbstractContextManager[Slot]:
        """Note rows while a block runs; see `Slots.hold`."""
        return self._slots.hold(self._numbers[source], ordinals, is_alone=is_alone)

    def in_hand(self) -> list[InHand]:
        """Return what the threads of this host have in hand."""
        return self._slots.in_hand()

    def named(self, entries: Sequence[InHand], how: str) -> Ended:
        """Return what is in hand with the names of its sources."""
        return _named(entries, list(self._numbers), how)

    def mark(self, entries: Sequence[InHand], mark: str, *, is_told: bool) -> None:
        """Write down why this process ends now because of what is in hand."""
        for entry in entries:
            self._slots.mark(entry, mark, is_told=is_told)

    def beat(self) -> None:
        """Say that the threads of this process run."""
        self._slots.beat()
        # What is written through memory does not count as a change of the file for long.
        os.utime(self._file)

    def others(self) -> "Others":
        """Return who reads the notes of the other hosts of the run on this machine."""
        return Others(self._folder)

    def close(self) -> None:
        """Remove the file, and the folder with the last host that lives. Closing twice is fine."""
        if self._file < 0:
            return
        self._path.unlink(missing_ok=True)
        os.close(self._file)
        self._file = -1
        _own.discard(str(self._path))
        if not _is_lived_in(self._folder):
            shutil.rmtree(self._folder, ignore_errors=True)


class Others:
    """Reads what the other hosts of a run on this machine had in hand."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told: set[tuple[str, int]] = set()

    def left_behind(self, frozen_s: float | None = None) -> list[Ended]:
        """Return what processes had in hand that are gone; each is told to one reader only, once.

        Args:
            frozen_s: Also tell what a process has in hand whose threads have not run for so long: code that is not
                Python's may hold the interpreter's lock, and then it can do nothing about it itself.
        """
        found = []
        for path in _files_in(self._folder):
            with contextlib.suppress(OSError), _opened(path) as file:
                if file is not None and (ended := self._told_of(path, file, frozen_s)) is not None:
                    found.append(ended)
        return found

    def _told_of(self, path: Path, file: BinaryIO, frozen_s: float | None) -> Ended | None:
        if _is_gone(file):
            # Whoever read it removed it before the lock was free again.
            if not os.fstat(file.fileno()).st_nlink:
                return None
            shared = file.read()
            path.unlink()
            return _ended(shared, "ended")
        pid_beat = file.read(HEAD_BYTES)
        beat_ns = writer(pid_beat)[1]
        is_frozen = frozen_s is not None and time.monotonic_ns() - beat_ns > frozen_s * 1e9
        if not is_frozen or (str(path), beat_ns) in self._told:
            return None
        self._told.add((str(path), beat_ns))
        shared = pid_beat + file.read()
        return _ended(shared, f"did nothing for {frozen_s:g} s")


def left_behind(folder: Path) -> list[Ended]:
    """Return what processes of a run on this machine had in hand that are gone, once; see `Others.left_behind`."""
    return Others(folder).left_behind()


def remove_stale(besides: Path) -> None:
    """Remove the folders of other runs on this machine in which nobody has lived for a while."""
    for folder in besides.parent.glob("msd-*-notes"):
        with contextlib.suppress(OSError):
            newest = max(entry.stat().st_mtime for entry in (folder, *folder.iterdir()))
            is_ours = folder.stat().st_uid == os.getuid() and folder != besides
            if is_ours and time.time() - newest > STALE_S and not _is_lived_in(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _files_in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == _SUFFIX)
    except OSError:
        return []


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO | None]:
    """Yield another process's file, or None in place of one of this process."""
    if str(path) in _own:
        yield None
        return
    with open(path, "rb+") as file:
        yield file


def _is_gone(file: BinaryIO) -> bool:
    """Return whether the writer of a file is gone; who asks has the lock then until it closes the file."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_lived_in(folder: Path) -> bool:
    for path in _files_in(folder):
        with contextlib.suppress(FileNotFoundError), _opened(path) as file:
            if file is None or not _is_gone(file):
                return True
    return False


def _ended(shared: bytes, what: str) -> Ended | None:
    """Return what a process had in hand that it did not tell itself."""
    end = Slots.size(SLOTS)
    if len(shared) < end:
        return None
    magic, length = _NAMES.unpack_from(shared, _NAMES_AT)
    if magic != _MAGIC:
        return None
    blamed = to_blame([entry for entry in in_hand(shared, end) if not entry.is_told])
    if not blamed:
        return None
    how = blamed[0].mark or f"process {writer(shared)[0]} {what}"
    return _named(blamed, json.loads(shared[end : end + length]), how)


def _named(entries: Sequence[InHand], names: Sequence[str], how: str) -> Ended:
    rows = [(names[entry.source], ordinal) for entry in entries for ordinal in entry.ordinals]
    return Ended(tuple(dict.fromkeys(rows)), how, is_alone=any(entry.is_alone for entry in entries))

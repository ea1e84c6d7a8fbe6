"""What the threads of a process have in hand, in memory that is shared: still there when the process is not.

A page of a file (or of memory without a name) belongs to the kernel: what a thread wrote there before a row's
transforms ran stays readable when the process was ended by any signal, or holds the interpreter's lock for ever.
"""

import contextlib
import mmap
import os
import struct
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

MOST_ROWS = 64
"""Rows that one thread has in hand at most."""
WHOLE = -1
"""In place of an ordinal: all rows in hand are done together."""

_HEAD = struct.Struct("<qq")
"""Process id, and when the process last said that its threads run."""
_SLOT = struct.Struct("<qqiiq")
"""Since when (0: nothing in hand), the ordinal that is at it, source, number of rows, whether it is alone."""
_AT = struct.Struct("<qq")
_MARK = struct.Struct("<q96s")
"""Whether the mark was told, and the mark."""
_MARK_AT = 32
_ROWS_AT = 160
_SLOT_BYTES = _ROWS_AT + 8 * MOST_ROWS
HEAD_BYTES = 64

Map: TypeAlias = mmap.mmap | memoryview | bytearray | bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class InHand:
    """What one thread has in hand."""

    slot: int
    source: int
    """Number of the source; what it is called is for others to know."""
    ordinals: tuple[int, ...]
    """One, if it is known which row is at it; else all that are done together."""
    since_ns: int
    """By the clock that `time.monotonic_ns` reads, which all processes of a machine share."""
    is_alone: bool
    """It was run apart because it was in hand before when a process ended."""
    mark: str
    """Why its process was ended because of it; empty if it was not."""
    is_told: bool
    """The mark was told before the process ended."""

    def age_s(self, now_ns: int) -> float:
        """Return for how long it has been in hand."""
        return (now_ns - self.since_ns) * 1e-9


class Slots:
    """A slot for each thread that transforms rows; written by its process, read by any."""

    def __init__(self, shared: mmap.mmap, count: int) -> None:
        """Use memory of at least `size(count)` bytes that holds zeros, and write who writes here."""
        self._shared = shared
        self._free = deque(reversed(range(count)))
        self.beat()

    @staticmethod
    def size(count: int) -> int:
        """Return the bytes that so many slots need."""
        return HEAD_BYTES + count * _SLOT_BYTES

    def beat(self) -> None:
        """Say that the threads of this process run."""
        _HEAD.pack_into(self._shared, 0, os.getpid(), time.monotonic_ns())

    @contextlib.contextmanager
    def hold(self, source: int, ordinals: Sequence[int], *, is_alone: bool = False) -> Iterator["Slot"]:
        """Note rows while the block runs: at most `MOST_ROWS`, of one source."""
        slot = self._free.pop()
        place = HEAD_BYTES + slot * _SLOT_BYTES
        try:
            # When it began comes last: only then the slot counts.
            struct.pack_into(f"<{len(ordinals)}q", self._shared, place + _ROWS_AT, *ordinals)
            _MARK.pack_into(self._shared, place + _MARK_AT, 0, b"")
            _SLOT.pack_into(self._shared, place, 0, WHOLE, source, len(ordinals), is_alone)
            _AT.pack_into(self._shared, place, time.monotonic_ns(), WHOLE)
            yield Slot(self._shared, place)
        finally:
            _AT.pack_into(self._shared, place, 0, WHOLE)
            self._free.append(slot)

    def mark(self, entry: InHand, mark: str, *, is_told: bool = False) -> None:
        """Write down why the process is ended now because of what is in hand."""
        place = HEAD_BYTES + entry.slot * _SLOT_BYTES
        _MARK.pack_into(self._shared, place + _MARK_AT, is_told, mark.encode()[:96])

    def in_hand(self) -> list[InHand]:
        """Return what all threads have in hand."""
        return in_hand(self._shared)


class Slot:
    """The slot of one thread while it has rows in hand."""

    __slots__ = ("_place", "_shared")

    def __init__(self, shared: mmap.mmap, place: int) -> None:
        self._shared = shared
        self._place = place

    def at(self, ordinal: int) -> None:
        """Note which row is at it from now on, or `WHOLE`."""
        _AT.pack_into(self._shared, self._place, time.monotonic_ns(), ordinal)


def in_hand(shared: Map, end: int | None = None) -> list[InHand]:
    """Return what the threads of a process have in hand, or had when it ended.

    Args:
        shared: Memory that a `Slots` writes, or a copy.
        end: Byte after the last slot; None is the end of the memory.
    """
    found = []
    last = (len(shared) if end is None else end) - _SLOT_BYTES
    for slot, place in enumerate(range(HEAD_BYTES, last + 1, _SLOT_BYTES)):
        since_ns, at, source, count, is_alone = _SLOT.unpack_from(shared, place)
        if not since_ns or not 0 < count <= MOST_ROWS:
            continue
        ordinals = (at,) if at != WHOLE else struct.unpack_from(f"<{count}q", shared, place + _ROWS_AT)
        is_told, mark = _MARK.unpack_from(shared, place + _MARK_AT)
        found.append(InHand(
            slot=slot, source=source, ordinals=ordinals, since_ns=since_ns, is_alone=bool(is_alone),
            mark=mark.rstrip(b"\0").decode(errors="replace"), is_told=bool(is_told),
        ))  # fmt: skip
    return found


def writer(shared: Map) -> tuple[int, int]:
    """Return the process that writes here, and when it last said that its threads run, in monotonic nanoseconds."""
    pid, beat_ns = _HEAD.unpack_from(shared, 0)
    return pid, beat_ns


def to_blame(entries: Sequence[InHand]) -> list[InHand]:
    """Return what may be why a process ended: what it was ended for, else a row that was run apart, else all."""
    marked = [entry for entry in entries if entry.mark]
    alone = [entry for entry in entries if entry.is_alone]
    return marked or alone or list(entries)

"""The ledger of a source without an end: which rows came when, as files that are made once and never changed.

Entry k is a file of its own, made exclusively: of any number of hosts that admit at once one wins, and the others read
what it wrote. Each entry names the chain of all before it, so that two ledgers which differ anywhere are told apart.
Every so many entries are written once more into one file, so that a start need not open each; entries stay, since it is
their names that keep two hosts from giving one number to two things.
"""

import hashlib
import json
import logging
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from msd.core.state import canonical_json
from msd.core.text import text_of
from msd.errors import SourceError
from msd.sources.spool import cannot_write, create, sweep

SEGMENT = 1024
"""Entries that are written together once there are so many more."""
HEADER = "ledger.json"
_LOG = logging.getLogger("msd")
_VERSION = 1
_KEPT_SEGMENTS = 2
_KEPT_ENTRIES = 256

Takes = Literal["files", "lines", "queue"]


class Admission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry: rows that are given the ordinals after those of the entry before."""

    kind: Literal["msd admission"] = "msd admission"
    version: int = _VERSION
    number: int
    first: int
    """Ordinal of its first row."""
    before: str
    """Chain of the entry before, or what the ledger began with."""
    name: str
    """Of the file that holds the rows, relative to where the source looks, or to the spool."""
    format: str
    """How that file is read: a format of shards, `lines`, or `rows` for what was spooled."""
    nbytes: int
    """Of the file; of a file that grows, of the lines that were taken."""
    stamp: str = ""
    """Tells the file from one that was written later; see `msd.sources.versions`."""
    digests: list[str] = []
    """Of the bytes of each block, for lines."""
    first_row: int = 0
    """Number of the first row within the file."""
    blocks: list[tuple[int, int, int, int]]
    """(unit, rows, offset, bytes), as `ShardIndex` has them."""
    position: Any = None
    """Where a queue stood after these rows, if it says."""
    chain: str = ""
    """Digest of all above, and so of all entries before."""

    @property
    def num_rows(self) -> int:
        """Rows that it admits; it may be none."""
        return sum(rows for _, rows, _, _ in self.blocks)

    @property
    def end(self) -> int:
        """Ordinal after its last row."""
        return self.first + self.num_rows


def entry_name(number: int) -> str:
    """Return the name of an entry's file."""
    return f"admission-{number:08d}.json"


def segment_name(number: int) -> str:
    """Return the name of a file of `SEGMENT` entries."""
    return f"segment-{number:06d}.jsonl"


class Ledger:
    """Reads and extends a ledger. For any number of threads and processes; nothing is written before `append`."""

    def __init__(self, folder: str, *, source: str, takes: Takes) -> None:
        """Name a ledger that is there, or will be made.

        Args:
            folder: The spool.
            source: Whose it is, for its header and for errors.
            takes: What is admitted.
        """
        self.folder = Path(folder)
        self._source = source
        self._takes = takes
        self._ends = array("q")
        """Ordinal after the last row of each entry."""
        self._names: set[str] = set()
        self._origin = self._chain = hashlib.blake2b(
            canonical_json([_VERSION, source, takes]).encode(), digest_size=16
        ).hexdigest()
        self._is_checked = False
        self._segments: OrderedDict[int, list[bytes]] = OrderedDict()
        self._entries: OrderedDict[int, Admission] = OrderedDict()
        self._unsettled = 0
        """The first entry that may lie in no segment yet."""
        self._lock = threading.RLock()

    def __len__(self) -> int:
        """Return the number of entries that are known."""
        return len(self._ends)

    @property
    def num_rows(self) -> int:
        """Rows of the entries that are known."""
        return self._ends[-1] if self._ends else 0

    @property
    def chain(self) -> str:
        """Digest of the entries that are known."""
        return self._chain

    def has(self, name: str) -> bool:
        """Return whether an entry that is known has a file of this name."""
        return name in self._names

    def last(self) -> Admission | None:
        """Return the newest entry that is known."""
        with self._lock:
            return self.entry(len(self._ends) - 1) if self._ends else None

    def find(self, ordinal: int) -> Admission | None:
        """Return the entry of a row, None if none that is known has it."""
        with self._lock:
            if not 0 <= ordinal < self.num_rows:
                return None
            return self.entry(bisect_right(self._ends, ordinal))

    def entry(self, number: int) -> Admission:
        """Return an entry that is known.

        Raises:
            SourceError: If it is not what was written.
        """
        with self._lock:
            found = self._entries.pop(number, None)
            if found is None:
                line = self._line(number)
                found = self._read(number, line)
            self._keep(found)
            return found

    def chain_at(self, number: int) -> str | None:
        """Return the chain of the first so many entries, None if there are not so many."""
        with self._lock:
            if number > len(self._ends):
                self.refresh()
            if number > len(self._ends):
                return None
            return self._origin if number == 0 else self.entry(number - 1).chain

    def refresh(self) -> None:
        """Read what was admitted since the last time.

        Raises:
            SourceError: If an entry is damaged, of another ledger, or cannot be read.
        """
        with self._lock:
            if not self._is_checked and not self._check_header():
                return
            while True:
                number = len(self._ends)
                if number % SEGMENT == 0 and self._take_segment(number // SEGMENT):
                    continue
                content = self._content(entry_name(number))
                if content is None:
                    return
                found = self._read(number, content)
                self._expect_next(found)
                self._take(found)

    def append(self, **said: Any) -> Admission | None:
        """Admit what an entry says, if no other has come in its place.

        Args:
            said: The fields of `Admission` that say what is admitted.

        Returns:
            The entry, durable; or None: others were there first, and `refresh` was called. What was to be admitted may
            be among theirs.
        """
        with self._lock:
            self._make()
            number = len(self._ends)
            entry = Admission(number=number, first=self.num_rows, before=self._chain, **said)
            entry = msgspec.structs.replace(entry, chain=_digest(msgspec.to_builtins(entry)))
            if not create(self.folder, entry_name(number), _line_of(entry)):
                self.refresh()
                return None
            self._take(entry)
            self._settle()
            return entry

    def _make(self) -> None:
        """Make the folder and its header, if they are not there."""
        if self._is_checked:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._named(cannot_write(self.folder, error)) from None
        header = {"kind": "msd ledger", "version": _VERSION, "source": self._source, "takes": self._takes}
        create(self.folder, HEADER, (json.dumps(header) + "\n").encode())
        sweep(self.folder)
        self._check_header()

    def _check_header(self) -> bool:
        """Return whether there is a ledger; refuse one that is another source's."""
        content = self._content(HEADER)
        if content is None:
            return False
        try:
            header = json.loads(content)
            kind, version = header["kind"], header["version"]
            source, takes = header["source"], header["takes"]
        except (ValueError, KeyError, TypeError):
            raise self._damaged(HEADER, "it is no header of a ledger") from None
        if kind != "msd ledger" or version != _VERSION:
            raise self._damaged(HEADER, f"it is a {kind!r} of version {version!r}, this release reads {_VERSION}")
        if (source, takes) != (self._source, self._takes):
            raise SourceError(
                f"sources.{self._source}: spool {self.folder} is the ledger of source {source!r}, which takes {takes}, "
                f"not of one that takes {self._takes}; give each source a spool of its own"
            )
        self._is_checked = True
        return True

    def _take(self, entry: Admission) -> None:
        self._ends.append(entry.end)
        self._chain = entry.chain
        if self._takes == "files":
            self._names.add(entry.name)
        self._keep(entry)

    def _keep(self, entry: Admission) -> None:
        self._entries[entry.number] = entry
        while len(self._entries) > _KEPT_ENTRIES:
            self._entries.popitem(last=False)

    def _expect_next(self, entry: Admission) -> None:
        if entry.before != self._chain or entry.first != self.num_rows:
            raise self._damaged(
                entry_name(entry.number), "it follows other entries than those that are there: some were lost or mixed"
            )

    # Entries that were written together.

    def _take_segment(self, number: int) -> bool:
        """Take the entries of a segment; return False where there is none that is whole."""
        lines = self._segment(number)
        if lines is None:
            return False
        first = self._read(number * SEGMENT, lines[0])
        self._expect_next(first)
        for line in lines:
            said = json.loads(line)
            self._ends.append(said["first"] + sum(block[1] for block in said["blocks"]))
            if self._takes == "files":
                self._names.add(said["name"])
        self._chain = said["chain"]
        self._unsettled = len(self._ends)
        return True

    def _segment(self, number: int) -> list[bytes] | None:
        if number in self._segments:
            self._segments.move_to_end(number)
            return self._segments[number]
        content = self._content(segment_name(number))
        if content is None:
            return None
        *lines, digest = content.splitlines() or [b""]
        if len(lines) != SEGMENT or digest.decode("latin-1") != _digest_of_lines(lines):
            _LOG.warning("%s: %s is damaged and not used: its entries are read", self.folder, segment_name(number))
            return None
        self._segments[number] = lines
        while len(self._segments) > _KEPT_SEGMENTS:
            self._segments.popitem(last=False)
        return lines

    def _settle(self) -> None:
        """Write entries together, once there are enough that were not. Whoever does it writes the same."""
        while len(self._ends) - self._unsettled >= SEGMENT:
            number = self._unsettled // SEGMENT
            if not (self.folder / segment_name(number)).exists():
                lines = [self._line(one).rstrip(b"\n") for one in range(number * SEGMENT, (number + 1) * SEGMENT)]
                content = b"\n".join([*lines, _digest_of_lines(lines).encode()]) + b"\n"
                create(self.folder, segment_name(number), content)
            self._unsettled += SEGMENT

    # Files.

    def _line(self, number: int) -> bytes:
        lines = self._segment(number // SEGMENT) if number < self._unsettled else None
        if lines is not None:
            return lines[number % SEGMENT]
        content = self._content(entry_name(number))
        if content is None:
            raise self._damaged(entry_name(number), "it is gone")
        return content

    def _read(self, number: int, line: bytes) -> Admission:
        try:
            said = json.loads(line)
            entry = msgspec.convert(said, Admission, strict=True)
            is_whole = entry.chain == _digest(said) and entry.number == number
        except (ValueError, msgspec.ValidationError, RecursionError) as error:
            raise self._damaged(entry_name(number), text_of(error)[:100]) from None
        if not is_whole:
            raise self._damaged(entry_name(number), "it does not say what it said when it was written")
        return entry

    def _content(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SourceError(
                f"sources.{self._source}: {self.folder / name} cannot be read ({error.strerror}); make it readable"
            ) from None

    def _damaged(self, name: str, how: str) -> SourceError:
        return SourceError(
            f"sources.{self._source}: {self.folder / name} is damaged ({how}); bring it back from a copy, and nothing "
            "is lost; without it, what was admitted from there on must begin anew in another spool"
        )

    def _named(self, error: SourceError) -> SourceError:
        return SourceError(f"sources.{self._source}: {error}")


def _digest(said: Mapping[str, Any]) -> str:
    text = canonical_json({key: value for key, value in said.items() if key != "chain"})
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _digest_of_lines(lines: list[bytes]) -> str:
    return hashlib.blake2b(b"\n".join(lines), digest_size=16).hexdigest()


def _line_of(entry: Admission) -> bytes:
    return canonical_json(msgspec.to_builtins(entry)).encode() + b"\n"

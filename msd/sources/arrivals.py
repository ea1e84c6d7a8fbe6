"""What is new of a source without an end: files that appear in a folder, lines at the end of a file."""

import glob
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Protocol, TypeAlias

from msd.core.text import encodable, text_of
from msd.errors import SourceError
from msd.sources.config import GROWING, ReaderConfig
from msd.sources.discover import EXTENSIONS, matching, walk
from msd.sources.files import Opener, ShardFile, reading
from msd.sources.found import expand_braces, fixed_part
from msd.sources.ledger import Admission, Ledger
from msd.sources.lines import LineScanner
from msd.sources.open import shard_format
from msd.sources.versions import version_of

Offer: TypeAlias = Mapping[str, Any]
"""What an entry would say: fields of `Admission`."""

NOT_YET = (".tmp", ".part")
"""Endings of names under which files are written before they are renamed."""
BLOCKS_AT_ONCE = 8
"""Of lines that are admitted together, at most."""
_LOG = logging.getLogger("msd")
_FORMATS = {ending: chosen for chosen, endings in EXTENSIONS.items() if chosen != "hf" for ending in endings}


class Arrivals(Protocol):
    """Looks for what is new. Called by one thread at a time."""

    def next(self, ledger: Ledger) -> Offer | None:
        """Return what to admit next, None if there is nothing: a bounded look, which waits for nobody.

        Raises:
            SourceError: If what was admitted is no longer there as it was.
        """
        ...

    def admitted(self, entry: Admission) -> None:
        """Note that what was offered last was admitted, durably."""
        ...

    def lack(self) -> str:
        """Return in words what would be admitted, and what keeps some of it from that."""
        ...

    def close(self) -> None:
        """Let go of what is held."""
        ...


def grows(path: str) -> bool:
    """Return whether a path is that of one file that grows, rather than of files that appear."""
    return path.lower().endswith(GROWING) and not glob.has_magic(path) and expand_braces(path) == [path]


def root_of(path: str) -> str:
    """Return the folder that names of admitted files are relative to."""
    path = os.path.abspath(os.path.expanduser(path))
    if grows(path):
        return os.path.dirname(path)
    patterns = expand_braces(path)
    if len(patterns) == 1 and not glob.has_magic(path):
        return path
    return os.path.commonpath([fixed_part(pattern) for pattern in patterns])


class FilesThatAppear:
    """Files in a folder, each taken once and whole, the one written first before the others."""

    def __init__(self, config: ReaderConfig, *, now: Callable[[], float] = time.time) -> None:
        """Look where a configuration says.

        Args:
            config: Of the source.
            now: The clock that files are dated by.
        """
        assert isinstance(config.path, str)
        self._config = config
        self._path = os.path.abspath(os.path.expanduser(config.path))
        self._root = root_of(config.path)
        self._now = now
        self._found: deque[ShardFile] = deque()
        self._offer: tuple[ShardFile, Offer] | None = None
        self._unreadable: dict[str, tuple[str, str]] = {}
        """By name: the version that was tried, and why it cannot be read."""
        self._unsettled: list[str] = []

    def next(self, ledger: Ledger) -> Offer | None:
        """Return the next file that is complete; see `Arrivals`."""
        self._drop_known(ledger)
        if not self._found:
            self._found.extend(self._listed(ledger))
        while self._found:
            offer = self._indexed(self._found[0])
            if offer is not None:
                return offer
            self._found.popleft()
        return None

    def admitted(self, entry: Admission) -> None:
        """Go on to the next file."""
        if self._found and self._found[0].name == entry.name:
            self._found.popleft()
        self._unreadable.pop(entry.name, None)

    def lack(self) -> str:
        """Return what is looked for, and which files wait."""
        said = f"it waits for files to appear in {self._path}"
        if self._unsettled:
            first, more = self._unsettled[0], len(self._unsettled) - 1
            said += f"; {first}{f' and {more} more' if more else ''} may still be written"
        if self._unreadable:
            (name, (_, why)), more = next(iter(self._unreadable.items())), len(self._unreadable) - 1
            said += f"; {name}{f' and {more} more' if more else ''} cannot be read ({why})"
        return said

    def close(self) -> None:
        """Forget what was found."""
        self._found.clear()

    def _drop_known(self, ledger: Ledger) -> None:
        while self._found and ledger.has(self._found[0].name):
            self._found.popleft()

    def _listed(self, ledger: Ledger) -> list[ShardFile]:
        """Return new files that are complete, by (time, name)."""
        now, waiting, ready = self._now(), [], []
        for path in self._paths():
            name = os.path.relpath(path, self._root).replace(os.sep, "/")
            if ledger.has(name) or format_of(name) is None or name.lower().endswith(NOT_YET):
                continue
            if any(piece.startswith(".") for piece in name.split("/")):
                continue
            try:
                status = os.stat(path)
            except OSError:
                continue
            file = ShardFile(name, path, status.st_size, version_of(status))
            if not status.st_size or now - status.st_mtime < self._config.settle_s:
                waiting.append(name)
            elif self._unreadable.get(name, ("",))[0] != file.version:
                ready.append((status.st_mtime_ns, file))
        self._unsettled = sorted(waiting)
        return [file for _, file in sorted(ready)]

    def _paths(self) -> Iterator[str]:
        try:
            if os.path.isdir(self._path):
                yield from walk(self._path)
                return
            for pattern in expand_braces(self._path):
                yield from (path for path in matching(pattern) if os.path.isfile(path))
        except SourceError:
            # What was a folder a moment ago; the next look says more.
            if os.path.isdir(self._root):
                raise

    def _indexed(self, file: ShardFile) -> Offer | None:
        """Return the offer of a file, None if it cannot be read as it is: it is tried again once it changed."""
        if self._offer is not None and self._offer[0] == file:
            return self._offer[1]
        chosen = format_of(file.name)
        assert chosen is not None, "others are not listed"
        try:
            index = shard_format(chosen)[0](file, self._config, Opener())
            with reading(file.path):
                is_same = version_of(os.stat(file.path)) == file.version
        except SourceError as error:
            self._leave(file, text_of(error))
            return None
        if not is_same:
            return None
        columns = (index.unit_B, index.num_rows_B, index.offset_B, index.nbytes_B)
        offer = {
            "name": file.name,
            "format": chosen,
            "nbytes": file.nbytes,
            "stamp": file.version,
            "blocks": list(zip(*(column.tolist() for column in columns), strict=True)),
        }
        self._offer = file, offer
        return offer

    def _leave(self, file: ShardFile, why: str) -> None:
        self._unreadable[file.name] = file.version, encodable(why)[:200]
        _LOG.warning("%s is left out until it is written again: %s", encodable(file.path), encodable(why))


class LinesThatAppear:
    """Whole lines at the end of one file. What was taken of it must stay as it is."""

    def __init__(self, config: ReaderConfig) -> None:
        """Look where a configuration says."""
        assert isinstance(config.path, str)
        self._path = os.path.abspath(os.path.expanduser(config.path))
        self._block_bytes = config.block_bytes
        self._known: tuple[int, int] | None = None
        """Device and number of the file of which it is known that it holds what was taken."""
        self._half = 0

    def next(self, ledger: Ledger) -> Offer | None:
        """Return lines that are complete and were not taken yet; see `Arrivals`."""
        last = ledger.last()
        start = 0 if last is None else last.blocks[-1][2] + last.blocks[-1][3]
        first_row = 0 if last is None else last.first_row + last.num_rows
        try:
            file = open(self._path, "rb")  # noqa: SIM115
        except FileNotFoundError:
            if last is not None:
                raise changed_lines(self._path, start, "it is gone") from None
            return None
        with reading(self._path), file:
            status = os.fstat(file.fileno())
            if status.st_size < start:
                raise changed_lines(self._path, start, f"it has {status.st_size} bytes now")
            if last is not None and self._known != (status.st_dev, status.st_ino):
                check_lines(self._path, last, file.fileno())
            self._known = status.st_dev, status.st_ino
            data = self._whole_lines(file.fileno(), start, status.st_size)
        if not data:
            return None
        blocks: list[tuple[int, int, int, int]] = []
        digests: list[str] = []
        at = 0
        for rows, nbytes in self._cut(data):
            blocks.append((len(blocks), rows, start + at, nbytes))
            digests.append(digest_of(data[at : at + nbytes]))
            at += nbytes
        return {
            "name": os.path.basename(self._path),
            "format": "lines",
            "nbytes": len(data),
            "digests": digests,
            "first_row": first_row,
            "blocks": blocks,
        }

    def admitted(self, entry: Admission) -> None:
        """Go on behind these lines: the next look reads the ledger."""

    def lack(self) -> str:
        """Return what is looked for."""
        half = f"; {self._half} bytes of a line that has not ended wait" if self._half else ""
        return f"it waits for lines to be appended to {self._path}{half}"

    def close(self) -> None:
        """Nothing is held."""

    def _cut(self, data: bytes) -> list[tuple[int, int]]:
        scanner = LineScanner(self._block_bytes)
        return [*scanner.feed(data), *scanner.finish()]

    def _whole_lines(self, descriptor: int, start: int, end: int) -> bytes:
        """Return as many whole lines as are taken at once; one that is longer is taken alone."""
        most = self._block_bytes * BLOCKS_AT_ONCE
        while True:
            data = _read(descriptor, start, min(most, end - start))
            whole = data[: data.rfind(b"\n") + 1]
            self._half = 0 if whole else len(data)
            if whole or start + most >= end:
                return whole
            most *= 2


def check_lines(path: str, entry: Admission, descriptor: int) -> None:
    """Refuse a file that does not hold what was taken of it.

    Raises:
        SourceError: Naming the file.
    """
    for (_, _, offset, nbytes), digest in zip(entry.blocks, entry.digests, strict=True):
        if digest_of(_read(descriptor, offset, nbytes)) != digest:
            raise changed_lines(path, offset + nbytes, f"bytes {offset} to {offset + nbytes} are others now")


def changed_lines(path: str, taken: int, how: str) -> SourceError:
    """Return the error for a file that grew and was then cut, replaced or rewritten."""
    return SourceError(
        f"{path} was cut, replaced or rewritten: its first {taken} bytes were taken, and {how}; bring the file back "
        "and have lines only appended (what is rotated is a folder of files: path: DIR/*.jsonl), or begin with another "
        "spool"
    )


def digest_of(data: bytes) -> str:
    """Return what tells bytes from others."""
    return blake2b(data, digest_size=8).hexdigest()


def _read(descriptor: int, offset: int, nbytes: int) -> bytes:
    pieces = []
    while nbytes > 0 and (piece := os.pread(descriptor, nbytes, offset)):
        pieces.append(piece)
        offset, nbytes = offset + len(piece), nbytes - len(piece)
    return b"".join(pieces)


def format_of(name: str) -> str | None:
    """Return the format of shards that a name says, None if it says none."""
    lower = name.lower()
    return next((chosen for ending, chosen in _FORMATS.items() if lower.endswith(ending)), None)

"""Bytes of a source's files: local ones, or any fsspec URL; a few open at a time, errors in one voice."""

import io
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar, cast

from msd.core.index import Shard
from msd.core.seeds import raw_words
from msd.errors import SourceError

T = TypeVar("T")

MAX_OPEN_FILES = 4
"""Files that one reader holds open."""
NUM_RETRIES = 3
"""How often a remote operation that failed is tried again."""

_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_MAGIC = (
    (b"PAR1", "a Parquet file"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data"),
    (b"ARROW1", "an Arrow IPC file"),
    (b"FEA1", "a Feather V1 file"),
    (b"\xff\xff\xff\xff", "an Arrow IPC stream"),
    (b"ORC", "an ORC file"),
    (b"Obj\x01", "an Avro file"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ", "xz data"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"%PDF", "a PDF"),
    (b"\x89HDF", "an HDF5 file"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
    (b"version https://git-lfs", "a Git LFS pointer: the data itself was not fetched"),
    (b"<!DOCTYPE", "an HTML page"),
    (b"<html", "an HTML page"),
)


class ShardFile(NamedTuple):
    """One file of a source, as it was found."""

    name: str
    """Path relative to the source's root: the shard's identity."""
    path: str
    """Where it lies: an absolute local path or an fsspec URL."""
    nbytes: int
    version: str
    """Changes when the file changes: size and modification time, or the etag of an object store."""


class Opener:
    """Opens local paths plainly and URLs through fsspec, with retries."""

    def __init__(
        self, storage_options: Mapping[str, Any] | None = None, *, sleep: Callable[[float], None] = time.sleep
    ):
        """Remember how to reach remote files.

        Args:
            storage_options: Passed to fsspec.
            sleep: Waits between tries.
        """
        self._options = dict(storage_options or {})
        self._sleep = sleep

    def open(self, path: str) -> BinaryIO:
        """Return the file at `path`, to be read from any position.

        Raises:
            OSError: If it cannot be opened, for a remote file after `NUM_RETRIES` more tries.
        """
        if is_local(path):
            return open(path, "rb")
        return cast(BinaryIO, RemoteFile(path, self._options, sleep=self._sleep))


class RemoteFile(io.RawIOBase):
    """A remote file that survives transient errors: it is opened again and goes on at its position."""

    def __init__(self, path: str, storage_options: Mapping[str, Any], *, sleep: Callable[[float], None] = time.sleep):
        """Look up the file; it is opened at the first read."""
        import fsspec

        self._path = path
        self._sleep = sleep
        self._fs, self._fs_path = fsspec.core.url_to_fs(path, **storage_options)
        self._file: Any = None
        self._position = 0
        self._nbytes = int(retried(lambda: self._fs.info(self._fs_path)["size"], path, sleep=sleep) or 0)

    def readable(self) -> bool:  # noqa: D102
        return True

    def seekable(self) -> bool:  # noqa: D102
        return True

    def tell(self) -> int:  # noqa: D102
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:  # noqa: D102
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._nbytes}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: D102
        data = retried(lambda: self._read(len(buffer)), self._path, sleep=self._sleep, after=self._drop)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:  # noqa: D102
        self._drop()
        super().close()

    def _read(self, size: int) -> bytes:
        if self._file is None:
            self._file = self._fs.open(self._fs_path, "rb")
        self._file.seek(self._position)
        return bytes(self._file.read(size))

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()


def retried(
    action: Callable[[], T],
    address: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
    after: Callable[[], None] = lambda: None,
) -> T:
    """Return what `action` returns, trying again after transient errors: 0.2, 0.4, 0.8 s and up to half as much more.

    The jitter belongs to (address, try), so that many readers do not come back at once.

    Raises:
        OSError: One that trying again cannot cure, or the last.
    """
    for attempt in range(NUM_RETRIES):
        try:
            return action()
        except _LASTING:
            raise
        except OSError:
            after()
            jitter = int(raw_words(1, "retry", address, os.getpid(), attempt)[0]) / 2**64
            sleep(0.2 * 2**attempt * (1 + jitter / 2))
    return action()


class OpenFiles(Generic[T]):
    """The few handles last used, by key; the one unused for longest is closed."""

    def __init__(
        self, open_one: Callable[[int], T], close_one: Callable[[T], object], *, limit: int = MAX_OPEN_FILES
    ) -> None:
        """Hold at most `limit` handles."""
        self._open_one = open_one
        self._close_one = close_one
        self._limit = limit
        self._handles: OrderedDict[int, T] = OrderedDict()

    def get(self, key: int) -> T:
        """Return the handle of `key`, opened now if need be."""
        if key in self._handles:
            self._handles.move_to_end(key)
        else:
            while len(self._handles) >= self._limit:
                self._close_one(self._handles.popitem(last=False)[1])
            self._handles[key] = self._open_one(key)
        return self._handles[key]

    def drop(self, key: int) -> None:
        """Close the handle of `key`, if it is open."""
        if key in self._handles:
            self._close_one(self._handles.pop(key))

    def __del__(self) -> None:
        # A reader that is dropped lets go of its files.
        self.close()

    def close(self) -> None:
        """Close all handles."""
        while self._handles:
            self._close_one(self._handles.popitem()[1])


def is_local(path: str) -> bool:
    """Return whether `path` is a plain path of this machine."""
    return "://" not in path and "::" not in path


def open_shard(opener: Opener, shard: Shard) -> BinaryIO:
    """Return the file of an indexed shard.

    Raises:
        SourceError: If it cannot be opened or is no longer the file that was indexed.
    """
    with reading(shard.path):
        file = opener.open(shard.path)
        nbytes = file.seek(0, os.SEEK_END)
        file.seek(0)
    if nbytes != shard.nbytes:
        file.close()
        raise changed(shard, f"it had {shard.nbytes} bytes and has {nbytes}")
    return file


@contextmanager
def closed_on_error(file: BinaryIO) -> Iterator[None]:
    """Close `file` if what it was opened for fails."""
    try:
        yield
    except BaseException:
        file.close()
        raise


@contextmanager
def reading(path: str, *more: type[Exception]) -> Iterator[None]:
    """Turn what can go wrong while reading `path` into a `SourceError` that names it."""
    try:
        yield
    except FileNotFoundError:
        raise SourceError(f"{path} does not exist (any more); restore it, or run `msd index` without it") from None
    except IsADirectoryError:
        raise SourceError(f"{path} is a directory where a file was expected; name the files inside it") from None
    except PermissionError:
        raise SourceError(f"{path}: permission denied; make it readable for this user, or leave it out") from None
    except Exception as error:
        if not isinstance(error, (OSError, EOFError, *more)):
            raise
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise SourceError(f"{path} cannot be read ({reason}); repair it or leave it out of the path") from error


def changed(shard: Shard, how: str) -> SourceError:
    """Return the error for a shard that is not the file that was indexed; `how` says in what it differs."""
    return SourceError(
        f"{shard.path} changed since it was indexed: {how}; run `msd index` and start a new run, or restore the file"
    )


def not_the_format(path: str, wanted: str, head: bytes) -> SourceError:
    """Return the error for a file that is not what its source says it is."""
    if not head:
        return SourceError(
            f"{path} is empty (0 bytes), so it is not {wanted}: probably an interrupted write; remove it or write it "
            "again"
        )
    found = describe(head)
    return SourceError(
        f"{path} is not {wanted}: it starts with {head[:8]!r}{f', {found}' if found else ''}; leave it out "
        "of the path, or set the format that it has"
    )


def describe(head: bytes) -> str | None:
    """Return what kind of file starts with `head`, or None if nothing is recognised."""
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if head[257:262] == b"ustar":
        return "a tar archive"
    return "no text" if b"\0" in head[:512] else None

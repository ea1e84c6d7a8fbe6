"""Bytes of a source's files: local ones, or any fsspec URL; a few open at a time, errors in one voice."""

import io
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar, cast

from msd.core.index import Shard
from msd.core.text import text_of
from msd.errors import SourceError
from msd.sources.descriptors import Lent, is_exhausted, too_many_open, with_descriptors
from msd.sources.remote import RemoteFile
from msd.sources.versions import has_changed, version_of

T = TypeVar("T")

MAX_OPEN_FILES = 4
"""Shards that one reader is in the midst of; how many files are open is bounded by process, see `descriptors`."""
_CHAIN = re.compile(r"[a-z][a-z0-9+.-]*::")


class ShardFile(NamedTuple):
    """One file of a source, as it was found."""

    name: str
    """Path relative to the source's root: the shard's identity."""
    path: str
    """Where it lies: an absolute local path or an fsspec URL."""
    nbytes: int
    version: str
    """Changes when the file changes: size and modification time, or the etag of an object store."""
    sha256: str = ""
    """What its content must have, where that is known: it is read whole when it is indexed."""


class Opener:
    """Opens local paths plainly and URLs through fsspec, with retries."""

    def __init__(
        self, storage_options: Mapping[str, Any] | None = None, *, sleep: Callable[[float], None] | None = None
    ) -> None:
        """Remember how to reach remote files.

        Args:
            storage_options: Passed to fsspec.
            sleep: Waits between tries; None is `time.sleep`.
        """
        self._options = dict(storage_options or {})
        self._sleep = sleep

    def open(self, path: str) -> BinaryIO:
        """Return the file at `path`, to be read from any position.

        Raises:
            OSError: If it cannot be opened, for a remote file after `NUM_RETRIES` more tries.
        """
        if is_local(path):
            return with_descriptors(lambda: open(path, "rb"))
        return cast(BinaryIO, self.open_remote(path))

    def open_remote(self, path: str) -> RemoteFile:
        """Return the file at a URL.

        Raises:
            OSError: If it cannot be reached after `NUM_RETRIES` more tries.
        """
        return RemoteFile(path, self._options, sleep=self._sleep)


class LocalFile(io.RawIOBase):
    """A local file of a source that may be closed for others between two reads; it then is opened again.

    Every read makes sure that the file is the one that was indexed: a file that is written anew while it is read would
    give rows of both.
    """

    def __init__(self, shard: Shard) -> None:
        """Open the file of an indexed shard.

        Raises:
            OSError: If it cannot be opened.
            SourceError: If it is no longer the file that was indexed.
        """
        self._shard = shard
        self._position = 0
        self._lent: Lent[BinaryIO] = Lent(lambda: _opened(shard.path), lambda file: file.close())
        with self._lent.use() as file, closed_on_error(self):
            check_unchanged(shard, os.fstat(file.fileno()))

    def readable(self) -> bool:  # noqa: D102
        return True

    def seekable(self) -> bool:  # noqa: D102
        return True

    def tell(self) -> int:  # noqa: D102
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:  # noqa: D102
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._shard.nbytes}[whence]
        self._position = start + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:  # noqa: D102
        with self._lent.use() as file:
            file.seek(self._position)
            data = file.read(-1 if size is None else size)
            check_unchanged(self._shard, os.fstat(file.fileno()))
        self._position += len(data)
        return data

    def readinto(self, buffer: Any) -> int:  # noqa: D102
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:  # noqa: D102
        self._lent.close()
        super().close()


def _opened(path: str) -> BinaryIO:
    return open(path, "rb")


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
    """Return whether `path` is a plain path of this machine, which may have `::` in its name."""
    if path.startswith(("/", "~")):
        return True
    if "://" in path:
        return False
    # `simplecache::/data/x` is a chain of fsspec; `part::1.jsonl` is one only if no such file lies here.
    return _CHAIN.match(path) is None or os.path.lexists(path)


def open_shard(opener: Opener, shard: Shard) -> BinaryIO:
    """Return the file of an indexed shard.

    Raises:
        SourceError: If it cannot be opened or is no longer the file that was indexed.
    """
    with reading(shard.path):
        if is_local(shard.path):
            return cast(BinaryIO, LocalFile(shard))
        file = opener.open_remote(shard.path)
    with closed_on_error(file):
        check_same(shard, file.seek(0, os.SEEK_END), file.version)
    file.seek(0)
    return cast(BinaryIO, file)


def check_unchanged(shard: Shard, status: os.stat_result) -> None:
    """Refuse a local file that is no longer the one that was indexed.

    Raises:
        SourceError: Naming the file and what differs.
    """
    check_same(shard, status.st_size, version_of(status))


def check_same(shard: Shard, nbytes: int, version: str) -> None:
    """Refuse a file of another size, or of another version where both are known.

    Raises:
        SourceError: Naming the file and what differs.
    """
    if nbytes != shard.nbytes:
        raise changed(shard, f"it had {shard.nbytes} bytes and has {nbytes}")
    if has_changed(shard.version, version):
        raise changed(shard, f"it still has {nbytes} bytes, but was written again")


@contextmanager
def closed_on_error(file: BinaryIO | io.IOBase) -> Iterator[None]:
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
        if isinstance(error, OSError) and is_exhausted(error):
            raise too_many_open(error) from error
        if not isinstance(error, (OSError, EOFError, *more)):
            raise
        reason = text_of(error)[:300] or type(error).__name__
        raise SourceError(f"{path} cannot be read ({reason}); repair it or leave it out of the path") from error


def changed(shard: Shard, how: str) -> SourceError:
    """Return the error for a shard that is not the file that was indexed; `how` says in what it differs."""
    return SourceError(
        f"{shard.path} changed since it was indexed: {how}; run `msd index` and start a new run, or restore the file"
    )

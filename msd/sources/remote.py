"""Files behind fsspec: reached again after transient errors, closed and opened again like local ones."""

import errno
import io
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from msd.core.seeds import raw_words
from msd.core.text import text_of
from msd.errors import MsdError
from msd.sources.descriptors import Lent
from msd.sources.versions import version_of_info

T = TypeVar("T")

NUM_RETRIES = 3
"""How often an operation that failed is tried again."""

_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_LASTING_NUMBERS = (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.ENODEV)


def is_lasting(error: OSError) -> bool:
    """Return whether trying again cannot help: the path is at fault, not the way there."""
    return isinstance(error, _LASTING) or error.errno in _LASTING_NUMBERS


def retried(
    action: Callable[[], T],
    address: str,
    *,
    sleep: Callable[[float], None] | None = None,
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
        except OSError as error:
            if is_lasting(error):
                raise
            after()
            jitter = int(raw_words(1, "retry", address, os.getpid(), attempt)[0]) / 2**64
            (sleep or time.sleep)(0.2 * 2**attempt * (1 + jitter / 2))
    return action()


@contextmanager
def reaching() -> Iterator[None]:
    """Turn what a store's library raises, which may be anything, into an `OSError` that says the same."""
    try:
        yield
    except (OSError, MsdError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {text_of(error)}") from error


class RemoteFile(io.RawIOBase):
    """A remote file that survives transient errors: it is opened again and goes on at its position."""

    def __init__(
        self, path: str, storage_options: Mapping[str, Any], *, sleep: Callable[[float], None] | None = None
    ) -> None:
        """Look up the file; it is opened at the first read."""
        import fsspec

        self._path = path
        self._sleep = sleep
        with reaching():
            self._fs, self._fs_path = fsspec.core.url_to_fs(path, **storage_options)
        self._lent: Lent[Any] = Lent(self._open, _close)
        self._position = 0
        info = retried(self._info, path, sleep=sleep)
        self._nbytes = int(info.get("size") or 0)
        self.version = version_of_info(info)
        """Of the file as it was looked up."""

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
        data = retried(lambda: self._read(len(buffer)), self._path, sleep=self._sleep, after=self._lent.close)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:  # noqa: D102
        # What could not be looked up has nothing to close.
        if hasattr(self, "_lent"):
            self._lent.close()
        super().close()

    def _info(self) -> Mapping[str, Any]:
        with reaching():
            found: Mapping[str, Any] = self._fs.info(self._fs_path)
            return found

    def _open(self) -> Any:
        return self._fs.open(self._fs_path, "rb")

    def _read(self, size: int) -> bytes:
        with reaching(), self._lent.use() as file:
            file.seek(self._position)
            return bytes(file.read(size))


def _close(file: Any) -> None:
    with suppress(OSError):
        file.close()

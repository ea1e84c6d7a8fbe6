"""A flat folder of small files, local or behind any fsspec URL: each is there whole, or not at all."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

from msd.errors import ConfigError, EngineError

WRITING = ".msd-writing-"
"""Beginning of the names of files that are not complete yet."""

_T = TypeVar("_T")


class Folder(Protocol):
    """What a store needs of a place for files. All methods raise `EngineError` naming the place and the reason."""

    @property
    def path(self) -> str:
        """For people."""
        ...

    def names(self) -> dict[str, int]:
        """Return the names of all files, with their sizes in bytes; none if there is no folder."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if there is none of that name."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all; it is durable when this returns, and takes the place of an older one."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...

    def sweep(self) -> None:
        """Remove what writers that were ended in the middle left; only while nobody else writes."""
        ...

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Keep others, on this machine at least, out of the same block meanwhile."""
        ...


def open_folder(path: str, storage_options: dict[str, Any] | None = None) -> Folder:
    """Return the folder at a path or URL. Nothing is made or written yet.

    Raises:
        ConfigError: If no file system serves the URL, or the path is no folder.
    """
    if "://" not in path and "::" not in path:
        return LocalFolder(path)
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    try:
        system, root = fsspec.core.url_to_fs(path, **(storage_options or {}))
    except Exception as error:  # Whatever the packages behind the URL raise.
        raise ConfigError(
            f"checkpoint.path {path!r} cannot be reached: {_reason(error)}; correct the URL or its storage_options, or "
            "install what fsspec needs for it"
        ) from None
    return LocalFolder(root) if isinstance(system, LocalFileSystem) else RemoteFolder(path, system, root)


class LocalFolder:
    """A folder of this machine, or of a file system that is mounted here."""

    def __init__(self, path: str) -> None:
        """Name a folder that is there, or will be made.

        Raises:
            ConfigError: If something else lies at the path.
        """
        self._root = Path(path).absolute()
        if self._root.exists() and not self._root.is_dir():
            raise ConfigError(f"checkpoint.path {path!r} is no folder; give the path of a folder, or of none yet")

    @property
    def path(self) -> str:
        """Absolute."""
        return str(self._root)

    def names(self) -> dict[str, int]:
        """See `Folder`."""
        found: dict[str, int] = {}
        try:
            with os.scandir(self._root) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        if entry.is_file():
                            found[entry.name] = entry.stat().st_size
        except FileNotFoundError:
            return {}
        except OSError as error:
            _refuse(self.path, "read", error)
        return found

    def read(self, name: str) -> bytes | None:
        """See `Folder`."""
        try:
            return (self._root / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            _refuse(self.path, f"read {name} in", error)

    def write(self, name: str, content: bytes) -> None:
        """See `Folder`."""
        temporary = None
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self._root, prefix=WRITING)
            with os.fdopen(descriptor, "wb") as out:
                write_all(out.fileno(), content)
                os.fchmod(out.fileno(), 0o644)
                os.fsync(out.fileno())
            os.replace(temporary, self._root / name)
            self._sync()
        except OSError as error:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
            _refuse(self.path, f"write {name} in", error)

    def remove(self, name: str) -> None:
        """See `Folder`."""
        try:
            (self._root / name).unlink(missing_ok=True)
        except OSError as error:
            _refuse(self.path, f"remove {name} in", error)

    def sweep(self) -> None:
        """See `Folder`."""
        for name in self.names():
            if name.startswith(WRITING):
                self.remove(name)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """See `Folder`: held by this process alone, and let go when it ends, however that is."""
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._root, os.O_RDONLY)
        except OSError as error:
            _refuse(self.path, "write", error)
        try:
            # Some network file systems lock no folders; then two that start at once find out when they renew.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _sync(self) -> None:
        descriptor = os.open(self._root, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class RemoteFolder:
    """A prefix of an object store, or of any other file system of fsspec: one put writes a file."""

    def __init__(self, path: str, system: Any, root: str) -> None:
        """Name a prefix.

        Args:
            path: The URL, for people.
            system: Of fsspec.
            root: The prefix, as `system` knows it.
        """
        self._path, self._system, self._root = path.rstrip("/"), system, root.rstrip("/")

    @property
    def path(self) -> str:
        """The URL."""
        return self._path

    def names(self) -> dict[str, int]:
        """See `Folder`."""

        def listed() -> dict[str, int]:
            self._system.invalidate_cache(self._root)
            entries = self._system.ls(self._root, detail=True)
            return {
                entry["name"].rpartition("/")[2]: int(entry.get("size") or 0)
                for entry in entries
                if entry["type"] == "file"
            }

        return self._call("read", listed, missing={})

    def read(self, name: str) -> bytes | None:
        """See `Folder`."""
        return self._call(f"read {name} in", lambda: bytes(self._system.cat_file(self._at(name))), missing=None)

    def write(self, name: str, content: bytes) -> None:
        """See `Folder`."""

        def put() -> None:
            try:
                self._system.pipe_file(self._at(name), content)
            except FileNotFoundError:  # Object stores have no folders; of those that have, some do not make them.
                self._system.makedirs(self._root, exist_ok=True)
                self._system.pipe_file(self._at(name), content)

        self._call(f"write {name} in", put)

    def remove(self, name: str) -> None:
        """See `Folder`."""
        self._call(f"remove {name} in", lambda: self._system.rm_file(self._at(name)), missing=None)

    def sweep(self) -> None:
        """See `Folder`: a put that was broken off leaves nothing."""

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """See `Folder`: object stores cannot; two that start at once find out when they renew."""
        return contextlib.nullcontext()

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _call(self, what: str, function: Callable[[], _T], **missing: _T) -> _T:
        try:
            return function()
        except Exception as error:  # File systems of fsspec raise errors of their own packages.
            if missing and isinstance(error, FileNotFoundError):
                return missing["missing"]
            _refuse(self.path, what, error)


def write_all(descriptor: int, content: bytes) -> None:
    """Write bytes to a file."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _refuse(path: str, what: str, error: Exception) -> NoReturn:
    raise EngineError(
        f"cannot {what} the checkpoint {path}: {_reason(error)}; free space or permissions there, or set another "
        "checkpoint.path; what was saved before is as it was"
    ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__

"""Files that are made once and never changed: whole and durable, or not there; of many who try, one makes it."""

import contextlib
import errno
import os
import tempfile
import time
from pathlib import Path

from msd.core.text import text_of
from msd.errors import SourceError

WRITING = ".msd-writing-"
"""Beginning of the names of files that are not complete yet."""
LEFT_S = 3600.0
"""A file that is not complete after so long has nobody any more who writes it."""
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def create(folder: Path, name: str, content: bytes) -> bool:
    """Make a file, unless there is one of that name; it is durable when this returns.

    Returns:
        Whether it was made now; False: somebody else did, and what they wrote stays.

    Raises:
        SourceError: If the folder cannot be written, or its file system has no links.
    """
    temporary = None
    try:
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=WRITING)
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
            out.flush()
            os.fchmod(out.fileno(), 0o644)
            os.fsync(out.fileno())
        made = _linked(temporary, folder / name)
        sync_folder(folder)
        return made
    except OSError as error:
        raise cannot_write(folder, error) from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def sweep(folder: Path) -> None:
    """Remove what writers left that were ended in the middle long ago."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(WRITING) and time.time() - entry.stat().st_mtime > LEFT_S:
                os.unlink(entry.path)


def sync_folder(folder: Path) -> None:
    """Make durable which files a folder has."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cannot_write(folder: Path, error: OSError) -> SourceError:
    """Return what to raise where a spool cannot be written."""
    return SourceError(
        f"spool {folder} cannot be written ({error.strerror or text_of(error)}); free space or permissions there; what "
        "was admitted before is as it was"
    )


def _linked(temporary: str, path: Path) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        # A network file system may have made it, lost the answer, and tried again.
        return os.stat(temporary).st_nlink > 1
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise SourceError(
                f"spool {path.parent} lies on a file system without hard links ({error.strerror}), which keep two "
                "hosts from admitting two things at once; name a folder on another one"
            ) from None
        raise
    return True

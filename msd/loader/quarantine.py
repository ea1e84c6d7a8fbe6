"""A list of the rows that failed, on disk: each once, whatever is resumed or examined again."""

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from msd.core.sample import Failure
from msd.errors import ConfigError

_FIELDS = ("ordinal", "shard", "row", "reason")
_Key = tuple[int, str, int, str]
_BEGINNING = b'{"source": "'


class Quarantine:
    """Appends one JSON line for each failed row of a source, once for what it says.

    Lines: `{"source": ..., "ordinal": ..., "shard": ..., "row": ..., "reason": ...}`. A line is one write, so several
    sources may share a file, and a crash can tear only the last line; a torn line is not counted as a record. A run of
    another seed or with other transforms adds what it finds: another row at an ordinal, or another reason, is another
    line.
    """

    def __init__(self, path: str | os.PathLike[str], *, source: str) -> None:
        """Open or create the file, and read which rows it lists.

        Raises:
            ConfigError: If it cannot be written, or is some other kind of file.
        """
        self.path = Path(path)
        self._source = source
        self._known: set[_Key] = set()
        try:
            self._is_new = not self.path.exists()
            if not self._is_new and not stat.S_ISREG(self.path.stat().st_mode):
                raise ConfigError(f"on_error.quarantine {str(self.path)!r} is not a regular file; give another path")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigError(
                f"on_error.quarantine {str(self.path)!r} cannot be written: {error.strerror}; give another path"
            ) from None
        self._read()

    def write(self, failures: Iterable[Failure]) -> int:
        """Append the rows that are not listed yet, and return how many that were."""
        before = len(self._known)
        for failure in failures:
            key = (failure.ordinal, failure.shard, failure.row, failure.reason)
            if key in self._known:
                continue
            record = {"source": self._source, **dict(zip(_FIELDS, key, strict=True))}
            os.write(self._file, f"{json.dumps(record)}\n".encode())
            self._known.add(key)
        return len(self._known) - before

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def abandon(self) -> None:
        """Close the file, and remove it if it is new and empty: for a start that fails."""
        self.close()
        if self._is_new and not self.path.stat().st_size:
            self.path.unlink()

    def _read(self) -> None:
        content = self.path.read_bytes()
        for line in content.split(b"\n"):
            record = _record(line)
            if record is not None and record[0] == self._source:
                self._known.add(record[1])
            elif record is None and not _is_torn(line):
                self.close()
                raise ConfigError(
                    f"on_error.quarantine {str(self.path)!r} exists and is no list of failed rows; give another path"
                )
        if content and not content.endswith(b"\n"):
            os.write(self._file, b"\n")


def _record(line: bytes) -> tuple[str, _Key] | None:
    try:
        record = json.loads(line)
        ordinal, shard, row, reason = (record[name] for name in _FIELDS)
        return str(record["source"]), (int(ordinal), str(shard), int(row), str(reason))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_torn(line: bytes) -> bool:
    """Return whether a line is the beginning of a record; an empty one is."""
    try:
        json.loads(line)
        return False
    except (ValueError, RecursionError):
        return line.startswith(_BEGINNING[: len(line)])

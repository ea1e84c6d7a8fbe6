"""A list of the rows that failed, on disk: each once, whatever is resumed or examined again."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from msd.core.sample import Failure
from msd.errors import ConfigError


class Quarantine:
    """Appends one JSON line for each failed row of a source, keyed by (source, ordinal).

    Lines: `{"source": ..., "ordinal": ..., "shard": ..., "row": ..., "reason": ...}`. A line is one write, so several
    sources may share a file, and a crash can tear only the last line; a torn line is not counted as a record.
    """

    def __init__(self, path: str | os.PathLike[str], *, source: str) -> None:
        """Open or create the file, and read which rows it lists.

        Raises:
            ConfigError: If it cannot be written, or is some other kind of file.
        """
        self.path = Path(path)
        self._source = source
        self._known: set[int] = set()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise ConfigError(
                f"on_error.quarantine {str(self.path)!r} cannot be written: {error.strerror}; give another path"
            ) from None
        self._read()

    def write(self, failures: Iterable[Failure]) -> int:
        """Append the rows that are not listed yet, and return how many that were."""
        new = [failure for failure in failures if failure.ordinal not in self._known]
        for failure in new:
            if failure.ordinal in self._known:
                continue
            record = {
                "source": self._source,
                "ordinal": failure.ordinal,
                "shard": failure.shard,
                "row": failure.row,
                "reason": failure.reason,
            }
            os.write(self._file, f"{json.dumps(record)}\n".encode())
            self._known.add(failure.ordinal)
        return len(new)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self) -> None:
        content = self.path.read_bytes()
        lines = content.splitlines()
        records = [record for line in lines if (record := _record(line)) is not None]
        if len(lines) > 1 and not records:
            self.close()
            raise ConfigError(
                f"on_error.quarantine {str(self.path)!r} exists and is no list of failed rows; give another path"
            )
        self._known = {ordinal for source, ordinal in records if source == self._source}
        if content and not content.endswith(b"\n"):
            os.write(self._file, b"\n")


def _record(line: bytes) -> tuple[str, int] | None:
    try:
        record = json.loads(line)
        return str(record["source"]), int(record["ordinal"])
    except (ValueError, KeyError, TypeError):
        return None

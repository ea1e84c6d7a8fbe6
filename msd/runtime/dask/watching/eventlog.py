"""Events of a run as JSON lines in a file: appended to, so that runs which go on from each other make one log."""

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from msd.errors import ConfigError
from msd.runtime.dask.watching.happenings import Happening, Happenings
from msd.runtime.dask.watching.view import Stats

_LOG = logging.getLogger("msd")


class EventLog:
    """Of one run. A line is written at once and whole, in the order of what happened."""

    def __init__(self, path: str, run: str) -> None:
        """Open the file, made with its folder if it is not there.

        Raises:
            ConfigError: If it cannot be written.
        """
        self._path = Path(path)
        self._happenings = Happenings(run)
        self._encoder = msgspec.json.Encoder()
        self._is_failing = False
        self._turn = threading.Lock()
        """A look may still be written, on its thread, when the run is closed."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            raise ConfigError(
                f"runtime.events {path} cannot be written ({error.strerror}); name a file in a folder that can"
            ) from None

    def take(self, stats: Stats) -> None:
        """Write what happened since the last look."""
        with self._turn:
            if not self._file.closed:
                self._write(self._happenings.look(stats, time.time()))

    def close(self, error: str | None) -> None:
        """Write how the run ended, and close the file. Closing twice is fine."""
        with self._turn:
            if not self._file.closed:
                self._write(self._happenings.end(error, time.time()))
                self._file.close()

    def _write(self, events: Sequence[Happening]) -> None:
        if not events:
            return
        lines = b"".join(self._encoder.encode(event) + b"\n" for event in events)
        try:
            self._file.write(lines)
        except OSError as error:
            if not self._is_failing:
                _LOG.warning("events cannot be written to %s (%s): they are left out", self._path, error.strerror)
            self._is_failing = True
        else:
            self._is_failing = False

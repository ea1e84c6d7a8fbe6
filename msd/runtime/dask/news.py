"""What people should hear of a run, kept until whoever watches it has asked."""

import logging
from collections import deque

_log = logging.getLogger("msd")
KEPT = 20


class News:
    """Warnings of one planner, numbered. They go to the log of its process too."""

    def __init__(self) -> None:
        """Begin with none."""
        self._entries: deque[list[int | str]] = deque(maxlen=KEPT)
        self._num_told = 0

    def add(self, text: str) -> None:
        """Tell something."""
        self._num_told += 1
        self._entries.append([self._num_told, text])
        _log.warning("%s", text)

    def newest(self) -> list[list[int | str]]:
        """Return the last few, each with its number."""
        return list(self._entries)

"""Looks after what a loader host has in hand: ends the host when a row hangs it or eats its memory, and says which."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from msd.loader.poison.notes import CrashNotes
from msd.loader.poison.slots import InHand, to_blame
from msd.loader.poison.suspects import Suspects
from msd.loader.processes.root import more_than, own_bytes

EXIT_STATUS = 87
"""Of a host that ended itself because of a row."""
LOOK_S = 0.2
TELL_S = 1.0
"""What is to be told has been told within this, or somebody reads the notes."""


class Watch:
    """A thread that looks every fraction of a second. Where it cannot run, others see that it does not."""

    def __init__(
        self,
        notes: CrashNotes,
        suspects: Suspects,
        *,
        hang_s: Mapping[str, float],
        memory: int | None,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        """Start to look.

        Args:
            notes: Of this host.
            suspects: Of this host: tells of what the notes of others say, and of the reason for its own end.
            hang_s: How long a row of each source may take.
            memory: Bytes that the host may hold; None is any number.
            end: Ends the process.
        """
        self._notes = notes
        self._suspects = suspects
        self._hang_s = list(hang_s.values())
        self._memory = memory
        self._end = end
        self._is_closed = threading.Event()
        self._others = notes.others()
        self._reading = threading.Lock()
        self._thread = threading.Thread(target=self._look_for_ever, name="msd-watch", daemon=True)
        self._thread.start()

    def read_others(self, frozen_s: float | None = None) -> None:
        """Suspect what other processes of the run on this machine left behind; see `Others.left_behind`."""
        with self._reading:
            for ended in self._others.left_behind(frozen_s):
                self._suspects.struck(ended)

    def close(self) -> None:
        """Look no more. Closing twice is fine."""
        self._is_closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _look_for_ever(self) -> None:
        while not self._is_closed.wait(LOOK_S):
            self._notes.beat()
            entries = self._notes.in_hand()
            now_ns = time.monotonic_ns()
            hung = [entry for entry in entries if entry.age_s(now_ns) > self._patience_s(entry)]
            if hung:
                self._end_because_of(hung, f"no answer for {self._hang_s[hung[0].source]:g} s")
            elif self._memory is not None and entries and own_bytes() > self._memory:
                self._end_because_of(to_blame(entries), more_than(self._memory))

    def _patience_s(self, entry: InHand) -> float:
        return self._hang_s[entry.source] * len(entry.ordinals)

    def _end_because_of(self, entries: Sequence[InHand], how: str) -> None:
        # Written down first: whatever happens to this process from now on, the rows are known.
        self._notes.mark(entries, how, is_told=False)
        self._suspects.struck(self._notes.named(entries, how))
        if self._suspects.wait_told(TELL_S):
            self._notes.mark(entries, how, is_told=True)
        self._end(EXIT_STATUS)
        self._is_closed.set()

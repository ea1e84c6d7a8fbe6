"""What a rank reports of the sources travels beside its batches: the training loop waits for none of it."""

import logging
import threading
from collections.abc import Callable, Mapping

from msd.errors import MsdError

_LOG = logging.getLogger(__name__)


class Reporter:
    """Sends reports from a thread of its own, one after the other; those that wait become one, of the newest values."""

    def __init__(self, send: Callable[[dict[str, float]], None], *, name: str) -> None:
        """Get ready; the first report starts the thread.

        Args:
            send: Brings a report to the run. May wait; raises `MsdError` if the run does not take it.
            name: Who reports, for people.
        """
        self._send = send
        self._name = name
        self._changed = threading.Condition()
        self._waiting: dict[str, float] = {}
        self._is_sending = self._is_closed = False
        self._error: MsdError | None = None
        self._thread: threading.Thread | None = None

    def report(self, losses: Mapping[str, float]) -> None:
        """Have a report sent. Returns at once.

        Raises:
            MsdError: Why the run did not take one before. This one is sent, too.
        """
        with self._changed:
            self._waiting |= losses
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._send_for_ever, name=f"msd-report-{self._name}", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
            error, self._error = self._error, None
        if error is not None:
            raise error

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was reported has been sent or refused; return whether that came to pass in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._is_sending, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Send what waits, if the run takes it in time, and end. Closing twice is fine."""
        if self._thread is None:
            return
        self.flush(timeout_s)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            error, self._error = self._error, None
        if error is not None:
            _LOG.warning("what %s reported last was not taken: %s", self._name, error)

    def _send_for_ever(self) -> None:
        while True:
            with self._changed:
                self._is_sending = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    return
                losses, self._waiting, self._is_sending = self._waiting, {}, True
            try:
                self._send(losses)
            except MsdError as error:
                with self._changed:
                    self._error = error

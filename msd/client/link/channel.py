"""One connection, as a rank sees it."""

import contextlib
import functools
import importlib.metadata
import select
import socket
import threading
from typing import Any

from msd.client.link.address import Address, dial
from msd.client.link.frames import Frame, Kind, receive_frame, send_frame, set_stall
from msd.client.link.messages import error_of, value
from msd.errors import EngineError

STALL_S = 15.0
"""A server that says nothing, or stops in the middle of a frame, for so long is taken for lost."""


class Channel:
    """Requests out, frames in. Any thread may send; one receives."""

    def __init__(self, address: Address) -> None:
        """Dial a server.

        Raises:
            OSError: If nobody answers there.
        """
        self.address = address
        self.run = ""
        self._lock = threading.Lock()
        self._sock = dial(address, timeout_s=STALL_S)
        self._is_closed = False
        set_stall(self._sock, STALL_S)

    def open(self, run: str | None = None) -> None:
        """Show the token and learn which run is there.

        Args:
            run: That is expected; None takes any.

        Raises:
            OSError: If the server falls silent.
            MsdError: If it refuses us, or is of another run.
        """
        opened = self.ask(Kind.OPEN, {"token": self.address.token, "version": version()})
        self.run = value(opened.header, "run", str)
        if run is not None and run != self.run:
            raise EngineError(
                f"a rank of run {run} (msd {version()}) reached run {self.run} (msd "
                f"{value(opened.header, 'version', str)}); take the present address of its run"
            )

    def ask(self, kind: Kind, header: dict[str, Any], *, patience_s: float | None = None) -> Frame:
        """Send a request and wait for its answer; only before `receive` is used.

        Args:
            kind: Of request.
            header: What it says.
            patience_s: For an answer that may take longer than `STALL_S`.

        Raises:
            OSError: If the connection is lost.
            MsdError: If the answer is an error.
        """
        self.send(kind, {"id": 0, **header})
        if patience_s is not None:
            set_stall(self._sock, patience_s)
        frame = receive_frame(self._sock)
        if patience_s is not None:
            set_stall(self._sock, STALL_S)
        if frame.kind == Kind.ERROR:
            raise error_of(frame.header)
        return frame

    def send(self, kind: Kind, header: dict[str, Any]) -> None:
        """Send a frame.

        Raises:
            OSError: If the connection is lost.
        """
        with self._lock:
            send_frame(self._sock, kind, header)

    def receive(self, timeout_s: float) -> Frame | None:
        """Return the next frame, or None if none begins to arrive in time.

        Raises:
            OSError: If the connection is lost.
            EngineError: If what arrives is not a frame.
        """
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return receive_frame(self._sock) if poll.poll(timeout_s * 1000) else None

    def abort(self) -> None:
        """Cut the connection, from any thread: whoever waits on it learns so."""
        with self._lock:
            if not self._is_closed:
                with contextlib.suppress(OSError):  # It may be cut already.
                    self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the connection back. Closing twice is fine."""
        with self._lock:
            self._is_closed = True
            self._sock.close()


@functools.cache
def version() -> str:
    """Return the installed release of msd."""
    try:
        return importlib.metadata.version("msd")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"

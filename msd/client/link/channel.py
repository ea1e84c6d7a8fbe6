"""One connection, as a rank sees it."""

import contextlib
import functools
import importlib.metadata
import socket
import threading
from collections.abc import Callable
from typing import Any

from msd.client.link.address import Address, dial
from msd.client.link.certificates import Certificates
from msd.client.link.frames import Frame, Kind, receive_frame, send_frame, set_stall
from msd.client.link.messages import WrongRun, error_of, value
from msd.client.link.stream import ready

STALL_S = 5.0
"""A server that says nothing, or stops in the middle of a frame, for so long is taken for lost: it answers a question
within two seconds, or says that it is at work."""
OPEN_S = 3.0
"""Who does not let us in for so long is not there, or is frozen: a system takes connections for a frozen process."""


class Channel:
    """Requests out, frames in. Any thread may send; one receives."""

    def __init__(self, address: Address, certificates: Certificates | None = None) -> None:
        """Dial a server.

        Args:
            address: Of the server.
            certificates: Of this side; None speaks no TLS.

        Raises:
            OSError: If nobody answers there.
            ConfigError: If one side refuses the other for its certificate.
        """
        self.address = address
        self.run = ""
        self._lock = threading.Lock()
        self._sock = dial(address, timeout_s=OPEN_S, certificates=certificates)
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
        set_stall(self._sock, OPEN_S)
        opened = self.ask(Kind.OPEN, {"token": self.address.token, "version": version()})
        set_stall(self._sock, STALL_S)
        self.run = value(opened.header, "run", str)
        if run is not None and run != self.run:
            raise WrongRun(
                f"a rank of run {run} (msd {version()}) reached run {self.run} (msd "
                f"{value(opened.header, 'version', str)}); take the present address of its run"
            )

    def ask(self, kind: Kind, header: dict[str, Any], working: Callable[[str], None] = lambda waits_for: None) -> Frame:
        """Send a request and wait for its answer; only before `receive` is used.

        Args:
            kind: Of request.
            header: What it says.
            working: Called with what the server waits for, each time it says that it is at work.

        Raises:
            OSError: If the connection is lost.
            MsdError: If the answer is an error.
        """
        self.send(kind, {"id": 0, **header})
        while (frame := receive_frame(self._sock)).kind == Kind.WORKING:
            working(value(frame.header, "waits_for", str))
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
        return receive_frame(self._sock) if ready(self._sock, timeout_s=timeout_s) else None

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

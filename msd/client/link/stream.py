"""What the link needs of a connection, plain or encrypted, and waiting for what comes on it."""

import select
import socket
import time
from collections.abc import Sequence
from typing import Any, Protocol


class Stream(Protocol):
    """A socket, or what encrypts one."""

    def recv_into(self, buffer: memoryview, nbytes: int = 0, flags: int = 0, /) -> int:
        """Receive at least a byte; 0 says that the other side has closed."""
        ...

    def sendmsg(self, buffers: Sequence[memoryview], /) -> int:
        """Send the first bytes of some parts, and return how many."""
        ...

    def recv(self, nbytes: int, /) -> bytes:
        """Receive what is only to be passed over."""
        ...

    def settimeout(self, value: float | None, /) -> None:
        """As of a socket."""
        ...

    def setsockopt(self, level: int, name: int, value: Any, /) -> None:
        """As of a socket."""
        ...

    def fileno(self) -> int:
        """Return what `poll` watches."""
        ...

    def shutdown(self, how: int, /) -> None:
        """As of a socket."""
        ...

    def close(self) -> None:
        """As of a socket."""
        ...


def ready(stream: Stream, *others: socket.socket, timeout_s: float | None = None) -> set[int]:
    """Return the descriptors of those on which something has come, waiting for it; none when time runs out.

    What an encrypted connection has received is not all for us, and what is for us may be decrypted already.

    Raises:
        OSError: If the connection is lost.
        ConfigError: If the other side refuses our certificate.
    """
    poll = select.poll()
    for one in (stream, *others):
        poll.register(one.fileno(), select.POLLIN)
    is_waiting = getattr(stream, "is_waiting", None)
    if is_waiting is None:
        return {descriptor for descriptor, _ in poll.poll(_milliseconds(timeout_s))}
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while not is_waiting():
        left_s = None if until is None else max(0.0, until - time.monotonic())
        found = {descriptor for descriptor, _ in poll.poll(_milliseconds(left_s))} - {stream.fileno()}
        if found or left_s == 0.0:
            return found | ({stream.fileno()} if is_waiting() else set())
    return {stream.fileno(), *(descriptor for descriptor, _ in poll.poll(0))}


def _milliseconds(timeout_s: float | None) -> int | None:
    return None if timeout_s is None else int(timeout_s * 1000)

"""Messages over a socket: a text, and raw arrays behind it; and the words that both sides use."""

import socket
import struct
from collections.abc import Sequence
from typing import NamedTuple

ENDED = struct.Struct("<ii")
"""Number of a process, and how it ended: its exit status, or minus a signal."""

ASKED = struct.Struct("<i")
"""Number of a process that is to start, with a socket of rows and memory for its notes; or to end, without."""

DONE, RAISED, SHORT, FAILED = "done", "raised", "short", "failed"
"""What an answer begins with. Then: results; the class of an `MsdError` and its message; a `MemoryError` that is no
single row's; what else was raised."""

_HEAD = struct.Struct("<QQ")
_DIRECT_BYTES = 1 << 16
"""Larger arrays are sent from where they lie; smaller ones go together."""


class Frame(NamedTuple):
    """What one message says."""

    text: bytes
    arrays: Sequence[memoryview]
    """Bytes of the arrays, in order; a received frame has them as one."""


def send(connection: socket.socket, frame: Frame) -> None:
    """Send a message.

    Raises:
        OSError: If nobody is there any more.
    """
    waiting: list[bytes | memoryview] = [
        _HEAD.pack(len(frame.text), sum(array.nbytes for array in frame.arrays)),
        frame.text,
    ]
    for array in frame.arrays:
        if array.nbytes < _DIRECT_BYTES:
            waiting.append(array)
            continue
        connection.sendall(b"".join(waiting))
        connection.sendall(array)
        waiting = []
    if waiting:
        connection.sendall(b"".join(waiting))


def receive(connection: socket.socket) -> Frame:
    """Return the next message.

    Raises:
        EOFError: If the other side is gone.
    """
    num_text, num_array = _HEAD.unpack(receive_bytes(connection, _HEAD.size))
    text = bytes(receive_bytes(connection, num_text))
    return Frame(text, [memoryview(receive_bytes(connection, num_array))])


def receive_bytes(connection: socket.socket, count: int) -> bytearray:
    """Return so many bytes.

    Raises:
        EOFError: If the other side is gone.
    """
    received = bytearray(count)
    rest = memoryview(received)
    while len(rest):
        try:
            size = connection.recv_into(rest)
        except OSError as error:
            raise EOFError(str(error)) from None
        if not size:
            raise EOFError("the connection was closed")
        rest = rest[size:]
    return received

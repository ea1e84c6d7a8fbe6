"""What is on the wire: frames over a stream socket.

    prefix   magic "MSDL", protocol major and minor, kind, bytes of the header, bytes of the body; big-endian
    header   JSON object
    body     raw bytes; only a batch has one

The prefix, and frames of kind ERROR, stay as they are in every version, so that each side can read why the other one
refuses it. Sockets block in the kernel and give up there after their stall time (`set_stall`): a body of hundreds of
megabytes is one call, during which other Python threads run.
"""

import json
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from msd.client.link.stream import Stream
from msd.core.arrays import UInt8Array
from msd.errors import EngineError

MAGIC = b"MSDL"
PROTOCOL = (2, 0)
"""2: a rank states its run, client, loads and position."""
ALIGNMENT = 64
MAX_HEADER_BYTES = 64 << 20
"""A state of many sources travels in a header."""
MAX_BODY_BYTES = 64 << 30

_PREFIX = struct.Struct(">4sBBHIQ")
_IOV_MAX = max(16, os.sysconf("SC_IOV_MAX"))


class Kind(IntEnum):
    """What a frame says. Those of a rank and those of the run have numbers of their own."""

    OPEN = 1
    WHERE = 2
    HELLO = 3
    TAKE = 4
    TAKEN = 5
    LOAD = 6
    MOVED_SEEN = 7
    BYE = 8
    CONTROL = 9

    OPENED = 65
    PLACES = 66
    WELCOME = 67
    BATCH = 68
    ENDED = 69
    MOVED = 70
    NOT_YET = 71
    ERROR = 72
    WORKING = 73
    CONTROLLED = 74


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One message as it arrived."""

    kind: int
    header: dict[str, Any]
    body: UInt8Array = field(default_factory=lambda: np.empty(0, np.uint8))
    """uint8, aligned to `ALIGNMENT`, owned by whoever received it."""


def protocol_name(version: tuple[int, int] = PROTOCOL) -> str:
    """Return a protocol version as it is written in messages."""
    return f"{version[0]}.{version[1]}"


def set_stall(sock: Stream, stall_s: float) -> None:
    """Make the socket block, and give up when nothing moves for `stall_s`."""
    sock.settimeout(None)
    whole = int(stall_s)
    limit = struct.pack("@ll", whole, int((stall_s - whole) * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def send_frame(sock: Stream, kind: Kind, header: dict[str, Any], body: Sequence[memoryview] = ()) -> None:
    """Send one frame; the parts of the body go from where they lie.

    Raises:
        OSError: If the other side has closed, or takes nothing for the socket's stall time.
    """
    text = json.dumps(header, separators=(",", ":")).encode()
    prefix = _PREFIX.pack(MAGIC, *PROTOCOL, kind, len(text), sum(part.nbytes for part in body))
    _send_all(sock, [memoryview(prefix + text), *(part for part in body if part.nbytes)])


def receive_frame(
    sock: Stream, *, max_header_bytes: int = MAX_HEADER_BYTES, max_body_bytes: int = MAX_BODY_BYTES
) -> Frame:
    """Receive one frame; its body is one fresh buffer.

    Raises:
        OSError: If the other side has closed, or sends nothing for the socket's stall time.
        EngineError: If what arrives is not a frame, is of another protocol version, or is larger than allowed.
    """
    prefix = bytearray(_PREFIX.size)
    _receive_into(sock, memoryview(prefix))
    magic, major, minor, kind, header_bytes, body_bytes = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise EngineError(
            f"the other side does not speak the msd link: it began with {bytes(prefix)!r}; "
            "check the address, host and port"
        )
    if (major, minor) != PROTOCOL and kind != Kind.ERROR:
        raise EngineError(
            f"the other side speaks link protocol {major}.{minor}, this one {protocol_name()}; "
            "install the same release of msd in the trainer as in the run"
        )
    if header_bytes > max_header_bytes or body_bytes > max_body_bytes:
        raise EngineError(
            f"the other side announces a frame with a header of {header_bytes} and a body of {body_bytes} bytes; "
            f"at most {max_header_bytes} and {max_body_bytes} are taken here"
        )
    text = bytearray(header_bytes)
    _receive_into(sock, memoryview(text))
    body = _aligned(body_bytes)
    _receive_into(sock, body.data)
    return Frame(kind, _parsed(text), body)


def padding(nbytes: int) -> int:
    """Return how many bytes follow `nbytes` up to the next aligned place."""
    return -nbytes % ALIGNMENT


def _parsed(text: bytearray) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EngineError(f"the other side sent a header that is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise EngineError(f"the other side sent a header that is no JSON object but {type(header).__name__}")
    return header


def _aligned(nbytes: int) -> UInt8Array:
    # Not a bytearray: that would write zeros first, holding the interpreter lock.
    buffer: UInt8Array = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = padding(buffer.ctypes.data)
    return buffer[start : start + nbytes]


def _send_all(sock: Stream, parts: list[memoryview]) -> None:
    place = 0
    while place < len(parts):
        try:
            sent = sock.sendmsg(parts[place : place + _IOV_MAX])
        except BlockingIOError:
            raise TimeoutError("the other side has stopped receiving") from None
        while place < len(parts) and sent >= parts[place].nbytes:
            sent -= parts[place].nbytes
            place += 1
        if sent:
            parts[place] = parts[place][sent:]


def _receive_into(sock: Stream, view: memoryview) -> None:
    while view.nbytes:
        try:
            received = sock.recv_into(view, view.nbytes, socket.MSG_WAITALL)
        except BlockingIOError:
            raise TimeoutError("the other side has stopped sending") from None
        if not received:
            raise ConnectionResetError("the other side closed the connection")
        view = view[received:]

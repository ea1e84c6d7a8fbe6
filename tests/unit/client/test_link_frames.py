import socket
import struct
import threading

import numpy as np
import pytest

from msd.client.link import frames
from msd.client.link.frames import ALIGNMENT, Kind, receive_frame, send_frame, set_stall
from msd.errors import EngineError


@pytest.fixture
def pair():
    ends = socket.socketpair()
    for end in ends:
        set_stall(end, 20.0)
    yield ends
    for end in ends:
        end.close()


def prefix(magic=b"MSDL", major=2, minor=0, kind=1, header=2, body=0):
    return struct.pack(">4sBBHIQ", magic, major, minor, kind, header, body)


def test_a_frame_arrives_with_its_header_and_its_body_in_one_aligned_buffer(pair):
    send_frame(pair[0], Kind.BATCH, {"id": 7}, [memoryview(b"abc"), memoryview(b""), memoryview(b"defg")])
    send_frame(pair[0], Kind.TAKEN, {})
    frame = receive_frame(pair[1])
    assert (frame.kind, frame.header, frame.body.tobytes()) == (Kind.BATCH, {"id": 7}, b"abcdefg")
    assert frame.body.ctypes.data % ALIGNMENT == 0
    assert receive_frame(pair[1]).kind == Kind.TAKEN


def test_more_parts_than_one_system_call_takes_arrive_in_order(pair, monkeypatch):
    monkeypatch.setattr(frames, "_IOV_MAX", 16)
    parts = [bytes([number % 256]) * (number % 7) for number in range(1000)]
    send_frame(pair[0], Kind.BATCH, {}, [memoryview(part) for part in parts])
    assert receive_frame(pair[1]).body.tobytes() == b"".join(parts)


def test_a_body_far_larger_than_the_buffers_of_the_system_arrives(pair):
    sent = np.random.default_rng(1).integers(0, 256, 200 << 20, dtype=np.uint8)
    parts = [sent[: 64 << 20].data, sent[64 << 20 :].data]
    sender = threading.Thread(target=send_frame, args=(pair[0], Kind.BATCH, {"id": 1}, parts))
    sender.start()
    frame = receive_frame(pair[1])
    sender.join()
    assert np.array_equal(frame.body, sent)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", r"does not speak the msd link: it began with b'HTTP/1.1"),
        (prefix(major=1), r"speaks link protocol 1.0, this one 2.0"),
        (prefix(minor=9), r"speaks link protocol 2.9, this one 2.0"),
        (prefix(header=2**31), r"a header of 2147483648 and a body of 0 bytes; at most 67108864"),
        (prefix(body=2**50), r"a body of 1125899906842624 bytes"),
        (prefix() + b"{]", "not JSON"),
        (prefix() + b"[]", "no JSON object but list"),
        (prefix() + b"\xff\xfe", "not JSON"),
    ],
)
def test_what_is_no_frame_of_ours_is_refused_in_words(pair, raw, message):
    pair[0].sendall(raw)
    with pytest.raises(EngineError, match=message):
        receive_frame(pair[1])


def test_the_refusal_of_another_version_can_be_read(pair):
    text = b'{"error":"EngineError","message":"too old"}'
    pair[0].sendall(prefix(major=9, kind=Kind.ERROR, header=len(text)) + text)
    assert receive_frame(pair[1]).header["message"] == "too old"


@pytest.mark.parametrize("raw", [b"", b"MSD", prefix(header=100) + b"{", prefix(body=100) + b"{}" + b"x" * 99])
def test_a_frame_that_stops_in_the_middle_ends_the_wait(pair, raw):
    set_stall(pair[1], 0.1)
    pair[0].sendall(raw)
    with pytest.raises(TimeoutError, match="stopped sending"):
        receive_frame(pair[1])
    pair[0].close()
    with pytest.raises(ConnectionResetError, match="closed"):
        receive_frame(pair[1])


def test_a_reader_that_stops_ends_the_wait_of_the_sender(pair):
    set_stall(pair[0], 0.1)
    with pytest.raises(TimeoutError, match="stopped receiving"):
        send_frame(pair[0], Kind.BATCH, {}, [memoryview(bytes(8 << 20))])

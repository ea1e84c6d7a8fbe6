"""The proxy with which tests make a host vanish: it forwards, swallows without a word, and forwards again."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from msd.testing.proxy import SwallowingProxy


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """The address of a server that answers what it is sent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ends: list[socket.socket] = [server]

        def answer(end: socket.socket) -> None:
            with contextlib.suppress(OSError), end:
                while received := end.recv(1 << 16):
                    end.sendall(received)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    end, _ = server.accept()
                    ends.append(end)
                    threading.Thread(target=answer, args=(end,), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        thread.join()


def asked(end: socket.socket, text: bytes) -> bytes:
    end.sendall(text)
    received = b""
    while len(received) < len(text):
        part = end.recv(1 << 16)
        if not part:
            return received
        received += part
    return received


def test_it_forwards_both_ways(echo):
    with SwallowingProxy(*echo) as proxy, socket.create_connection(proxy.address, timeout=10) as end:
        assert asked(end, b"hello") == b"hello"
        long = bytes(range(256)) * 10_000
        assert asked(end, long) == long


def test_while_it_swallows_connections_stay_and_new_ones_are_taken_but_nothing_answers(echo):
    with SwallowingProxy(*echo) as proxy, socket.create_connection(proxy.address, timeout=10) as old:
        assert asked(old, b"hello") == b"hello"
        proxy.swallow()
        with socket.create_connection(proxy.address, timeout=10) as new:
            for end in (old, new):
                end.sendall(b"is anybody there?")
                end.settimeout(0.5)
                with pytest.raises(TimeoutError):
                    end.recv(1)


def test_what_lost_something_is_cut_when_it_forwards_again(echo):
    with SwallowingProxy(*echo) as proxy, socket.create_connection(proxy.address, timeout=10) as old:
        assert asked(old, b"hello") == b"hello"
        proxy.swallow()
        old.sendall(b"lost")
        old.settimeout(0.5)
        with pytest.raises(TimeoutError):
            old.recv(1)
        proxy.forward()
        old.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert old.recv(1) == b""
        with socket.create_connection(proxy.address, timeout=10) as new:
            assert asked(new, b"again") == b"again"


def test_nobody_behind_it_closes_the_connection():
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = server.getsockname()
    with (
        SwallowingProxy(*gone) as proxy,
        socket.create_connection(proxy.address, timeout=10) as end,
        contextlib.suppress(ConnectionResetError),
    ):
        assert end.recv(1) == b""

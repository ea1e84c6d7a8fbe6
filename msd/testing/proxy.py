"""A network that loses what it is given: a proxy on loopback that forwards until it is told to swallow.

with SwallowingProxy("127.0.0.1", port) as proxy:
    connect(proxy.address)   # as if to the port itself
    proxy.swallow()          # nothing arrives any more, in either direction, and nobody is told
    proxy.forward()          # new connections work again; those that lost something are cut
"""

import contextlib
import selectors
import socket
import threading
from types import TracebackType

_CHUNK_BYTES = 1 << 18
_TICK_S = 0.2


class SwallowingProxy:
    """Stands before one TCP port.

    While it swallows, connections stay open and new ones are accepted, as those to a host whose cable was pulled look
    to whoever made them: what is sent is taken, and no answer comes. All of it runs on one thread.
    """

    def __init__(self, host: str, port: int, *, listen: str = "127.0.0.1", listen_port: int = 0) -> None:
        """Listen, and forward to `host:port`, which need not be there yet."""
        self._target = (host, port)
        self._server = socket.create_server((listen, listen_port))
        self.address: tuple[str, int] = self._server.getsockname()[:2]
        """Where to connect instead."""
        self._is_swallowing = threading.Event()
        self._is_closed = threading.Event()
        self._heal = threading.Event()
        self._other: dict[socket.socket, socket.socket | None] = {}
        self._has_lost: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="msd-swallowing-proxy", daemon=True)
        self._thread.start()

    def swallow(self) -> None:
        """Forward nothing from now on, and say nothing about it."""
        self._is_swallowing.set()

    def forward(self) -> None:
        """Forward again. Connections of which something was lost are cut, as those of a host that comes back are."""
        self._heal.set()
        self._is_swallowing.clear()

    def close(self) -> None:
        """End every connection and the thread. Closing twice is fine."""
        self._is_closed.set()
        self._thread.join()

    def __enter__(self) -> "SwallowingProxy":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while not self._is_closed.is_set():
                for key, _ in self._selector.select(_TICK_S):
                    if key.fileobj is self._server:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._other:
                        self._pass_on(key.fileobj)
                if self._heal.is_set():
                    self._heal.clear()
                    for end in list(self._has_lost):
                        self._cut(end)
        finally:
            for end in list(self._other):
                self._cut(end)
            self._selector.close()
            self._server.close()

    def _accept(self) -> None:
        near, _ = self._server.accept()
        if self._is_swallowing.is_set():
            self._other[near] = None
            self._has_lost.add(near)
            self._selector.register(near, selectors.EVENT_READ)
            return
        try:
            far = socket.create_connection(self._target, timeout=5.0)
        except OSError:
            near.close()
            return
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.settimeout(30.0)
            self._other[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, end: socket.socket) -> None:
        other = self._other[end]
        try:
            received = end.recv(_CHUNK_BYTES)
            if self._is_swallowing.is_set():
                # An end that is closed stays open for the other side, which cannot hear of it.
                self._has_lost.update(one for one in (end, other) if one is not None)
                if not received:
                    self._selector.unregister(end)
            elif received and other is not None:
                other.sendall(received)
            else:
                self._cut(end)
        except OSError:
            self._cut(end)

    def _cut(self, end: socket.socket) -> None:
        for one in (end, self._other.get(end)):
            if one is None:
                continue
            self._other.pop(one, None)
            self._has_lost.discard(one)
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(one)
            one.close()

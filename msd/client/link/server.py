"""The run's side of the link: who may connect, and what is asked of whoever serves.

One thread accepts; each connection has a thread of its own (`msd.client.link.conversation`), which calls the handler
and may block there. What goes out on a connection is sent by its thread alone.
"""

import contextlib
import logging
import os
import selectors
import socket
import stat
import threading
import time
from typing import Any, Protocol

from msd.client.link.address import Address
from msd.client.link.batches import Encoded
from msd.client.link.certificates import Certificates, ServerCertificates
from msd.client.link.conversation import Conversation
from msd.client.link.messages import Ended, Load, Moved, NotYet, Place, Stated, Welcome
from msd.errors import EngineError

_LOG = logging.getLogger(__name__)
_UNIX_PATH_BYTES = 107
_MOST_STRANGERS = 1024
"""Connections that have not shown yet what lets them in: more are turned away, and may come again."""
_LOOK_S = 1.0
"""How often those are looked at."""
_JOIN_S = 5.0
_FAREWELL_S = 1.0


class LinkHandler(Protocol):
    """What a registry or constructor does for ranks.

    Called on connection threads, several at once, and may block there, except in `where`. An `MsdError` that it raises
    is raised in the rank, as the same class. Every call may come again with the same arguments, and must then give the
    same answer. Where `NotYet` comes back, the call is repeated for some seconds before the rank is told to come again.
    """

    def where(self, rank: int) -> list[Place] | NotYet:
        """Return where a rank is served; an empty list says: here."""
        ...

    def hello(self, rank: int, client: str, stated: Stated | None) -> Welcome | NotYet:
        """Connect a rank; an older session of it ends.

        Args:
            rank: Of the trainer mesh; to be checked.
            client: Who speaks, unlike any other: the same one may come again, another one is another process or loop.
            stated: Where a client stands that was connected before, perhaps to a run of another name: whoever serves
                checks that, and continues there or refuses. None from one that starts.
        """
        ...

    def take(
        self, rank: int, session: int, generation: int, step: int, taken_through: int, wait_s: float
    ) -> Encoded | Ended | Moved | NotYet:
        """Return a step, waiting for it for at most `wait_s`, a fraction of a second.

        Args:
            rank: Of the trainer mesh.
            session: From `hello`.
            generation: That the rank is in; if the run is in another one, say `Moved`.
            step: Wanted next; ranks fetch ahead of what they use.
            taken_through: The last step that the training loop is done with: it asked for the one after. The step
                before the generation's first while there is none.
            wait_s: How long to wait.
        """
        ...

    def waited(self, rank: int, session: int, waited_s: float) -> None:
        """Note for how many seconds, all together, a training loop has waited for steps on its client's connections."""
        ...

    def control(self, method: str, arguments: dict[str, Any]) -> Any:
        """Return, JSON-able, what somebody asks who steers the run or looks at it."""
        ...

    def load(self, rank: int, session: int, load: Load) -> Moved | NotYet:
        """Move the run to a saved position. A repeated `load_id` is the same load, not another."""
        ...

    def bye(self, rank: int, session: int) -> None:
        """Release a rank."""
        ...

    def lost(self, rank: int, session: int) -> None:
        """Note that a connection ended without a farewell: the rank may come again."""
        ...


class LinkServer:
    """Listens on TCP and, on request, on a Unix socket. Use as a context manager, or call `close()`."""

    def __init__(
        self,
        handler: LinkHandler,
        *,
        run: str,
        token: str,
        version: str,
        unix_path: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        stall_s: float = 60.0,
        certificates: Certificates | None = None,
    ) -> None:
        """Begin to listen.

        Args:
            handler: Asked on behalf of ranks.
            run: Identity of the run, which ranks are told.
            token: That ranks must show.
            version: Of msd, for messages.
            unix_path: Where to listen on this host besides; what a dead server left there is removed.
            host: Name or address to listen at; loopback unless said otherwise.
            port: 0 takes any that is free.
            stall_s: A rank that takes nothing, or stops in the middle of a message, for so long is given up.
            certificates: Of the run: with them nothing but TLS is spoken on TCP, and only to whoever has a certificate
                of the same CA. The Unix socket is its owner's alone.

        Raises:
            ConfigError: If the certificates cannot be used.
            EngineError: If another server is alive at `unix_path`, or the path is too long.
            OSError: If the host or port cannot be had.
        """
        self.handler, self.run, self.token, self.version, self.stall_s = handler, run, token, version, stall_s
        self.certificates = None if certificates is None else ServerCertificates(certificates)
        self._changed = threading.Condition()
        self._conversations: set[Conversation] = set()
        self._is_closed = False
        self._unix_path = unix_path
        self._listeners: list[socket.socket] = []
        try:
            self._listeners.append(_listen_tcp(host, port))
            if unix_path is not None:
                self._listeners.append(_listen_unix(unix_path))
                self._unix_inode = os.stat(unix_path).st_ino
        except BaseException:
            self._close_listeners()
            raise
        self.addresses = self._addresses(host)
        self._wake_end, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for sock in (*self._listeners, self._wake_end):
            self._selector.register(sock, selectors.EVENT_READ)
        self._acceptor = threading.Thread(target=self._accept, name="msd-link-accept", daemon=True)
        self._acceptor.start()

    def announce(self, moved: Moved, *, wait_s: float = 1.0) -> list[int]:
        """Tell every connected rank that the run has moved, so that none uses what it fetched before.

        A rank that is told only with its next request may first use steps it holds of the older generation. Ranks
        that are loading are answered by that.

        Returns:
            The ranks that have not confirmed within `wait_s`.
        """
        deadline = time.monotonic() + wait_s
        with self._changed:
            told = [conversation for conversation in self._conversations if conversation.announce(moved)]
            self._changed.wait_for(lambda: not _behind(told, moved), timeout=max(0.0, deadline - time.monotonic()))
            return _behind(told, moved)

    def note_seen(self) -> None:
        """Called by conversations when a rank has confirmed a move, or is gone."""
        with self._changed:
            self._changed.notify_all()

    def close(self, reason: Exception | None = None) -> None:
        """Stop listening, end every conversation, remove the Unix socket. Closing twice is fine.

        Args:
            reason: Raised in every rank, which then gives up. None lets ranks look for the run until their deadline.
        """
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
        self._waker.close()
        self._acceptor.join(_JOIN_S)
        self._selector.close()
        self._close_listeners()
        self._wake_end.close()
        with self._changed:
            ending = list(self._conversations)
        if reason is not None:
            for conversation in ending:
                conversation.dismiss(reason)
            # Whoever does not listen is not waited for.
            until = time.monotonic() + _FAREWELL_S
            for conversation in ending:
                conversation.join(max(0.0, until - time.monotonic()))
        for conversation in ending:
            conversation.abort()
        for conversation in ending:
            conversation.join(_JOIN_S)
        if self._unix_path is not None:
            with contextlib.suppress(FileNotFoundError):
                if os.stat(self._unix_path).st_ino == self._unix_inode:
                    os.unlink(self._unix_path)

    def __enter__(self) -> "LinkServer":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _addresses(self, host: str) -> list[str]:
        bound, port = self._listeners[0].getsockname()[:2]
        reachable = socket.gethostname() if bound in ("0.0.0.0", "::") else host or bound
        addresses = [str(Address(host=reachable, port=port, is_tls=self.certificates is not None))]
        if self._unix_path is not None:
            addresses.insert(0, str(Address(path=os.path.abspath(self._unix_path))))
        return addresses

    def _accept(self) -> None:
        while True:
            strangers = self._strangers()
            for key, _ in self._selector.select(_LOOK_S if strangers else None):
                if key.fileobj is self._wake_end:
                    return
                # Whoever knocked may be gone again, or files may have run out: neither ends the server.
                try:
                    sock, _ = key.fileobj.accept()  # type: ignore[union-attr]
                except OSError:
                    time.sleep(0.01)
                    continue
                if len(strangers) >= _MOST_STRANGERS:
                    sock.close()
                    continue
                self._converse(sock)

    def _strangers(self) -> list[Conversation]:
        """Return the connections that are not let in yet, without those that have taken too long to be."""
        with self._changed:
            strangers = [one for one in self._conversations if not one.is_let_in]
        now = time.monotonic()
        for one in strangers:
            if now > one.opens_until + _LOOK_S:
                _LOG.info("a connection has taken too long to say who it is")
                one.abort()
        return strangers

    def _converse(self, sock: socket.socket) -> None:
        conversation = Conversation(self, sock)
        with self._changed:
            self._conversations.add(conversation)
        conversation.start()

    def forget(self, conversation: Conversation) -> None:
        """Called by a conversation that has ended."""
        with self._changed:
            self._conversations.discard(conversation)
            self._changed.notify_all()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()


def _behind(told: list[Conversation], moved: Moved) -> list[int]:
    return sorted(conversation.rank for conversation in told if conversation.is_behind(moved))


def _listen_tcp(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    listener = socket.create_server(address[:2], family=family, backlog=128)
    listener.setblocking(False)
    return listener


def _listen_unix(path: str) -> socket.socket:
    if len(os.fsencode(path)) > _UNIX_PATH_BYTES:
        raise EngineError(
            f"the Unix socket {path} has a path of {len(os.fsencode(path))} bytes; the system allows "
            f"{_UNIX_PATH_BYTES}: choose a shorter directory"
        )
    _remove_leftover(path)
    # A path that is seen is listened at: whoever is refused there knows that its server is dead.
    opening = path[:-1] + "~"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(opening)
        os.chmod(opening, stat.S_IRUSR | stat.S_IWUSR)
        listener.listen(128)
        listener.setblocking(False)
        os.rename(opening, path)
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_leftover(path: str) -> None:
    """Remove the socket that a dead server left."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise EngineError(f"{path} exists and is no socket; choose another path for the Unix socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except FileNotFoundError:
            pass
        else:
            raise EngineError(f"the Unix socket {path} is in use by a server that is alive; choose another path")

"""One connection, as the run sees it: checks who speaks, then answers until it ends.

A rank says OPEN (token), may ask WHERE it is served, and says HELLO. Then it asks to TAKE one step at a time.
While a step is waited for, the rank may say TAKEN (its loop went on), LOAD or BYE; the wait is looked up from every
`_SLICE_S`, which also shows that a rank is gone. What else takes long is answered by WORKING twice a second until then.
"""

import contextlib
import hmac
import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from msd.client.link.address import tune
from msd.client.link.batches import Encoded
from msd.client.link.certificates import VARIABLES, ServerCertificates
from msd.client.link.frames import MAGIC, Frame, Kind, protocol_name, receive_frame, send_frame, set_stall
from msd.client.link.messages import (
    Ended,
    Moved,
    NotYet,
    Welcome,
    WrongRun,
    error_of,
    error_to_header,
    load_of,
    optional,
    places_to_header,
    stated_of,
    value,
)
from msd.client.link.patience import SOON_S, Asking
from msd.client.link.stream import Stream, ready
from msd.errors import EngineError, MsdError

if TYPE_CHECKING:
    from msd.client.link.server import LinkServer

_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)
_SLICE_S = 0.2
_MAX_WAIT_S = 60.0
_OPEN_S = 10.0
"""For so long a connection may take to show what lets it in."""
_MAX_OPEN_BYTES = 64 << 10
_NO_BODY = 0
_FAREWELL_S = 1.0
_FAREWELL_BYTES = 1 << 20


class Conversation:
    """Serves one connection on a thread of its own."""

    def __init__(self, server: "LinkServer", sock: socket.socket) -> None:
        """Get ready to serve a connection that was just accepted."""
        self.rank = -1
        """Who speaks, once it has said so."""
        self.is_let_in = False
        """Whether it has shown what it must."""
        self.opens_until = time.monotonic() + _OPEN_S
        self._raw = sock
        self._server = server
        self._sock: Stream = sock
        self._wake_end, self._waker = socket.socketpair()
        self._welcome: Welcome | None = None
        self._has_left = False
        self._is_loading = False
        self._taken: tuple[int, int] = (-1, -1)
        """(generation, taken through), the highest that was said."""
        self._next: Frame | None = None
        """A request that came while a step was waited for."""
        self._lock = threading.Lock()
        self._to_announce: Moved | None = None
        self._dismissal: Exception | None = None
        """Why the run serves nobody any more."""
        self._seen = -1
        """The generation that the rank is known to have arrived in."""
        self._asking: Asking[Any] | None = None
        """What the handler is asked now, or was asked last."""
        self._is_aborted = self._is_over = False
        self._thread = threading.Thread(target=self._converse, name="msd-link", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def abort(self) -> None:
        """Cut the connection; its thread ends soon after."""
        with self._lock:
            self._is_aborted = True
            if self._asking is not None:
                self._asking.give_up()
            if not self._is_over:
                _shut(self._sock)

    def dismiss(self, reason: Exception) -> None:
        """Have the other side told that the run is over, and the connection end."""
        with self._lock:
            if not self._is_over:
                self._dismissal = reason
                if self._asking is not None:
                    self._asking.give_up()
                self._waker.send(b"!")

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout_s)

    def announce(self, moved: Moved) -> bool:
        """Have the rank told that the run has moved; return whether there is one to tell."""
        with self._lock:
            if self._is_over or self._welcome is None or self._is_loading or self._seen >= moved.generation:
                return False
            self._to_announce = moved
            self._waker.send(b"!")
            return True

    def is_behind(self, moved: Moved) -> bool:
        """Return whether the rank may still use what it fetched before the run moved."""
        with self._lock:
            return not (self._is_over or self._is_loading or self._seen >= moved.generation)

    def _converse(self) -> None:
        try:
            self._open()
            while not self._has_left:
                self._answer(self._request())
        except OSError:
            pass  # The other side is gone, which `_end` reports.
        except Exception as error:
            self._refuse(error)
        finally:
            self._end()

    def _open(self) -> None:
        """Check that the other side speaks our protocol and may come in."""
        limit_s = min(_OPEN_S, self._server.stall_s)
        tune(self._raw)
        if self._server.certificates is not None and self._raw.family != socket.AF_UNIX:
            encrypted = self._encrypted(self._server.certificates, limit_s)
            with self._lock:
                self._sock = encrypted
        set_stall(self._sock, limit_s)
        frame = receive_frame(self._sock, max_header_bytes=_MAX_OPEN_BYTES, max_body_bytes=_NO_BODY)
        if frame.kind != Kind.OPEN:
            raise EngineError(f"a connection begins with OPEN ({int(Kind.OPEN)}), got a frame of kind {frame.kind}")
        version = value(frame.header, "version", str)
        ours = f"run {self._server.run} (msd {self._server.version}, link protocol {protocol_name()})"
        shown = value(frame.header, "token", str).encode(errors="surrogatepass")
        if not hmac.compare_digest(shown, self._server.token.encode()):
            raise WrongRun(f"{ours} refuses the token of a rank with msd {version}; take the run's present address")
        set_stall(self._sock, self._server.stall_s)
        self.is_let_in = True
        self._send(Kind.OPENED, {"run": self._server.run, "version": self._server.version})

    def _encrypted(self, certificates: ServerCertificates, limit_s: float) -> Stream:
        """Agree on TLS with the other side; whoever shows no certificate of our CA is told so in TLS, and nothing else.

        Raises:
            EngineError: If it speaks our protocol without TLS.
            OSError: If it is not let in, or the connection is lost.
        """
        self._raw.settimeout(limit_s)
        if self._raw.recv(1, socket.MSG_PEEK) == MAGIC[:1]:
            raise EngineError(
                f"run {self._server.run} is served with TLS alone; name the CA of the run and a certificate with its "
                f"key: set {', '.join(VARIABLES.values())}, or pass security="
            )
        from msd.client.link.tls import to_rank

        try:
            return to_rank(self._raw, certificates.context(), limit_s=limit_s)
        except OSError as error:
            _LOG.info("a connection was not let in: %s", error)
            raise

    def _request(self) -> Frame:
        """Return the next request, announcing a move in the meantime."""
        if self._next is not None:
            frame, self._next = self._next, None
            return frame
        while True:
            found = ready(self._sock, self._wake_end)
            if self._wake_end.fileno() in found:
                self._wake_end.recv(64)
                self._tell_news()
            if self._sock.fileno() in found:
                return receive_frame(self._sock, max_body_bytes=_NO_BODY)

    def _answer(self, frame: Frame) -> None:
        header = frame.header
        if frame.kind == Kind.TAKEN:
            self._note_taken(header)
        elif frame.kind == Kind.MOVED_SEEN:
            self._note_seen(value(header, "generation", int))
        else:
            number = value(header, "id", int)
            try:
                self._perform(frame.kind, number, header)
            except MsdError as error:
                self._send(Kind.ERROR, {"id": number, **error_to_header(error)})

    def _perform(self, kind: int, number: int, header: dict[str, Any]) -> None:
        match kind:
            case Kind.WHERE:
                rank = value(header, "rank", int)
                places = self._server.handler.where(rank)
                if isinstance(places, NotYet):
                    places = self._patiently(number, lambda: self._server.handler.where(rank))
                if isinstance(places, NotYet):
                    self._send(Kind.NOT_YET, {"id": number, **asdict(places)})
                else:
                    self._send(Kind.PLACES, {"id": number, **places_to_header(places)})
            case Kind.HELLO:
                self._hello(number, header)
            case Kind.TAKE:
                self._take(number, header)
            case Kind.LOAD:
                self._load(number, header)
            case Kind.CONTROL:
                method, arguments = value(header, "method", str), value(header, "arguments", dict)
                answer = self._patiently(number, lambda: self._server.handler.control(method, arguments))
                self._send(Kind.CONTROLLED, {"id": number, "answer": answer})
            case Kind.BYE:
                session = self._session()
                self._has_left = True
                self._server.handler.bye(self.rank, session)
            case _:
                raise EngineError(f"the run does not know requests of kind {kind}; use the same release of msd")

    def _hello(self, number: int, header: dict[str, Any]) -> None:
        if self._welcome is not None:
            raise EngineError(f"rank {self.rank} has said hello on this connection; open another")
        rank, client, stated = value(header, "rank", int), value(header, "client", str), stated_of(header)
        handler = self._server.handler
        welcome = self._patiently(number, lambda: handler.hello(rank, client, stated))
        if isinstance(welcome, NotYet):
            self._send(Kind.NOT_YET, {"id": number, **asdict(welcome)})
            return
        with self._lock:
            self.rank, self._welcome, self._seen = rank, welcome, welcome.generation
        self._send(Kind.WELCOME, {"id": number, **asdict(welcome)})

    def _take(self, number: int, header: dict[str, Any]) -> None:
        session, generation, step = self._session(), value(header, "generation", int), value(header, "step", int)
        self._note_taken(header)
        deadline = time.monotonic() + min(_MAX_WAIT_S, max(0.0, float(value(header, "wait_s", float))))
        while True:
            began = time.monotonic()
            wait_s = min(_SLICE_S, max(0.0, deadline - began))
            taken_through = self._taken[1] if self._taken[0] == generation else value(header, "taken_through", int)
            answer = self._server.handler.take(self.rank, session, generation, step, taken_through, wait_s)
            if not isinstance(answer, NotYet) or time.monotonic() >= deadline:
                break
            if self._is_interrupted(began + wait_s):
                return
        match answer:
            case Encoded():
                self._send(Kind.BATCH, {"id": number, **answer.header_for(self.rank)}, answer.parts)
            case Ended():
                self._send(Kind.ENDED, {"id": number, **asdict(answer)})
            case NotYet():
                self._send(Kind.NOT_YET, {"id": number, **asdict(answer)})
            case Moved():
                self._send(Kind.MOVED, {"id": number, **asdict(answer)})

    def _is_interrupted(self, until: float) -> bool:
        """Take in what was said while a step is waited for; return whether it is something else to do."""
        self._tell_news()
        # A handler that does not wait as asked must not make this spin.
        while ready(self._sock, timeout_s=max(0.0, until - time.monotonic())):
            frame = receive_frame(self._sock, max_body_bytes=_NO_BODY)
            if frame.kind not in (Kind.TAKEN, Kind.MOVED_SEEN):
                self._next = frame
                return True
            self._answer(frame)
        return False

    def _load(self, number: int, header: dict[str, Any]) -> None:
        session = self._session()
        with self._lock:
            self._is_loading = True
        self._server.note_seen()
        self._taken = (-1, -1)  # A load of the present generation goes back in it.
        try:
            load, handler = load_of(header), self._server.handler
            moved = self._patiently(number, lambda: handler.load(self.rank, session, load), wait_s=math.inf)
            if isinstance(moved, NotYet):
                self._tell_news()
                raise ConnectionAbortedError("nobody waits for the load any more")
            self._send(Kind.MOVED, {"id": number, **asdict(moved)})
            self._note_seen(moved.generation)
        finally:
            with self._lock:
                self._is_loading = False

    def _patiently(self, number: int, ask: Callable[[], _T | NotYet], *, wait_s: float = SOON_S) -> _T | NotYet:
        """Ask the handler what may take long, telling the rank that it is at work; ends where the run does."""
        asking = Asking(ask, wait_s=wait_s)
        with self._lock:
            self._asking = asking
            if self._is_aborted or self._dismissal is not None:
                asking.give_up()
        return asking.patiently(
            lambda waits_for: self._send(Kind.WORKING, {"id": number, "waits_for": waits_for or "the run to answer"})
        )

    def _note_taken(self, header: dict[str, Any]) -> None:
        said = (value(header, "generation", int), value(header, "taken_through", int))
        self._taken = max(self._taken, said)
        waited_s = optional(header, "waited_s", float)
        if waited_s is not None:
            self._server.handler.waited(self.rank, self._session(), waited_s)

    def _note_seen(self, generation: int) -> None:
        with self._lock:
            self._seen = max(self._seen, generation)
        self._server.note_seen()

    def _tell_news(self) -> None:
        with self._lock:
            moved, self._to_announce = self._to_announce, None
            dismissal = self._dismissal
        if dismissal is not None:
            # The other side takes an error without a number as the last word.
            raise error_of(error_to_header(dismissal))
        if moved is not None:
            self._send(Kind.MOVED, asdict(moved))

    def _session(self) -> int:
        if self._welcome is None:
            raise EngineError("a rank says hello before it asks for anything else")
        return self._welcome.session

    def _send(self, kind: Kind, header: dict[str, Any], parts: tuple[memoryview, ...] = ()) -> None:
        send_frame(self._sock, kind, header, parts)

    def _refuse(self, error: Exception) -> None:
        if not isinstance(error, MsdError):
            _LOG.error("the link to rank %s failed", self.rank, exc_info=error)
        with contextlib.suppress(OSError):  # It may not listen either.
            set_stall(self._sock, _FAREWELL_S)
            self._send(Kind.ERROR, error_to_header(error))
            # To close over what was not read would take the answer away from the other side.
            self._sock.shutdown(socket.SHUT_WR)
            unread = _FAREWELL_BYTES
            while unread > 0 and (received := len(self._sock.recv(min(unread, 64 << 10)))):
                unread -= received

    def _end(self) -> None:
        with self._lock:
            self._is_over = True
        for sock in (self._sock, self._wake_end, self._waker):
            sock.close()
        self._server.forget(self)
        if self._welcome is not None and not self._has_left:
            try:
                self._server.handler.lost(self.rank, self._welcome.session)
            except Exception:
                _LOG.exception("the loss of rank %s could not be noted", self.rank)


def _shut(sock: Stream) -> None:
    with contextlib.suppress(OSError):  # It may not be connected any more.
        sock.shutdown(socket.SHUT_RDWR)

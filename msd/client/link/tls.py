"""TLS for connections of the link: both sides show a certificate of the run's own CA, or nothing is said.

The CA is private to the run, so that its signature is what counts. Where the certificate of the run has names, the
name or address that was dialled must be one of them; one without names is good on every host.
"""

import contextlib
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from msd.client.link.certificates import VARIABLES, Certificates
from msd.errors import ConfigError

_CHUNK_BYTES = 1 << 18
"""Encrypted at once before it is sent."""
_RECEIVE_BYTES = 1 << 16
_FAREWELL_S = 1.0
_FAREWELL_BYTES = 1 << 20

_EXPIRED, _NOT_YET = 10, 9
_UNKNOWN_AUTHORITIES = (2, 18, 19, 20, 21)

_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
_REFUSALS = {
    "TLSV1_ALERT_UNKNOWN_CA": "is not signed by the CA of the run; take one that is",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "has expired or is not valid yet; make another, and compare the clocks",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "was revoked; make another",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "was not shown; name it",
    "SSLV3_ALERT_BAD_CERTIFICATE": "cannot be used there; make another",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "cannot be used there; make another",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "is not for this use; make one for TLS clients",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "was not shown, or there is no common cipher",
}
"""What the other side says of our certificate, by OpenSSL's name for it."""


class TlsSocket:
    """An encrypted connection, used as the link uses a socket.

    The socket stays an ordinary one that blocks. What is encrypted lies in memory, under a lock, so that one thread may
    wait for bytes while another one sends.
    """

    def __init__(
        self,
        sock: socket.socket,
        side: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        explain: Callable[[ssl.SSLError], Exception],
    ) -> None:
        """Take a connection whose handshake is done."""
        self.family = sock.family
        self._sock, self._side, self._incoming, self._outgoing = sock, side, incoming, outgoing
        self._explain = explain
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._ahead = b""
        """Decrypted, and not asked for yet."""

    def recv_into(self, view: memoryview, nbytes: int = 0, flags: int = 0) -> int:
        """Receive into a buffer, at least a byte; 0 says that the other side has closed.

        Raises:
            OSError: If the connection is lost, or silent for the socket's stall time.
            ConfigError: If the other side refuses our certificate: some say so only now.
        """
        del nbytes, flags
        if self._ahead:
            count = min(view.nbytes, len(self._ahead))
            view[:count], self._ahead = self._ahead[:count], self._ahead[count:]
            return count
        while (decrypted := self._decrypt_into(view)) is None:
            received = self._sock.recv_into(self._buffer)
            if not received:
                return 0
            self._incoming.write(self._buffer[:received])
        return decrypted

    def is_waiting(self) -> bool:
        """Return whether `recv_into` has something to say at once; a socket cannot tell by itself."""
        piece = memoryview(bytearray(_RECEIVE_BYTES))
        while not self._ahead:
            count = self._decrypt_into(piece)
            if count is not None:
                self._ahead = bytes(piece[:count])
                return True
            try:
                received = self._sock.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            if not received:
                return True
            self._incoming.write(self._buffer[:received])
        return True

    def sendmsg(self, parts: Sequence[memoryview]) -> int:
        """Send the first bytes of some parts, and return how many.

        Raises:
            OSError: If the connection is lost, or takes nothing for the socket's stall time.
        """
        sent = 0
        with self._sending:
            with self._lock:
                for part in parts:
                    piece = part[: _CHUNK_BYTES - sent]
                    while piece.nbytes:
                        count = self._side.write(piece)
                        sent, piece = sent + count, piece[count:]
                    if sent >= _CHUNK_BYTES:
                        break
            self._flush()
        return sent

    def recv(self, nbytes: int) -> bytes:
        """Receive what nobody will read, as it came."""
        return self._sock.recv(nbytes)

    def fileno(self) -> int:
        """Return what `poll` watches."""
        return self._sock.fileno()

    def settimeout(self, timeout_s: float | None) -> None:
        """As of a socket."""
        self._sock.settimeout(timeout_s)

    def setsockopt(self, level: int, name: int, value: Any) -> None:
        """As of a socket."""
        self._sock.setsockopt(level, name, value)

    def shutdown(self, how: int) -> None:
        """As of a socket."""
        self._sock.shutdown(how)

    def close(self) -> None:
        """As of a socket."""
        self._sock.close()

    def _decrypt_into(self, view: memoryview) -> int | None:
        """Return how many bytes were decrypted, None if more must come first."""
        try:
            with self._lock:
                return self._side.read(view.nbytes, view)  # type: ignore[return-value]
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLError as error:
            raise self._explain(error) from None
        finally:
            if self._outgoing.pending:
                # The other side asked for new keys, or is told why it is not understood.
                with self._sending:
                    self._flush()

    def _flush(self) -> None:
        with self._lock:
            encrypted = self._outgoing.read()
        if encrypted:
            self._sock.sendall(encrypted)


def to_run(sock: socket.socket, certificates: Certificates, host: str, where: str, *, limit_s: float) -> TlsSocket:
    """Return an encrypted connection to a run.

    Args:
        sock: Connected.
        certificates: Of this side.
        host: Name or address that was dialled.
        where: The same for people.
        limit_s: Seconds that the handshake may take.

    Raises:
        OSError: If the connection is lost, or the other side is too slow.
        ConfigError: If one side refuses the other.
    """

    def explain(error: ssl.SSLError) -> Exception:
        return _explained(error, certificates, where)

    encrypted = _shake_hands(sock, client_context(certificates), explain, is_server=False, limit_s=limit_s)
    names = _names(encrypted._side.getpeercert() or {})
    if names and not any(_is_named(host, kind, name) for kind, name in names):
        raise ConfigError(
            f"the certificate of {where} is of {', '.join(name for _, name in names[:4])}, not of {host}; dial one of "
            "these names, or have a certificate made that names this one too (or none: then the CA alone counts)"
        )
    return encrypted


def to_rank(sock: socket.socket, context: ssl.SSLContext, *, limit_s: float) -> TlsSocket:
    """Return an encrypted connection to whoever has just connected.

    Raises:
        ssl.SSLError: If it shows no certificate of our CA; it was told why.
        OSError: If the connection is lost, or the other side is too slow.
    """
    try:
        return _shake_hands(sock, context, _as_lost, is_server=True, limit_s=limit_s)
    except ssl.SSLError:
        with contextlib.suppress(OSError):
            # To close over what was not read would take the answer away from the other side.
            sock.settimeout(_FAREWELL_S)
            sock.shutdown(socket.SHUT_WR)
            unread, until = _FAREWELL_BYTES, time.monotonic() + _FAREWELL_S
            while unread > 0 and time.monotonic() < until and (received := len(sock.recv(min(unread, 64 << 10)))):
                unread -= received
        raise


def client_context(certificates: Certificates) -> ssl.SSLContext:
    """Return how a rank connects.

    Raises:
        ConfigError: If a file cannot be read, or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The names of a certificate are looked at after the handshake: one without any is good on every host.
    context.check_hostname = False
    return _loaded(context, certificates)


def server_context(certificates: Certificates) -> ssl.SSLContext:
    """Return how a run takes connections: only from whoever shows a certificate of the CA.

    Raises:
        ConfigError: If a file cannot be read, or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Nobody resumes a session: what is received is what was asked for.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    return _loaded(context, certificates)


def check(certificates: Certificates) -> None:
    """Raise `ConfigError` unless two sides with these certificates would take one another, now."""
    meet(client_context(certificates), server_context(certificates), certificates)


def meet(client: ssl.SSLContext, server: ssl.SSLContext, certificates: Certificates) -> dict[str, Any]:
    """Have two sides shake hands in memory, and return what the client learns of the server's certificate.

    Raises:
        ConfigError: If one refuses the other.
    """
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [ours, theirs]
    try:
        while waiting:
            side = waiting.pop(0)
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                waiting.append(side)
        with contextlib.suppress(ssl.SSLWantReadError):
            ours.read(1)
    except ssl.SSLCertVerificationError as error:
        raise _explained(error, certificates, "this configuration") from None
    except ssl.SSLError as error:
        raise ConfigError(f"{certificates.certificate} cannot be used for TLS: {error.reason}; make another") from None
    return ours.getpeercert() or {}


def _loaded(context: ssl.SSLContext, certificates: Certificates) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    _readable("CA", certificates.ca)
    _readable("certificate", certificates.certificate)
    _readable("key", certificates.key)
    try:
        context.load_verify_locations(cafile=certificates.ca)
    except ssl.SSLError:
        raise ConfigError(f"{certificates.ca} holds no certificate of a CA in PEM; name the file that does") from None
    try:
        # Without a password: a run that is started again by a machine has nobody to ask.
        context.load_cert_chain(certificates.certificate, certificates.key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"{certificates.key} is not the key of {certificates.certificate}; name the two that were made together"
            ) from None
        raise ConfigError(
            f"{certificates.certificate} and {certificates.key} hold no certificate and its key in PEM "
            f"({error.reason or 'not PEM'}); name the files that do, the key without a password"
        ) from None
    return context


def _no_password() -> str:
    return ""


def _readable(what: str, path: str) -> None:
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        raise ConfigError(
            f"the {what} {path} cannot be read ({error.strerror}); name a file that can (security in a configuration, "
            f"{', '.join(VARIABLES.values())} for a rank), or make some with `msd doctor --make-certs DIR`"
        ) from None


def _shake_hands(
    sock: socket.socket,
    context: ssl.SSLContext,
    explain: Callable[[ssl.SSLError], Exception],
    *,
    is_server: bool,
    limit_s: float,
) -> TlsSocket:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    side = context.wrap_bio(incoming, outgoing, server_side=is_server)
    until = time.monotonic() + limit_s
    is_over, error = False, None
    while not is_over:
        try:
            side.do_handshake()
            is_over = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as found:
            is_over, error = True, found
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the other side is too slow to agree on TLS")
        sock.settimeout(left_s)
        if encrypted := outgoing.read():
            sock.sendall(encrypted)
        if not is_over:
            received = sock.recv(_RECEIVE_BYTES)
            if not received:
                raise ConnectionResetError("the other side closed the connection before TLS was agreed on")
            incoming.write(received)
    if error is not None:
        raise error if is_server else explain(error)
    return TlsSocket(sock, side, incoming, outgoing, explain)


def _as_lost(error: ssl.SSLError) -> Exception:
    return ConnectionResetError(f"the other side sent what is not TLS of this connection ({error.reason})")


def _explained(error: ssl.SSLError, certificates: Certificates, where: str) -> Exception:
    """Return what to raise in whoever dialled: what does not change by trying again ends the try."""
    if isinstance(error, ssl.SSLCertVerificationError):
        code, shown = error.verify_code, f"the certificate of {where}"
        if code == _EXPIRED:
            return ConfigError(f"{shown} has expired; have another made (`msd doctor CONFIG` says when each ends)")
        if code == _NOT_YET:
            return ConfigError(f"{shown} is not valid yet; compare the clocks of both machines")
        if code in _UNKNOWN_AUTHORITIES:
            return ConfigError(
                f"{shown} is not signed by {certificates.ca}; name the CA of this run, or the address of the right one"
            )
        return ConfigError(f"{shown} is refused: {error.verify_message}; have another made")
    reason = error.reason or ""
    if reason in _NO_TLS:
        return ConfigError(
            f"{where} is served without TLS, and this side has certificates; leave them out (unset "
            f"{', '.join(VARIABLES.values())}), or give the run a security section"
        )
    if reason in _REFUSALS:
        return ConfigError(f"{where} refuses us: the certificate {certificates.certificate} {_REFUSALS[reason]}")
    if reason.endswith("PROTOCOL_VERSION") or reason == "UNSUPPORTED_PROTOCOL":
        return ConfigError(f"{where} speaks another version of TLS; both sides need 1.2 or 1.3")
    return _as_lost(error)


def _names(certificate: dict[str, Any]) -> list[tuple[str, str]]:
    return [(kind, name) for kind, name in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]


def _is_named(host: str, kind: str, name: str) -> bool:
    """Return whether a name of a certificate is of a host; a star stands for one whole label at the start."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        if kind != "DNS":
            return False
        host, name = host.lower().rstrip("."), name.lower().rstrip(".")
        return host == name or (name.startswith("*.") and host.partition(".")[2] == name[2:])
    return kind == "IP Address" and ipaddress.ip_address(name) == address

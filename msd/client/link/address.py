"""Where a run is reached: addresses, the file that holds one, and how to dial.

- `msd://host:port?token=...&run=...`: the run's registry, or any constructor
- `tcp://host:port?token=...`: the same
- `tls://host:port?token=...`: the same, of a run that speaks to nobody without a certificate
- `unix:///path?token=...`: on this host
- `file:///path`: a JSON file that holds one of the above; a rank waits for it to appear
"""

import contextlib
import errno
import json
import os
import secrets
import socket
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from msd.client.link.certificates import VARIABLES, Certificates
from msd.client.link.stream import Stream
from msd.errors import ConfigError

FORMS = "msd://host:port?token=..., tcp://..., tls://..., unix:///path?token=... or file:///path"

_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Of a registry or constructor. As text it leaves the token out: that is for messages."""

    path: str = ""
    """Of a Unix socket; empty for TCP."""
    host: str = ""
    port: int = 0
    is_tls: bool = False
    """Whether TLS is spoken there. It may be where this is not set: who has certificates speaks nothing else on TCP."""
    token: str = field(default="", repr=False)
    run: str | None = None
    """Which run is expected there; None takes any."""

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Return the address that `text` spells.

        Raises:
            ConfigError: If it spells none.
        """
        parts = urlsplit(text)
        query = parse_qs(parts.query, keep_blank_values=True)
        unknown = sorted(set(query) - {"token", "run"})
        if unknown:
            raise ConfigError(f"the address has an unknown part {unknown[0]!r}; it may have token and run: {FORMS}")
        token, run = query.get("token", [""])[0], query.get("run", [None])[0]
        if parts.scheme == "unix" and parts.path and not parts.netloc:
            return cls(path=unquote(parts.path), token=token, run=run)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if parts.scheme in ("msd", "tcp", "tls") and host and port:
            return cls(host=host, port=port, is_tls=parts.scheme == "tls", token=token, run=run)
        raise ConfigError(f"no run can be reached at {text.partition('?')[0]!r}; use {FORMS}")

    def at(self, place: str) -> "Address":
        """Return the address of another server of the same run."""
        return replace(Address.parse(place), token=self.token, run=self.run)

    def url(self) -> str:
        """Return the address with its token, as `parse` takes it."""
        query = {"token": self.token} if self.token else {}
        if self.run is not None:
            query["run"] = self.run
        return f"{self}?{urlencode(query)}" if query else str(self)

    def __str__(self) -> str:
        if self.path:
            return f"unix://{quote(self.path)}"
        scheme = "tls" if self.is_tls else "tcp"
        return f"{scheme}://[{self.host}]:{self.port}" if ":" in self.host else f"{scheme}://{self.host}:{self.port}"


def is_file(text: str) -> bool:
    """Return whether an address names a file that holds one."""
    return urlsplit(text).scheme == "file"


def resolve(text: str) -> Address:
    """Return the address that `text` spells, or that the file it names holds.

    Raises:
        OSError: If the file is not there yet, or holds nothing yet.
        ConfigError: If the text or the file's content is no address.
    """
    if not is_file(text):
        return Address.parse(text)
    path = Path(unquote(urlsplit(text).path))
    try:
        content = path.read_text(encoding="utf-8")
        if not content.strip():
            raise FileNotFoundError(errno.ENOENT, "it is empty", str(path))
        held = json.loads(content)
        address = held["address"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ConfigError(
            f"{path} holds no address; it should be JSON with an 'address', as the run writes it"
        ) from None
    return Address.parse(str(address))


def write_rendezvous(path: str | os.PathLike[str], address: Address) -> None:
    """Write the file that `file://` addresses name, at once and readable by its owner alone.

    Raises:
        ConfigError: If it cannot be written.
    """
    _write_for_owner(Path(path), json.dumps({"address": address.url()}), what="address")


def kept_token(path: str | os.PathLike[str]) -> str:
    """Return the token that a file holds. If there is no such file, one is made up and kept there, for its owner alone.

    Raises:
        ConfigError: If the file cannot be read or written, or holds none.
    """
    source = Path(path)
    try:
        token = source.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        token = secrets.token_hex(16)
        _write_for_owner(source, token + "\n", what="token")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"the token cannot be read from {source} ({reason}); name a file that holds it") from None
    if not token:
        raise ConfigError(f"{source} holds no token; write one there, or remove it and have one made up")
    return token


def _write_for_owner(target: Path, text: str, *, what: str) -> None:
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            raise
    except OSError as error:
        # Its own text names the file that is written first, which nobody asked for.
        raise ConfigError(
            f"the {what} cannot be written to {target} ({error.strerror}); name a file in a folder that can be written"
        ) from None


def dial(address: Address, *, timeout_s: float, certificates: Certificates | None = None) -> Stream:
    """Return a connected socket.

    Args:
        address: Of a server.
        timeout_s: To connect, and once more to agree on TLS.
        certificates: Of this side: with them nothing but TLS is spoken on TCP. A Unix socket needs none.

    Raises:
        OSError: If nobody answers there.
        ConfigError: If one side refuses the other for its certificate, or TLS is wanted and there is none.
    """
    if not address.path:
        if address.is_tls and certificates is None:
            raise ConfigError(
                f"{address} is served with TLS alone; name the CA of the run and a certificate with its key: set "
                f"{', '.join(VARIABLES.values())}, or pass security="
            )
        sock = socket.create_connection((address.host, address.port), timeout=timeout_s)
        tune(sock)
        if certificates is None:
            return sock
        # A rank that needs no TLS does not import it.
        from msd.client.link.tls import to_run

        try:
            return to_run(sock, certificates, address.host, str(address), limit_s=timeout_s)
        except BaseException:
            sock.close()
            raise
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(address.path)
    except BaseException:
        sock.close()
        raise
    tune(sock)
    return sock


def tune(sock: socket.socket) -> None:
    """Send small frames at once, and notice a host that vanished without closing."""
    if sock.family == socket.AF_UNIX:
        # Fewer turns between sender and receiver; TCP sizes its buffers itself.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, number in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), number)

"""An authority of a run's own, with one certificate: for trials, and for clusters that have no authority yet."""

import contextlib
import datetime
import ipaddress
import json
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msd.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.x509 import GeneralName

SETTINGS = "security.yaml"
"""What the configuration of a run may take: `security=@DIR/security.yaml`."""
DAYS = 90
"""How long certificates are good that nobody said more of."""
_EARLIER = datetime.timedelta(hours=1)
"""Clocks of machines differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Files of an authority: its certificate and key, and the certificate and key of a run."""

    ca: Path
    ca_key: Path
    certificate: Path
    key: Path
    ends: datetime.datetime
    names: tuple[str, ...]
    """That the certificate is of."""

    @property
    def security(self) -> dict[str, str]:
        """What the `security` of a configuration needs."""
        files = {"ca": self.ca, "certificate": self.certificate, "key": self.key}
        return {name: str(path.absolute()) for name, path in files.items()}


def make_certificates(folder: Path, *, names: Sequence[str] = (), any_host: bool = False, days: float = DAYS) -> Made:
    """Make an authority, and a certificate for every part of a run, readable by their owner alone.

    Args:
        folder: Made if it is not there; nothing in it is replaced.
        names: Host names and addresses that the certificate is of, besides those of this machine.
        any_host: The certificate has no names at all: it is good on every host.
        days: How long both are good.

    Raises:
        ConfigError: If one of the files is there already, the folder cannot be written, or the package `cryptography`
            is missing.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID
    except ImportError:
        raise ConfigError(
            "making certificates needs the package cryptography: pip install 'msd[tls]'; certificates that you have "
            "are used without it"
        ) from None
    ca, ca_key, certificate, key = (folder / name for name in ("ca.pem", "ca.key", "run.pem", "run.key"))
    settings = folder / SETTINGS
    for path in (ca, ca_key, certificate, key, settings):
        if path.exists() or path.is_symlink():
            raise ConfigError(f"{path} is there already; name another folder, or remove what is not used any more")
    named = () if any_host else tuple(dict.fromkeys((*_own_names(), *names)))
    general = [_general_name(name) for name in named]
    starts = datetime.datetime.now(datetime.UTC) - _EARLIER
    ends = starts + _EARLIER + datetime.timedelta(days=days)
    authority_key, run_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "msd run CA")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "msd run")])

    def begun(name: x509.Name, public: Any) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder().subject_name(name).issuer_name(authority).public_key(public)
        made = made.serial_number(x509.random_serial_number()).not_valid_before(starts).not_valid_after(ends)
        return made.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)

    def usage(*, signs_others: bool) -> x509.KeyUsage:
        others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
                  "decipher_only")  # fmt: skip
        chosen = {"key_cert_sign": signs_others, "crl_sign": signs_others, "digital_signature": not signs_others}
        return x509.KeyUsage(**chosen, **dict.fromkeys(others, False))

    signed_ca = (
        begun(authority, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs_others=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    unsigned = (
        begun(subject, run_key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs_others=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    if general:
        unsigned = unsigned.add_extension(x509.SubjectAlternativeName(general), critical=False)
    signed = unsigned.sign(authority_key, hashes.SHA256())
    with _writing(folder) as write:
        write(ca_key, _pem_of_key(authority_key))
        write(key, _pem_of_key(run_key))
        write(ca, _pem(signed_ca))
        write(certificate, _pem(signed))
        made = Made(ca=ca, ca_key=ca_key, certificate=certificate, key=key, ends=ends, names=named)
        write(settings, "".join(f"{name}: {json.dumps(path)}\n" for name, path in made.security.items()).encode())
    return made


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[Any]:
    """Yield what writes new files for their owner alone; those of a try that failed are removed."""
    written: list[Path] = []

    def write(path: Path, content: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        written.append(path)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield write
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise ConfigError(
            f"certificates cannot be written to {folder} ({error.strerror}); name a folder that can be written"
        ) from None


def _own_names() -> list[str]:
    """Return what this machine is dialled by."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    with contextlib.suppress(OSError):
        names.append(socket.gethostbyname(socket.gethostname()))
    return names


def _general_name(name: str) -> "GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError:
        raise ConfigError(
            f"{name!r} is no host name or address; write international names in their ASCII form"
        ) from None


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    pem: bytes = certificate.public_bytes(serialization.Encoding.PEM)
    return pem


def _pem_of_key(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem

"""Which certificates the parts of a run show one another."""

import os
from typing import Literal

import msgspec

from msd.client.link.certificates import Certificates
from msd.core.checks import own_path
from msd.core.config import ConfigStruct
from msd.errors import ConfigError

Role = Literal["scheduler", "worker", "client"]
ROLES: tuple[Role, ...] = ("scheduler", "worker", "client")
ENCRYPTED = ("tls://", "inproc://")
"""Addresses of schedulers that nobody listens in on; the second never leaves its process."""


class PairConfig(ConfigStruct, frozen=True, kw_only=True):
    """A certificate and its key."""

    certificate: str
    key: str

    def __post_init__(self) -> None:
        _absolute(self, "certificate", "key")


class SecurityConfig(ConfigStruct, frozen=True, kw_only=True):
    """Certificates of a run, in PEM. With them everything that goes over TCP is encrypted, and both sides show one."""

    ca: str
    """The run's own authority: whoever has a certificate of it takes part."""
    certificate: str | None = None
    """Of every role that has none of its own."""
    key: str | None = None
    scheduler: PairConfig | None = None
    """Of Dask's scheduler, where it is the run's own."""
    worker: PairConfig | None = None
    """Of Dask's workers, and of what serves ranks."""
    client: PairConfig | None = None
    """Of the engine, and of ranks in its process."""
    require_encryption: bool = True
    """False lets `runtime.scheduler` be one without TLS; ranks are served with TLS all the same."""

    def __post_init__(self) -> None:
        _absolute(self, "ca", "certificate", "key")
        if (self.certificate is None) != (self.key is None):
            lacking = "key" if self.key is None else "certificate"
            raise ConfigError(f"security.{lacking} is missing; a certificate and its key go together")
        for role in ROLES:
            if self.certificate is None and getattr(self, role) is None:
                raise ConfigError(
                    f"security names no certificate for the {role}; set security.certificate and security.key for all "
                    f"roles, or security.{role}: {{certificate: ..., key: ...}}"
                )

    def of(self, role: Role) -> Certificates:
        """Return the files of a role."""
        pair: PairConfig | None = getattr(self, role)
        certificate, key = (self.certificate, self.key) if pair is None else (pair.certificate, pair.key)
        assert certificate is not None
        assert key is not None
        return Certificates(ca=self.ca, certificate=certificate, key=key)

    def check_scheduler(self, address: str | None) -> None:
        """Raise `ConfigError` if a scheduler would be spoken to in the clear though that is not wanted."""
        if address is not None and self.require_encryption and not address.startswith(ENCRYPTED):
            raise ConfigError(
                f"runtime.scheduler {address!r} is not encrypted; start it with the certificates of security and name "
                "it as tls://host:port, or set security.require_encryption: false"
            )


def _absolute(struct: ConfigStruct, *names: str) -> None:
    """Write paths out: they are read in other processes, too."""
    for name in names:
        path = getattr(struct, name)
        if path is not None:
            path = os.path.abspath(own_path(path, name=f"security.{name}"))
            msgspec.structs.force_setattr(struct, name, path)

"""Which certificates a process shows to the other side: from an argument, or from its environment.

A rank imports this whether or not anything is encrypted, so that nothing of TLS is imported here.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msd.errors import ConfigError

if TYPE_CHECKING:
    import ssl

_LOG = logging.getLogger(__name__)

VARIABLES = {"ca": "MSD_TLS_CA", "certificate": "MSD_TLS_CERT", "key": "MSD_TLS_KEY"}
"""Of the environment, by what they name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Files in PEM that one side of a connection needs. They are read again for each connection."""

    ca: str
    """Who signs the other side's certificate."""
    certificate: str
    """That is shown."""
    key: str
    """Of the certificate; private."""


class ServerCertificates:
    """Of a run that takes connections: read anew for each, so that renewed files count without a start of the run."""

    def __init__(self, certificates: Certificates) -> None:
        """Read the files.

        Raises:
            ConfigError: If one cannot be read, or is not what it should be.
        """
        from msd.client.link.tls import check, server_context

        self._certificates = certificates
        check(certificates)
        self._last = server_context(certificates)

    def context(self) -> "ssl.SSLContext":
        """Return how to take the next connection; files that are being replaced leave it as it was."""
        from msd.client.link.tls import server_context

        try:
            self._last = server_context(self._certificates)
        except ConfigError as error:
            _LOG.warning("the certificates are used as they were read before: %s", error)
        return self._last


def certificates_of(security: Any = None) -> Certificates | None:
    """Return the certificates that somebody gave, or that the environment names, or None where neither does.

    Args:
        security: `{"ca": ..., "certificate": ..., "key": ...}`, the `security` of a configuration, or `Certificates`.

    Raises:
        ConfigError: If one of the three is missing, or there is another one.
    """
    if security is None:
        return _checked({name: os.environ.get(variable, "") for name, variable in VARIABLES.items()}, VARIABLES)
    if isinstance(security, Certificates):
        return security
    if isinstance(security, Mapping):
        names = {name: f"security[{name!r}]" for name in VARIABLES}
        unknown = sorted(str(name) for name in set(security) - set(VARIABLES))
        if unknown:
            raise ConfigError(f"security has an unknown key {unknown[0]!r}; the keys are {', '.join(VARIABLES)}")
        given = {name: os.fspath(security.get(name) or "") for name in VARIABLES}
        return _checked(given, names, is_wanted=True)
    of_role = getattr(security, "of", None)
    if callable(of_role):
        found = of_role("client")
        if isinstance(found, Certificates):
            return found
    raise ConfigError(
        f"security takes a mapping of {', '.join(VARIABLES)} to files, got {type(security).__name__}; without it the "
        f"environment's {', '.join(VARIABLES.values())} count"
    )


def _checked(given: Mapping[str, str], names: Mapping[str, str], *, is_wanted: bool = False) -> Certificates | None:
    missing = [names[name] for name, path in given.items() if not path]
    if len(missing) == len(given) and not is_wanted:
        return None
    if missing:
        raise ConfigError(f"TLS needs a CA, a certificate and its key: {', '.join(missing)} not set; name all three")
    return Certificates(**{name: os.path.abspath(os.path.expanduser(path)) for name, path in given.items()})

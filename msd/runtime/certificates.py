"""What a run needs of its certificates, looked at beforehand: readable, private, of one CA, good for a while."""

import datetime
import os
import ssl
from collections.abc import Iterator
from typing import Any

from msd.client.link.certificates import Certificates
from msd.client.link.tls import check, client_context, meet, server_context
from msd.config import PipelineConfig
from msd.config.security import ROLES
from msd.errors import ConfigError
from msd.runtime.health import Finding, fine

SOON = datetime.timedelta(days=7)
_AT_ANY_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME: what has expired can then be looked at."""


def look_at_certificates(config: PipelineConfig) -> Iterator[Finding]:
    """Yield what there is to say of the certificates of each role, as far as they differ."""
    if config.security is None:
        return
    roles: dict[Certificates, list[str]] = {}
    for role in ROLES:
        roles.setdefault(config.security.of(role), []).append(role)
    for certificates, named in roles.items():
        subject = "certificates" if len(roles) == 1 else f"certificates of {' and '.join(named)}"
        yield _looked_at(subject, certificates)
    others = [certificates.key for certificates in roles if not is_private(certificates.key)]
    for key in dict.fromkeys(others):
        advice = f"chmod 600 {key}: whoever reads it takes part in the run, and may run programs on its workers"
        yield Finding(subject="keys", verdict="bad", found=f"others may read {key}", advice=advice)


def is_private(path: str) -> bool:
    """Return whether nobody but its owner may read a file; one that is not there is none's."""
    try:
        return not os.stat(path).st_mode & 0o077
    except OSError:
        return True


def _looked_at(subject: str, certificates: Certificates) -> Finding:
    try:
        ends = ending(certificates)
        check(certificates)
    except ConfigError as error:
        return Finding(subject=subject, verdict="bad", found=str(error), advice="no run can be started with these")
    left = ends - datetime.datetime.now(datetime.UTC)
    found = f"good until {ends:%Y-%m-%d %H:%M} UTC ({left.days} days)"
    if left > SOON:
        return fine(subject, found)
    advice = "put others in their place in time: a run reads them anew for each connection of a rank, Dask as it starts"
    return Finding(subject=subject, verdict="notice", found=found, advice=advice)


def ending(certificates: Certificates) -> datetime.datetime:
    """Return when the first of a CA and a certificate of it ends, whether or not it has.

    Raises:
        ConfigError: If they cannot be read, or do not belong together.
    """
    client, server = client_context(certificates), server_context(certificates)
    for context in (client, server):
        context.verify_flags |= _AT_ANY_TIME
    shown = meet(client, server, certificates)
    return min(_ends(one) for one in (shown, *client.get_ca_certs()))


def _ends(certificate: Any) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), datetime.UTC)

"""TLS for what Dask itself says: from the `security` of a configuration to Dask's own settings."""

from typing import Any

from distributed.security import Security

from msd.client.link.certificates import Certificates, certificates_of
from msd.client.link.tls import check
from msd.config.security import ROLES, SecurityConfig
from msd.runtime.dask.settings import DASK_SETTINGS, encoded


def dask_security(security: SecurityConfig | None) -> Security | None:
    """Return what Dask takes for a scheduler or client of this process; None leaves it to Dask's own configuration."""
    if security is None:
        return None
    files: dict[str, Any] = {"tls_ca_file": security.ca}
    for role in ROLES:
        of_role = security.of(role)
        files |= {f"tls_{role}_cert": of_role.certificate, f"tls_{role}_key": of_role.key}
    return Security(require_encryption=security.require_encryption, **files)


def check_security(security: SecurityConfig | None) -> None:
    """Raise `ConfigError` unless the certificates of every role can be used on this machine, now."""
    if security is not None:
        for of_role in dict.fromkeys(security.of(role) for role in ROLES):
            check(of_role)


def secured_environment(security: SecurityConfig | None) -> dict[str, str]:
    """Return what the environment of a worker of ours has besides: a worker is a client of its scheduler, too."""
    if security is None:
        return {}
    roles = {role: security.of(role) for role in ROLES}
    return {"DASK_INTERNAL_INHERIT_CONFIG": encoded(secured_settings(security.ca, roles))}


def settings_for_others() -> dict[str, Any]:
    """Return the Dask settings of clusters that are started by other means, with this environment's certificates."""
    found = certificates_of()
    return DASK_SETTINGS if found is None else secured_settings(found.ca, dict.fromkeys(ROLES, found))


def secured_settings(ca: str, roles: dict[Any, Certificates]) -> dict[str, Any]:
    """Return our Dask settings, with certificates."""
    ours = DASK_SETTINGS["distributed"]
    tls = {"ca-file": ca, **{role: {"cert": one.certificate, "key": one.key} for role, one in roles.items()}}
    return {"distributed": {**ours, "comm": {**ours["comm"], "require-encryption": True, "tls": tls}}}


def link_certificates(security: SecurityConfig | None, worker: Security) -> Certificates | None:
    """Return what ranks are served with on a worker: that which the worker itself has, wherever its files lie there.

    Args:
        security: Of the run; None serves without TLS.
        worker: Of the Dask worker.
    """
    if security is None:
        return None
    found = worker.get_tls_config_for_role("worker")
    ca, certificate, key = found["ca_file"], found["cert"], found["key"] or found["cert"]
    if not ca or not certificate or any("\n" in text for text in (ca, certificate, key)):
        return security.of("worker")
    return Certificates(ca=ca, certificate=certificate, key=key)

"""The frozen struct that every configuration class derives from, and the units that configurations are written in."""

import re

import msgspec

from msd.errors import ConfigError

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*$", re.IGNORECASE)


class ConfigStruct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A piece of configuration: frozen, keyword-only, unknown fields refused, checked once when it is made."""


def parse_bytes(value: int | str, *, name: str) -> int:
    """Return a size in bytes from a number or a string such as `1MiB`, `64KB`, `2 GiB`.

    Args:
        value: Bytes, or a number with a decimal (KB, MB) or binary (KiB, MiB) unit.
        name: Path of the setting, for the error.

    Raises:
        ConfigError: If the value is not a positive size.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = _SIZE.match(str(value))
        if match is None:
            raise ConfigError(f"{name} must be a size such as 1MiB or 65536, got {value!r}")
        number, prefix, binary = match.groups()
        size = int(float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " "))
    if size <= 0:
        raise ConfigError(f"{name} must be a positive size, got {value!r}")
    return size

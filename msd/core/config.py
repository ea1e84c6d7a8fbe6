"""The frozen struct that every configuration class derives from, and the units that configurations are written in."""

import difflib
import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from msd.core.checks import shown
from msd.errors import ConfigError

_MAX_BYTES = 1 << 40
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*$", re.IGNORECASE)


def unknown_key(key: Any, known: Sequence[str], where: str = "") -> str:
    """Return what to say of a key that there is not: its path, and the nearest right one."""
    near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
    path = f"{where}.{key}" if where else str(key)
    hint = f"did you mean {near[0]!r}?" if near else f"the keys here are {', '.join(known)}"
    return f"{path}: unknown key {str(key)!r}; {hint}"


class _Checked(msgspec.StructMeta):
    """Refuses an unknown keyword as YAML does; msgspec raises a bare `TypeError`."""

    def __call__(cls, /, *arguments: Any, **settings: Any) -> Any:  # A field may be called cls.
        if arguments:
            raise ConfigError(f"{cls.__name__} takes settings by name: {cls.__name__}({cls.__struct_fields__[0]}=...)")
        for key in settings:
            if key not in cls.__struct_fields__:
                raise ConfigError(f"{cls.__name__}: {unknown_key(key, cls.__struct_fields__)}")
        for field in msgspec.structs.fields(cls):  # type: ignore[arg-type]
            if field.required and field.name not in settings:
                raise ConfigError(f"{cls.__name__} needs {field.name}; write {cls.__name__}({field.name}=..., ...)")
        return super().__call__(**settings)


class ConfigStruct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=_Checked):
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
        exact = float(number) * (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " ")
        size = int(exact) if math.isfinite(exact) else _MAX_BYTES + 1
    if size <= 0:
        raise ConfigError(f"{name} must be a positive size, got {value!r}")
    if size > _MAX_BYTES:
        raise ConfigError(f"{name} must be at most 1TiB, got {shown(value) if isinstance(value, int) else value[:40]}")
    return size

"""The frozen struct that every configuration class derives from, and the units that configurations are written in."""

import difflib
import math
import operator
import os
import re
from collections.abc import Sequence
from typing import Any

import msgspec

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


def check_range(name: str, value: float, low: float, high: float, hint: str = "") -> None:
    """Raise `ConfigError` unless `low <= value <= high`; NaN never is.

    Args:
        name: Path of the setting.
        value: What was found.
        low: Smallest value that means something.
        high: Largest one that the arithmetic behind the setting can take.
        hint: What to do instead, if there is something.
    """
    if not low <= value <= high:
        raise ConfigError(f"{name} must lie in [{low}, {high}], got {_shown(value)}{f'; {hint}' if hint else ''}")


def whole_number(value: Any, *, name: str) -> int:
    """Return an integer that a caller gave; NumPy's count, booleans and floats do not.

    Raises:
        ConfigError: If it is none.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} must be an integer, got {str(value)[:40]!r} ({type(value).__name__})") from None


def own_path(path: str, *, name: str) -> str:
    """Return a path of the user's with `~` written out; a URL stays as it is.

    Raises:
        ConfigError: If no file system could have a file of that name.
    """
    if not path:
        raise ConfigError(f"{name} is empty; give a path, . for the folder itself")
    if "\0" in path:
        raise ConfigError(f"{name} {path!r} has a NUL character, which no path can; remove it")
    if "://" in path or "::" in path:
        return path
    if path.startswith("~"):
        home, expanded = path.partition("/")[0], os.path.expanduser(path)
        if expanded == path:
            raise ConfigError(f"{name} {path!r}: there is no home folder {home!r}; a file of that name is ./{path}")
        path = expanded
    try:
        longest, length = max(map(len, os.fsencode(path).split(b"/"))), len(os.fsencode(path))
    except UnicodeEncodeError:
        raise ConfigError(f"{name} {path!r} has characters that no path can; correct it") from None
    if length > _PATH_BYTES or (longest > _NAME_BYTES and not set(path) & set("*?[")):
        raise ConfigError(
            f"{name} {path[:40]!r}... is too long for a path: {length} bytes, the longest name in it {longest}; the "
            f"limits are {_PATH_BYTES} and {_NAME_BYTES}"
        )
    return path


_PATH_BYTES, _NAME_BYTES = 4095, 255
"""What Linux allows a path, and one name in it."""


def _shown(value: float) -> str:
    try:
        text = str(value)
    except ValueError:  # Python writes no integer of more than 4300 digits.
        return "an integer of thousands of digits"
    return text if len(text) <= 40 else f"{text[:37]}..."


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
        raise ConfigError(f"{name} must be at most 1TiB, got {_shown(value) if isinstance(value, int) else value[:40]}")
    return size

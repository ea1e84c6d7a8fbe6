"""Can a value that a user gave mean anything? Each check names the setting, what was found, and the bound."""

import math
import operator
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msd.errors import ConfigError


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
        raise ConfigError(f"{name} must lie in [{low}, {high}], got {shown(value)}{f'; {hint}' if hint else ''}")


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


def losses_of(values: Any) -> dict[str, float]:
    """Return what a caller reports of sources, as plain numbers; tensors and arrays of one number count.

    Raises:
        ConfigError: If it is no mapping from names to finite numbers.
    """
    if not isinstance(values, Mapping) or not values:
        raise ConfigError(f'report takes the loss by source such as {{"web": 2.31}}, got {str(values)[:60]!r}')
    found: dict[str, float] = {}
    for source, value in values.items():
        if not isinstance(source, str):
            raise ConfigError(f"report: sources are named by text, got {source!r} ({type(source).__name__})")
        try:
            found[source] = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            found[source] = math.nan
        if isinstance(value, str | bytes) or not math.isfinite(found[source]):
            raise ConfigError(
                f"report: the loss of {source!r} must be a finite number, got {str(value)[:40]!r}; leave it out"
            )
    return found


def working_directory() -> Path:
    """Return where this process is.

    Raises:
        ConfigError: If that folder was removed.
    """
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigError("the working directory was removed; change to one that exists, and start again") from None


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


def few(names: Iterable[Any], most: int = 8) -> str:
    """Return names as a line lists them: the first of them, and how many more there are."""
    listed = [str(name) for name in names]
    rest = f" and {len(listed) - most} more" if len(listed) > most else ""
    return f"{', '.join(listed[:most])}{rest}"


def shown(value: float) -> str:
    """Return a number as an error shows it: never longer than a line."""
    try:
        text = str(value)
    except ValueError:  # Python writes no integer of more than 4300 digits.
        return "an integer of thousands of digits"
    return text if len(text) <= 40 else f"{text[:37]}..."

"""Dotted paths: how a configuration names a function or class of the user's."""

import difflib
import importlib
from typing import Any

from msd.errors import ConfigError


def import_dotted(path: str, *, name: str) -> Any:
    """Return the object at `package.module:attribute`.

    Raises:
        ConfigError: Naming the setting, and which half could not be found.
    """
    module_name, _, attribute = path.partition(":")
    if not attribute:
        raise ConfigError(f"{name} must be package.module:name, got {path!r}")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"{name}: cannot import {module_name!r} ({error}); is it installed, or on PYTHONPATH?"
        ) from None
    for piece in attribute.split("."):
        if not hasattr(found, piece):
            near = difflib.get_close_matches(piece, dir(found), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{name}: {module_name!r} has no {piece!r}{hint}")
        found = getattr(found, piece)
    return found

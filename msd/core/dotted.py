"""Dotted paths: how a configuration names a function or class of the user's, and where modules are looked for."""

import difflib
import importlib
import os
import sys
from typing import Any

from msd.errors import ConfigError, told


def look_in(folder: str | os.PathLike[str]) -> None:
    """Let dotted paths find modules in a folder: it becomes the last place of `sys.path`, unless it is there already.

    Last, so that a file of the user's never hides a package that is installed.
    """
    place = os.path.abspath(folder)
    if place not in map(os.path.abspath, sys.path):
        sys.path.append(place)


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
            f"{name}: cannot import {module_name!r} ({error}); put its file beside the configuration, or install it"
        ) from None
    except Exception as error:
        raise ConfigError(f"{name}: importing {module_name!r} raised {told(error)}; repair the module") from None
    for piece in attribute.split("."):
        if not hasattr(found, piece):
            near = difflib.get_close_matches(piece, dir(found), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{name}: {module_name!r} has no {piece!r}{hint}")
        found = getattr(found, piece)
    return found

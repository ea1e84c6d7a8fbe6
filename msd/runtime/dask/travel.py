"""Whether the functions of a configuration can go to other processes: found out before any is started."""

from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle
import msgspec

from msd.config import PipelineConfig
from msd.errors import ConfigError, told


def check_travels(config: PipelineConfig) -> None:
    """Raise `ConfigError` that names the first function of a configuration which cannot be sent."""
    for path, function in _functions(config, ""):
        try:
            cloudpickle.dumps(function)
        except Exception as error:
            name = getattr(function, "__qualname__", type(function).__name__)
            raise ConfigError(
                f"{path}: {name} cannot be sent to the processes that run it ({told(error)}); have it make what it "
                "uses when it is first called, or put it in a module and name it package.module:function"
            ) from None


def _functions(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield what is called later, with the place in the configuration where it stands."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from _functions(getattr(value, name), f"{path}.{name}" if path else name)
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _functions(entry, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for number, entry in enumerate(value):
            if isinstance(entry, msgspec.Struct) or callable(entry):
                yield from _functions(entry, f"{path}[{number}]")
    elif callable(value):
        yield path, value

"""What a configuration may call a strategy."""

from collections.abc import Mapping
from typing import Any

from msd.core.config import unknown_key
from msd.errors import ConfigError
from msd.planner.strategies import BUILT_IN


def strategy_of(strategy: Any) -> tuple[Any, dict[str, Any]]:
    """Return the function of a strategy, or where it is, and its options.

    Args:
        strategy: A name of `BUILT_IN`, a dotted path, a function, or a mapping of `function` (any of these) and
            `options`, which the function takes by keyword after (graph, context).

    Raises:
        ConfigError: If it is something else.
    """
    function, options = strategy, dict[str, Any]()
    if isinstance(strategy, Mapping):
        for key in strategy:
            if key not in ("function", "options"):
                raise ConfigError(unknown_key(key, ["function", "options"], "strategy"))
        function, options = strategy.get("function"), strategy.get("options") or {}
        if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
            raise ConfigError(f"strategy.options must be a mapping from names to values, got {options!r}")
    if isinstance(function, str) and function in BUILT_IN:
        return BUILT_IN[function], dict(options)
    if not callable(function) and not (isinstance(function, str) and all(function.partition(":"))):
        raise ConfigError(
            f"strategy must be {', '.join(BUILT_IN)}, a dotted path package.module:function, or from Python a function "
            f"(graph, context) -> graph, alone or as {{function: ...}}; got {strategy!r}"
        )
    return function, dict(options)

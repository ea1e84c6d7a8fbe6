"""Values wherever they lie in an item that a training loop is handed."""

import copy
from collections.abc import Callable
from typing import Any

from msd.client.layouts import LaidOutBatch


def changed(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return a copy of nested mappings, lists and tuples in which everything of one kind is changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {name: changed(item, kind, change) for name, item in value.items()}
    if isinstance(value, list):
        items = copy.copy(value)
        items[:] = [changed(item, kind, change) for item in value]
        if isinstance(items, LaidOutBatch) and "encoder" in vars(items):
            items.encoder = changed(items.encoder, kind, change)
        return items
    if isinstance(value, tuple):
        parts = [changed(item, kind, change) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value

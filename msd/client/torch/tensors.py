"""Arrays as tensors, wherever they lie in an item of the loader."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from msd.client.layouts import LaidOutBatch


def as_tensors(value: Any) -> Any:
    """Return a copy of nested mappings, lists and tuples with tensors for arrays of numbers, sharing their memory."""
    return changed(value, np.ndarray, _tensor)


def _tensor(array: np.ndarray[Any, Any]) -> Any:
    return torch.from_numpy(array) if array.dtype.kind in "biufc" else array


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

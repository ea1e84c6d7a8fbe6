"""What a user may write in place of settings: paths, rows, functions; and how a change is merged in."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from msd.config.decode import decode, dotted_kind
from msd.core.axes import SPLIT_DP
from msd.core.mesh import Mesh
from msd.errors import ConfigError
from msd.loader.config import SourceConfig


def decode_sources(value: Any) -> dict[str, SourceConfig]:
    """Return sources by name from whatever a user may call a source, with errors that name it."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"sources must be a mapping from names to sources, got {type(value).__name__}")
    decoded = {}
    for name, source in value.items():
        if not isinstance(name, str) or not name:
            raise ConfigError(f"sources: a name must be a non-empty string, got {name!r}; quote it")
        where = f"sources.{name}"
        try:
            decoded[name] = decode(_source_values(source, where), SourceConfig, where)
        except ConfigError as error:
            raise ConfigError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None
    return decoded


def _source_values(source: Any, where: str) -> Any:
    """Return a mapping of settings from whatever a user may call a source."""
    if isinstance(source, SourceConfig):
        return source
    if source is None:
        raise ConfigError(f"{where} is empty; give it a path, or a mapping with at least path")
    if isinstance(source, Mapping) and not callable(source):
        values = dict(source)
        chosen = values.get("format")
        if isinstance(chosen, str) and ":" in chosen:
            values |= {"format": "class", "cls": chosen}
        if values.get("rows") is not None:
            values.setdefault("format", "memory")
        if values.get("cls") is not None:
            values.setdefault("format", "class")
        transforms = values.get("transforms", [])
        if not isinstance(transforms, Sequence) or isinstance(transforms, str):
            raise ConfigError(f"{where}.transforms must be a list, got {type(transforms).__name__}")
        values["transforms"] = [_transform_values(transform) for transform in transforms]
        return values
    if isinstance(source, str | os.PathLike):
        return {"path": os.fspath(source)}
    if isinstance(source, type) or callable(source):
        return {"format": "class", "cls": source}
    if isinstance(source, list) and source and all(isinstance(item, str | os.PathLike) for item in source):
        return {"path": [os.fspath(item) for item in source]}
    return {"format": "memory", "rows": source}


def _transform_values(transform: Any) -> Any:
    if isinstance(transform, str) and ":" in transform:
        return {"kind": "function", "function": transform}
    if isinstance(transform, Mapping):
        return dotted_kind(transform)
    if callable(transform) and not isinstance(transform, msgspec.Struct):
        return {"kind": "function", "function": transform}
    return transform


def normalised(name: str, value: Any) -> Any:
    """Return a section in its long form: one cost for the backbone, functions in their sections, a mesh as sizes."""
    if isinstance(value, Mesh):
        return value.as_dict()
    if name == "cost" and (callable(value) or isinstance(value, msgspec.Struct)):
        value = {"backbone": value}
    if name == "cost" and isinstance(value, Mapping):
        if "kind" in value:
            value = {"backbone": value}
        return {
            module: {"kind": "function", "function": cost} if callable(cost) else dotted_kind(cost)
            for module, cost in value.items()
        }
    if name == "mixture" and isinstance(value, Mapping):
        feedback = value.get("feedback")
        if isinstance(feedback, str) or callable(feedback):
            return {**value, "feedback": {"function": feedback}}
    return value


def as_dict(struct: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a struct by name, as they are."""
    return {field: getattr(struct, field) for field in struct.__struct_fields__}


_ORIGIN = ("format", "path", "rows", "cls", "options", "spool", "poll_s", "settle_s")
"""What says where a source's rows come from."""


def merged(current: Any, change: Any) -> Any:
    """Return a setting after a change: a section merged key by key, anything else replaced."""
    if not isinstance(change, Mapping) or not isinstance(current, msgspec.Struct):
        return change
    values = as_dict(current)
    return values | {key: merged(values.get(key), value) for key, value in change.items()}


def merged_mesh(current: Mapping[str, int], change: Mapping[str, int]) -> dict[str, int]:
    """Return axis sizes after a change: by axis, each in its place; `dp` and its two parts stand for one another."""
    clash = ("dp" in change and set(SPLIT_DP) & set(current)) or ("dp" in current and set(SPLIT_DP) & set(change))
    data_parallel = {"dp", *SPLIT_DP} if clash else set()
    merged: dict[str, int] = {}
    for axis, size in current.items():
        if axis in data_parallel:
            merged |= {axis: size for axis, size in change.items() if axis in data_parallel}
        else:
            merged[axis] = size
    return merged | dict(change)


def merged_sources(current: Mapping[str, SourceConfig], change: Any) -> Any:
    """Return sources after a change: by name, then key by key; None takes one away."""
    if not isinstance(change, Mapping):
        return change
    merged: dict[str, Any] = dict(current)
    for name, source in change.items():
        if source is None and name in merged:
            del merged[name]
        elif isinstance(source, Mapping) and name in merged:
            merged[name] = _merged_source(merged[name], source)
        else:
            merged[name] = source
    return merged


def _merged_source(current: SourceConfig, change: Mapping[str, Any]) -> dict[str, Any]:
    values = merged(current, change)
    given = {key for key in _ORIGIN if change.get(key) is not None}
    comes_from = "rows" if current.rows is not None else "cls" if current.cls is not None else "path"
    if given & {"rows", "cls", "path"} - {comes_from}:
        # Rows from elsewhere: what said where they came from before does not apply to them.
        return {key: value for key, value in values.items() if key not in _ORIGIN or key in change}
    return dict(values)

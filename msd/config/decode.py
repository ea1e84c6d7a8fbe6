"""Plain values to configuration structs, with errors that name the path and the nearest right key."""

import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec
import numpy as np

from msd.core.config import ConfigStruct, unknown_key
from msd.errors import ConfigError

MAX_DEPTH = 64
"""Levels of values in values."""
TOO_DEEP = f"values are nested deeper than {MAX_DEPTH} levels, or hold themselves; write them flatter"


def dotted_kind(values: Any) -> Any:
    """Return `{kind: package.module:function}` as the function form of its union."""
    if isinstance(values, Mapping) and isinstance(values.get("kind"), str) and ":" in values["kind"]:
        return {**values, "kind": "function", "function": values["kind"]}
    return values


def decode(value: Any, kind: Any, where: str) -> Any:
    """Convert a plain value to its configuration type, with errors that carry the setting's path."""
    try:
        check_keys(value, kind, where)
        return msgspec.convert(_plain(value), kind, strict=True)
    except RecursionError:
        raise ConfigError(f"{where}: {TOO_DEEP}") from None
    except OverflowError:
        raise ConfigError(f"{where}: a number in it is too large; correct it") from None
    except msgspec.ValidationError as error:
        plain = _plain(value)
        # One part at a time, so that the path names each key; msgspec says "[...]", and nothing inside a union.
        for inner, inner_kind, path in _parts(plain, kind, where):
            decode(inner, inner_kind, path)
        raise ConfigError(_readable(str(error), where, plain)) from None


def _parts(value: Any, kind: Any, where: str) -> Iterator[tuple[Any, Any, str]]:
    """Yield what a plain mapping or list consists of, each with its type and its path."""
    if isinstance(value, list):
        items = [typing.get_args(option)[0] for option in _options(kind) if typing.get_origin(option) is list]
        yield from ((inner, items[0], f"{where}[{number}]") for number, inner in enumerate(value) if items)
    if not isinstance(value, Mapping):
        return
    for struct in _structs_of(kind, value):
        hints = typing.get_type_hints(struct)
        named = (key for key in value if key in hints and key not in _OPAQUE)
        yield from ((value[key], hints[key], f"{where}.{key}") for key in named)
        return
    entries = [typing.get_args(option)[1] for option in _options(kind) if typing.get_origin(option) is dict]
    yield from ((inner, entries[0], f"{where}.{key}") for key, inner in value.items() if entries)


def _plain(value: Any) -> Any:
    """Return structs as dictionaries and NumPy's values as Python's, so that one conversion checks every door."""
    if isinstance(value, ConfigStruct):
        plain = {field: _plain(getattr(value, field)) for field in value.__struct_fields__}
        tag = value.__struct_config__.tag
        return plain | ({value.__struct_config__.tag_field: tag} if tag is not None else {})
    if isinstance(value, dict):
        return {key: inner if key in _OPAQUE else _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


_OPAQUE = ("rows", "cls", "function", "options", "storage_options")


_WRITE = {"split": "write [from, to], for instance split: [0.0, 0.9]"}
"""How to write a setting, where the name of its type does not say it."""


def _readable(message: str, where: str, value: Any) -> str:
    found, _, path = message.partition(" - at `")
    inner = re.sub(r"^\$\.?", "", path.rstrip("`"))
    inner = re.sub(r"\[\.\.\.\]", "", inner)
    joined = where if not inner else f"{where}{'' if inner.startswith('[') else '.'}{inner}"
    found = re.sub(r"\barray\b", "list", re.sub(r"\bobject\b", "mapping", found))
    found = found.replace("Object missing required field", "missing required key").replace("`", "'")
    hint = _WRITE.get(re.sub(r"\[\d+\]$", "", joined).rpartition(".")[2], "")
    if re.search(r"\b(int|float)\b.*, got", found):
        hint = hint or _number_hint(value)
    shown = f" ({value!r:.40})" if not inner and isinstance(value, str | int | float) else ""
    return f"{joined}: {found[0].lower() + found[1:]}{shown}{f'; {hint}' if hint else ''}"


def _number_hint(value: Any) -> str:
    """Return how to write a number that YAML takes for text, such as 1e9; nothing for any other value."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value.strip()):
        return ""
    number = float(value)
    return f"that is text; write {int(number) if number.is_integer() else number}"


_NUMBER = re.compile(r"[+-]?\d{1,20}(\.\d*)?([eE][+-]?\d{1,2})?")


def check_keys(value: Any, kind: Any, where: str = "") -> None:
    """Refuse unknown keys anywhere in a plain value, with the path and the nearest right key."""
    _check_text_keys(value, where)
    _check_choice(value, kind, where)
    _check_bare_word(value, kind, where)
    for struct in _structs_of(kind, value):
        if not isinstance(value, Mapping):
            return
        hints = typing.get_type_hints(struct)
        known = list(struct.__struct_fields__)
        tag_field = struct.__struct_config__.tag_field
        for key, inner in value.items():
            path = f"{where}.{key}" if where else str(key)
            if tag_field is not None and key == tag_field:
                continue
            if key not in known:
                raise ConfigError(unknown_key(key, [tag_field, *known] if tag_field else known, where))
            if key not in _OPAQUE:
                check_keys(inner, hints[key], path)
            elif key != "rows":
                _check_text_keys(inner, path)
        return
    for option in _options(kind):
        origin, arguments = typing.get_origin(option), typing.get_args(option)
        if origin is dict and isinstance(value, Mapping):
            for key, inner in value.items():
                check_keys(dotted_kind(inner), arguments[1], f"{where}.{key}")
        elif origin is list and isinstance(value, list):
            for number, inner in enumerate(value):
                check_keys(dotted_kind(inner), arguments[0], f"{where}[{number}]")


def _check_text_keys(value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                at = f"{where}: " if where else ""
                raise ConfigError(f"{at}a name must be a non-empty string, got {key!r}; quote it")


def _check_choice(value: Any, kind: Any, where: str) -> None:
    """Refuse a word that is none of the choices of a `Literal`, or of the tags of a union, with the nearest."""
    if isinstance(value, Mapping):
        tags = [s.__struct_config__.tag for s in _structs(kind) if s.__struct_config__.tag_field is not None]
        if tags and value.get("kind") not in tags:
            found, choices, where = value.get("kind"), tags, f"{where}.kind"
            if found is None:
                raise ConfigError(f"{where}: missing; one of {', '.join(map(str, choices))}")
        else:
            return
    else:
        options = _options(kind)
        choices = [
            word for option in options if typing.get_origin(option) is Literal for word in typing.get_args(option)
        ]
        if not choices or not isinstance(value, str) or value in choices or str in options:
            return
        found = value
    near = difflib.get_close_matches(str(found), [str(choice) for choice in choices], n=1, cutoff=0.5)
    others = [word for option, word in _OTHERS.items() if option in map(_bare, _options(kind))]
    hint = f"did you mean {near[0]!r}?" if near else f"the choices are {', '.join([*map(str, choices), *others])}"
    raise ConfigError(f"{where}: {found!r} is not a choice; {_number_hint(found) or hint}")


_OTHERS = {int: "a whole number", float: "a number", dict: "a mapping"}
"""What may stand in place of a word, as an error names it."""


def _bare(kind: Any) -> Any:
    return typing.get_origin(kind) or kind


def _check_bare_word(value: Any, kind: Any, where: str) -> None:
    """Refuse a word in place of the mapping that it is a choice of: `packing: concat`, `runtime: local`."""
    if not isinstance(value, str):
        return
    for struct in _structs(kind):
        tag = struct.__struct_config__.tag
        hints = {"kind": Literal[tag]} if tag is not None else typing.get_type_hints(struct)
        for key, hint in hints.items():
            if typing.get_origin(hint) is Literal and value in typing.get_args(hint):
                last = where.rpartition(".")[2]
                written = f"{{{key}: {value}}}" if last.endswith("]") else f"{last}: {{{key}: {value}}}"
                raise ConfigError(f"{where}: expected 'mapping', got {value!r}; write {written}")


def _structs(kind: Any) -> list[type[msgspec.Struct]]:
    return [option for option in _options(kind) if isinstance(option, type) and issubclass(option, msgspec.Struct)]


def _options(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself."""
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def _structs_of(kind: Any, value: Any) -> list[type[msgspec.Struct]]:
    """Return the struct that a plain value of type `kind` would become: by its tag in a union."""
    structs = _structs(kind)
    tagged = [struct for struct in structs if struct.__struct_config__.tag_field is not None]
    if tagged and isinstance(value, Mapping):
        return [
            struct for struct in tagged if struct.__struct_config__.tag == value.get(struct.__struct_config__.tag_field)
        ]
    return structs[:1]

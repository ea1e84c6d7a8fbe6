"""The YAML door: files, overrides, relative paths."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from msd.config.decode import MAX_DEPTH, TOO_DEEP, check_keys
from msd.config.pipeline import NO_SOURCES, PipelineConfig
from msd.core.checks import own_path, working_directory
from msd.core.dotted import look_in
from msd.errors import ConfigError, told
from msd.sources.config import PACKED

_MAX_VALUES = 1_000_000
"""Of a YAML configuration, with every alias written out."""


def load_config(path: str | os.PathLike[str], overrides: str | Sequence[str] = ()) -> PipelineConfig:
    """Read a configuration from YAML.

    Args:
        path: The file. Relative paths inside it resolve against its directory, and dotted paths find modules there:
            the directory is appended to `sys.path`.
        overrides: `a.b=c` settings that win over the file, or one of them; values are read as YAML, and `a.b=@file`
            reads the value from a YAML file, relative to the working directory. List items by number:
            `sources.web.transforms.0.append_eos=true`.

    Raises:
        ConfigError: One line with the path of the setting, what was found, and what to do.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(
            f"load_config takes the path of a YAML file, got {type(path).__name__}; settings that are Python values "
            "are msd.Config(**settings)"
        )
    working_directory()  # Without one neither paths nor modules can be looked for.
    file = Path(own_path(os.fspath(path), name="configuration"))
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot read configuration {str(file)!r}: {reason}; `msd init PATH` writes one") from None
    base = file.resolve().parent
    look_in(base)
    return parse_config(text, base=base, overrides=overrides, name=str(file))


def parse_config(
    text: str, *, base: Path, overrides: str | Sequence[str] = (), name: str = "configuration"
) -> PipelineConfig:
    """Return the configuration that a YAML text describes; relative paths resolve against `base`."""
    try:
        raw = yaml.load(text, Loader=_OwnLoader)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where is not None else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ConfigError(f"{name}{line}: not YAML: {problem}") from None
    except RecursionError:
        raise ConfigError(f"{name}: {TOO_DEEP}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{name}: a configuration is a mapping with at least `sources:`, got {type(raw).__name__}")
    for override in [overrides] if isinstance(overrides, str) else overrides:
        _apply_override(raw, override)
    try:
        _check_size(raw)
        check_keys(raw, PipelineConfig)
        if "sources" not in raw:
            raise ConfigError(NO_SOURCES)
        _resolve_paths(raw, base)
        return PipelineConfig(**raw)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


class _OwnLoader(yaml.SafeLoader):
    """Refuses a key that stands twice, of which YAML would silently keep the last, and says where a value is wrong."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (yaml.YAMLError, RecursionError):
            raise
        except Exception as error:
            # A date that there is not, a tag that does not fit its value: whatever the conversion raises.
            kind = node.tag.rpartition(":")[2]
            found = f"{node.value[:40]!r} is no {kind}" if isinstance(node.value, str) else f"this is no {kind}"
            problem = f"{found} ({told(error)}); quote it if it is text"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _check_size(raw: Any) -> None:
    """Refuse values nested without end, and aliases that multiply without end."""
    level, count = [raw], 0
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        count += len(level)
        if count > _MAX_VALUES:
            raise ConfigError(f"more than {_MAX_VALUES:,} values, aliases written out; make it smaller")
        if not level:
            return
    raise ConfigError(TOO_DEEP)


def _apply_override(raw: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(f"override {override!r} must look like a.b=c")
    if text.startswith("@"):
        text = _value_file(text[1:], override)
    try:
        value = yaml.load(text, Loader=_OwnLoader)
    except (yaml.YAMLError, RecursionError):
        raise ConfigError(f"override {override[:80]!r}: {text[:60]!r} is not a YAML value; quote it") from None
    *parents, last = path.split(".")
    place: Any = raw
    for piece in parents:
        if isinstance(place, list):
            place = _item(place, piece, override)
        elif isinstance(place, dict):
            if place.get(piece) is None:
                place[piece] = {}
            place = place[piece]
        else:
            raise ConfigError(f"override {override!r}: {piece!r} lies inside a plain value")
    if isinstance(place, list):
        _item(place, last, override)
        place[int(last)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise ConfigError(f"override {override!r}: {last!r} lies inside a plain value")


def _value_file(path: str, override: str) -> str:
    """Return the text of `a.b=@file`: a plain YAML value never begins with @."""
    try:
        return Path(own_path(path, name=f"override {override[:80]!r}")).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"override {override[:80]!r}: cannot read {path!r}: {reason}") from None


def _item(items: list[Any], piece: str, override: str) -> Any:
    # Not isdigit, which is true of ² as well.
    if not piece.isdecimal() or len(piece) > 9 or int(piece) >= len(items):
        raise ConfigError(
            f"override {override!r}: {piece!r} must be a number below {len(items)}, the length of the list"
        )
    return items[int(piece)]


def _resolve_paths(raw: dict[str, Any], base: Path) -> None:
    if isinstance(raw.get("runtime"), dict):
        _resolve(raw["runtime"], "events", base)
    if isinstance(raw.get("checkpoint"), dict):
        _resolve(raw["checkpoint"], "path", base)
    security = raw.get("security")
    for section in (security, *security.values()) if isinstance(security, dict) else ():
        for key in ("ca", "certificate", "key") if isinstance(section, dict) else ():
            _resolve(section, key, base)
    sources = raw.get("sources")
    if not isinstance(sources, dict):
        return
    for name, source in sources.items():
        if isinstance(source, str | list):
            sources[name] = source = {"path": source}
        if not isinstance(source, dict):
            continue
        _resolve(source, "path", base)
        if source.get("format") == PACKED and isinstance(source.get("options"), dict):
            _resolve_tokenizer(source["options"], base)
        _resolve(source, "spool", base)
        transforms = source.get("transforms")
        for transform in transforms if isinstance(transforms, list) else []:
            if isinstance(transform, dict):
                _resolve_tokenizer(transform, base)
            if isinstance(transform, dict) and transform.get("kind") == "image":
                _resolve(transform, "folder", base)
        if isinstance(source.get("on_error"), dict):
            _resolve(source["on_error"], "quarantine", base)


def _resolve_tokenizer(values: dict[str, Any], base: Path) -> None:
    if values.get("tokenizer") != "bytes":
        _resolve(values, "tokenizer", base)


def _resolve(values: dict[str, Any], key: str, base: Path) -> None:
    found = values.get(key)
    if isinstance(found, str):
        values[key] = _against(base, found)
    elif isinstance(found, list):
        values[key] = [_against(base, item) if isinstance(item, str) else item for item in found]


def _against(base: Path, path: str) -> str:
    if "://" in path or "::" in path:
        return path
    # An empty path, or a home folder that there is not, is refused where every path is, by the name of its setting.
    return path if path.startswith("~") or not path else os.path.normpath(base / path)

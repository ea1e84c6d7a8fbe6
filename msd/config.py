"""Everything a user may set: YAML at the door, or the same thing as Python values."""

import difflib
import os
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from msd.core.checks import check_range, own_path
from msd.core.config import ConfigStruct, unknown_key
from msd.core.dotted import import_dotted as import_dotted
from msd.core.dotted import look_in
from msd.core.mesh import AXES, Mesh
from msd.cost.config import CostConfig, TransformerCost
from msd.errors import ConfigError, told
from msd.loader.config import SourceConfig
from msd.loader.transforms.config import TokenizeConfig, TransformConfig
from msd.planner.config import BalanceConfig, BatchConfig, MixtureConfig

DEFAULT_COST = {"backbone": TransformerCost(hidden=4096, layers=32)}

_MAX_PARTS = 1 << 16
"""Of microbatches, loaders, constructors and hosts: far above any machine, far below what memory cannot hold."""
_MAX_ROW_TOKENS = (1 << 31) - 1
"""Offsets in a row are int32."""
_MAX_VALUES, _MAX_DEPTH = 1_000_000, 64
"""Of a YAML configuration, with every alias written out."""

_NO_SOURCES = "sources is empty; name at least one: sources: {web: {format: jsonl, path: web/*.jsonl}}"


class RuntimeConfig(ConfigStruct, frozen=True, kw_only=True):
    """Where the engine runs."""

    kind: Literal["local", "dask"] = "dask"
    """dask: stateful actors on a cluster, of the run's own unless `scheduler` says otherwise. local: all in this
    process. Both deliver the same bytes."""
    scheduler: str | None = None
    """Address of a running scheduler; null starts a cluster of its own."""
    workers: int = 2
    """Loader hosts."""
    compact: bool = True
    """Roles may share processes."""
    deadline_s: float = 300.0
    """No wait lasts longer; it ends in an error that names whom it waited for."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"runtime.workers must be at least 1 loader host, got {self.workers}")
        check_range("runtime.workers", self.workers, 1, _MAX_PARTS)
        if self.deadline_s <= 0:
            raise ConfigError(f"runtime.deadline_s must be above 0 seconds, got {self.deadline_s}")
        check_range("runtime.deadline_s", self.deadline_s, 0.001, 1e9)


class CheckpointConfig(ConfigStruct, frozen=True, kw_only=True):
    """Where the run's position is kept."""

    path: str
    every: int = 100
    """Steps between snapshots."""
    keep: int = 3
    resume: Literal["auto", "never", "must"] = "auto"

    def __post_init__(self) -> None:
        if self.every < 1 or self.keep < 1:
            raise ConfigError(f"checkpoint needs every >= 1 and keep >= 1, got every={self.every}, keep={self.keep}")
        msgspec.structs.force_setattr(self, "path", own_path(self.path, name="checkpoint.path"))


class Config(ConfigStruct, frozen=True, kw_only=True):
    """A whole run. Made by `load_config` from YAML, or directly: `msd.Config(sources={"mine": "folder/*.jsonl"})`.

    From Python, a source may be a path, a list of dictionaries, a DataFrame, an Arrow table, a Hugging Face dataset,
    a class or a factory of iterables; a transform may be a function; every section may be a plain dictionary.

    Raises:
        ConfigError: One line with the path of the setting, what was found, and what to do.
    """

    seed: int = 17
    sources: dict[str, SourceConfig]
    mixture: MixtureConfig = MixtureConfig()
    batch: BatchConfig = BatchConfig()
    mesh: dict[str, int] = msgspec.field(default_factory=lambda: {"pp": 1, "dp": 4, "cp": 1, "tp": 1})
    """Axis sizes, outermost first."""
    num_microbatches: int = 4
    """Per data-parallel rank and step."""
    strategy: Any = "default"
    """default, or a function `(graph, context) -> graph`, or its dotted path `package.module:function`."""
    balance: BalanceConfig = BalanceConfig()
    cost: dict[str, CostConfig] = msgspec.field(default_factory=lambda: dict(DEFAULT_COST))
    """Per module: `backbone` (by tokens) and, for images, `encoder` (by patches)."""
    broadcast: list[str] = []
    """Axes along which only the rank at coordinate 0 fetches."""
    fields_by_stage: bool = False
    """True: the first, middle and last pipeline stages get only the fields they need."""
    loaders: int | Literal["auto"] | dict[str, int] = "auto"
    """Loaders per source. Never changes what is delivered."""
    constructors: int | Literal["auto"] = "auto"
    """Never changes what is delivered."""
    shadows: int = 0
    """Standby loader hosts."""
    runtime: RuntimeConfig = RuntimeConfig()
    checkpoint: CheckpointConfig | None = None
    """Null writes and resumes nothing."""

    def __post_init__(self) -> None:
        for name, kind in typing.get_type_hints(Config).items():
            value = getattr(self, name)
            if name == "sources":
                value = _decode_sources(value)
            elif name != "strategy":
                value = _decode(_normalised(name, value), kind, name)
            msgspec.structs.force_setattr(self, name, value)
        self._check()

    @property
    def place(self) -> Mesh:
        """The trainer mesh."""
        return Mesh.of(**self.mesh)

    @property
    def sequences_per_microbatch(self) -> int:
        """Micro batch size: sequences of one row."""
        return self.batch.global_batch_size // (self.place.size("dp") * self.num_microbatches)

    @property
    def document_multiple(self) -> int:
        """Tokens that a document's extent is a multiple of."""
        if self.batch.document_multiple != "auto":
            return self.batch.document_multiple
        mesh = self.place
        multiple = 2 * mesh.size("cp") if mesh.size("cp") > 1 else 1
        return multiple * (mesh.size("tp") if self.batch.sequence_parallel else 1)

    @property
    def weights(self) -> dict[str, float]:
        """Share of each source at step 0, zero for sources left out, before any schedule."""
        if self.mixture.weights is None:
            return dict.fromkeys(self.sources, 1.0)
        return {name: self.mixture.weights.get(name, 0.0) for name in self.sources}

    @property
    def lookahead(self) -> int:
        """Samples that may wait for the next step."""
        chosen = self.batch.packing.lookahead
        return min(32, self.batch.global_batch_size) if chosen == "auto" else chosen

    def replace(self, **changes: Any) -> "PipelineConfig":
        """Return a copy with some settings changed; what a change does not name stays.

        `config.replace(mesh={"dp": 2}, sources={"web": {"split": [0.0, 0.9]}}, mixture={"weights": {"web": 1}})`

        Sections and `mesh` are merged key by key, sources by name and then key by key: a new name adds a source, None
        takes one away, and anything but a mapping (a path, a DataFrame) takes the place of the whole source. Lists and
        the mappings `mixture.weights`, `cost`, `loaders` and `options` are replaced as a whole.

        Raises:
            ConfigError: If there is no such setting, or the result cannot mean anything.
        """
        values = _as_dict(self)
        for name, change in changes.items():
            if name not in values:
                raise ConfigError(unknown_key(name, list(values)))
            values[name] = _merged_sources(values[name], change) if name == "sources" else _merged(values[name], change)
            if name == "mesh" and isinstance(change, Mapping):
                values[name] = {**self.mesh, **change}
        return Config(**values)

    def __repr__(self) -> str:
        described = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Config({described})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        batch = self.batch
        return [
            ("sources", {name: source.format for name, source in self.sources.items()}),
            ("mesh", {axis: size for axis, size in self.place.as_dict().items() if size > 1}),
            ("num_microbatches", self.num_microbatches),
            ("batch", f"{batch.global_batch_size} x {batch.sequence_length} tokens, {batch.packing.method}"),
            ("seed", self.seed),
        ]

    def _check(self) -> None:
        if not self.sources:
            raise ConfigError(_NO_SOURCES)
        _check_strategy(self.strategy)
        mesh = self.place
        _check_names(self.mixture.weights, self.sources, "mixture.weights")
        for stage in self.mixture.schedule:
            _check_names(stage.weights, self.sources, f"mixture.schedule stage at step {stage.step}")
        if self.fields_by_stage:
            raise ConfigError("fields_by_stage: true is not supported by this release; every rank gets all fields")
        if isinstance(self.loaders, dict):
            _check_names(self.loaders, self.sources, "loaders")
        loaders = self.loaders.values() if isinstance(self.loaders, dict) else [self.loaders]
        counts = {"num_microbatches": [self.num_microbatches], "loaders": loaders, "constructors": [self.constructors]}
        for setting, values in counts.items():
            for value in values:
                if value != "auto" and value < 1:
                    raise ConfigError(f"{setting} must be at least 1, got {value}")
                if value != "auto":
                    check_range(setting, value, 1, _MAX_PARTS)
        if self.shadows < 0:
            raise ConfigError(f"shadows must be 0 or more, got {self.shadows}")
        check_range("shadows", self.shadows, 0, _MAX_PARTS)
        rows = mesh.size("dp") * self.num_microbatches
        if self.batch.global_batch_size % rows:
            raise ConfigError(
                f"batch.global_batch_size {self.batch.global_batch_size} does not divide by dp * num_microbatches = "
                f"{mesh.size('dp')} * {self.num_microbatches} = {rows}; set it to a multiple of {rows}, "
                f"for instance {max(rows, round(self.batch.global_batch_size / rows) * rows)}"
            )
        row_tokens = self.batch.global_batch_size // rows * self.batch.sequence_length
        if row_tokens > _MAX_ROW_TOKENS:
            raise ConfigError(
                f"a microbatch has {row_tokens} tokens (global_batch_size / (dp * num_microbatches) * "
                f"sequence_length), which must be at most {_MAX_ROW_TOKENS}; raise num_microbatches, or lower "
                "batch.global_batch_size"
            )
        for axis in self.broadcast:
            if axis not in AXES:
                raise ConfigError(unknown_key(axis, list(AXES), "broadcast"))
            if axis == "dp":
                raise ConfigError("broadcast: [dp] would give every rank the same data; use tp, cp or pp")
        multiple = self.document_multiple
        if self.batch.sequence_length % multiple:
            raise ConfigError(
                f"batch.sequence_length {self.batch.sequence_length} is not a multiple of document_multiple "
                f"{multiple}; set it to {max(1, self.batch.sequence_length // multiple) * multiple}"
            )
        cp = mesh.size("cp")
        if cp > 1 and self.batch.slice == "zigzag" and multiple % (2 * cp):
            raise ConfigError(
                f"batch.document_multiple {multiple} must be a multiple of 2 * cp = {2 * cp} to slice documents for "
                f"context parallelism; set it to {2 * cp}, or batch.slice: none"
            )
        for module in self.cost:
            if module not in ("backbone", "encoder"):
                raise ConfigError(unknown_key(module, ["backbone", "encoder"], "cost"))
        if "backbone" not in self.cost:
            raise ConfigError("cost needs an entry backbone, for instance cost: {backbone: {kind: tokens}}")
        for name, source in self.sources.items():
            for transform in source.transforms:
                tokenizer = transform.tokenizer if isinstance(transform, TokenizeConfig) else "bytes"
                if tokenizer != "bytes" and not os.path.isfile(tokenizer):
                    raise ConfigError(
                        f"sources.{name}: tokenizer {tokenizer!r} is not a file; give the path of a "
                        "tokenizer.json, or tokenizer: bytes"
                    )


PipelineConfig = Config
"""What the rooms of the package call it."""


def load_config(path: str | os.PathLike[str], overrides: str | Sequence[str] = ()) -> PipelineConfig:
    """Read a configuration from YAML.

    Args:
        path: The file. Relative paths inside it resolve against its directory, and dotted paths find modules there:
            the directory is appended to `sys.path`.
        overrides: `a.b=c` settings that win over the file, or one of them; values are read as YAML. List items by
            number: `sources.web.transforms.0.append_eos=true`.

    Raises:
        ConfigError: One line with the path of the setting, what was found, and what to do.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(
            f"load_config takes the path of a YAML file, got {type(path).__name__}; settings that are Python values "
            "are msd.Config(**settings)"
        )
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
        raise ConfigError(f"{name}: {_TOO_DEEP}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{name}: a configuration is a mapping with at least `sources:`, got {type(raw).__name__}")
    for override in [overrides] if isinstance(overrides, str) else overrides:
        _apply_override(raw, override)
    try:
        _check_size(raw)
        _check_keys(raw, PipelineConfig)
        if "sources" not in raw:
            raise ConfigError(_NO_SOURCES)
        _resolve_paths(raw, base)
        return PipelineConfig(**raw)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


_TOO_DEEP = f"values are nested deeper than {_MAX_DEPTH} levels, or hold themselves; write them flatter"


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
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key != "<<" and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _check_size(raw: Any) -> None:
    """Refuse values nested without end, and aliases that multiply without end."""
    level, count = [raw], 0
    for _ in range(_MAX_DEPTH):
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
    raise ConfigError(_TOO_DEEP)


def _check_strategy(strategy: Any) -> None:
    is_dotted = isinstance(strategy, str) and all(strategy.partition(":"))
    if strategy != "default" and not is_dotted and not callable(strategy):
        raise ConfigError(
            f"strategy must be default, a dotted path package.module:function, or from Python a function "
            f"(graph, context) -> graph; got {strategy!r}"
        )


def _decode_sources(value: Any) -> dict[str, SourceConfig]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"sources must be a mapping from names to sources, got {type(value).__name__}")
    decoded = {}
    for name, source in value.items():
        if not isinstance(name, str) or not name:
            raise ConfigError(f"sources: a name must be a non-empty string, got {name!r}; quote it")
        where = f"sources.{name}"
        try:
            decoded[name] = _decode(_source_values(source, where), SourceConfig, where)
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
        return _dotted_kind(transform)
    if callable(transform) and not isinstance(transform, msgspec.Struct):
        return {"kind": "function", "function": transform}
    return transform


def _dotted_kind(values: Any) -> Any:
    """Return `{kind: package.module:function}` as the function form of its union."""
    if isinstance(values, Mapping) and isinstance(values.get("kind"), str) and ":" in values["kind"]:
        return {**values, "kind": "function", "function": values["kind"]}
    return values


def _normalised(name: str, value: Any) -> Any:
    if name == "cost" and (callable(value) or isinstance(value, msgspec.Struct)):
        value = {"backbone": value}
    if name == "cost" and isinstance(value, Mapping):
        if "kind" in value:
            value = {"backbone": value}
        return {
            module: {"kind": "function", "function": cost} if callable(cost) else _dotted_kind(cost)
            for module, cost in value.items()
        }
    return value


def _as_dict(struct: msgspec.Struct) -> dict[str, Any]:
    return {field: getattr(struct, field) for field in struct.__struct_fields__}


_ORIGIN = ("format", "path", "rows", "cls", "options")
"""What says where a source's rows come from."""


def _merged(current: Any, change: Any) -> Any:
    """Return a setting after a change: a section merged key by key, anything else replaced."""
    if not isinstance(change, Mapping) or not isinstance(current, msgspec.Struct):
        return change
    values = _as_dict(current)
    return values | {key: _merged(values.get(key), value) for key, value in change.items()}


def _merged_sources(current: Mapping[str, SourceConfig], change: Any) -> Any:
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
    values = _merged(current, change)
    given = {key for key in _ORIGIN if change.get(key) is not None}
    comes_from = "rows" if current.rows is not None else "cls" if current.cls is not None else "path"
    if given & {"rows", "cls", "path"} - {comes_from}:
        # Rows from elsewhere: what said where they came from before does not apply to them.
        return {key: value for key, value in values.items() if key not in _ORIGIN or key in change}
    return dict(values)


def _decode(value: Any, kind: Any, where: str) -> Any:
    """Convert a plain value to its configuration type, with errors that carry the setting's path."""
    try:
        _check_keys(value, kind, where)
        return msgspec.convert(_plain(value), kind, strict=True, from_attributes=True)
    except RecursionError:
        raise ConfigError(f"{where}: {_TOO_DEEP}") from None
    except OverflowError:
        raise ConfigError(f"{where}: a number in it is too large; correct it") from None
    except msgspec.ValidationError as error:
        if typing.get_origin(kind) is dict and isinstance(value, Mapping):
            # One entry at a time, so that the path names the key; msgspec says only "[...]".
            for key, inner in value.items():
                _decode(inner, typing.get_args(kind)[1], f"{where}.{key}")
        raise ConfigError(_readable(str(error), where)) from None


def _plain(value: Any) -> Any:
    """Return configuration structs as dictionaries, so that one conversion checks every door."""
    if isinstance(value, ConfigStruct):
        plain = {field: _plain(getattr(value, field)) for field in value.__struct_fields__}
        tag = value.__struct_config__.tag
        return plain | ({value.__struct_config__.tag_field: tag} if tag is not None else {})
    if isinstance(value, dict):
        return {key: inner if key in _OPAQUE else _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


_OPAQUE = ("rows", "cls", "function", "options", "storage_options")


_WRITE = {"split": "write [from, to], for instance split: [0.0, 0.9]"}
"""How to write a setting, where the name of its type does not say it."""


def _readable(message: str, where: str) -> str:
    found, _, path = message.partition(" - at `")
    inner = re.sub(r"^\$\.?", "", path.rstrip("`"))
    inner = re.sub(r"\[\.\.\.\]", "", inner)
    joined = where if not inner else f"{where}{'' if inner.startswith('[') else '.'}{inner}"
    found = re.sub(r"\barray\b", "list", re.sub(r"\bobject\b", "mapping", found))
    found = found.replace("Object missing required field", "missing required key").replace("`", "'")
    hint = _WRITE.get(re.sub(r"\[\d+\]$", "", joined).rpartition(".")[2])
    return f"{joined}: {found[0].lower() + found[1:]}{f'; {hint}' if hint else ''}"


def _check_keys(value: Any, kind: Any, where: str = "") -> None:
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
                _check_keys(inner, hints[key], path)
            elif key != "rows":
                _check_text_keys(inner, path)
        return
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict and isinstance(value, Mapping):
        for key, inner in value.items():
            _check_keys(_dotted_kind(inner), arguments[1], f"{where}.{key}")
    elif origin is list and isinstance(value, list):
        for number, inner in enumerate(value):
            _check_keys(_dotted_kind(inner), arguments[0], f"{where}[{number}]")


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
        options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
        choices = [
            word for option in options if typing.get_origin(option) is Literal for word in typing.get_args(option)
        ]
        if not choices or not isinstance(value, str) or value in choices or str in options:
            return
        found = value
    near = difflib.get_close_matches(str(found), [str(choice) for choice in choices], n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"the choices are {', '.join(map(str, choices))}"
    raise ConfigError(f"{where}: {found!r} is not a choice; {hint}")


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
    options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    return [option for option in options if isinstance(option, type) and issubclass(option, msgspec.Struct)]


def _structs_of(kind: Any, value: Any) -> list[type[msgspec.Struct]]:
    """Return the struct that a plain value of type `kind` would become: by its tag in a union."""
    structs = _structs(kind)
    tagged = [struct for struct in structs if struct.__struct_config__.tag_field is not None]
    if tagged and isinstance(value, Mapping):
        return [
            struct for struct in tagged if struct.__struct_config__.tag == value.get(struct.__struct_config__.tag_field)
        ]
    return structs[:1]


def _check_names(weights: Mapping[str, float] | None, sources: Mapping[str, Any], where: str) -> None:
    for name in weights or ():
        if name not in sources:
            near = difflib.get_close_matches(name, list(sources), n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "name a source that exists or add it under sources"
            raise ConfigError(f"{where}: there is no source {name!r} (sources: {', '.join(sources)}); {hint}")
    if weights is not None and not any(weight > 0 for weight in weights.values()):
        raise ConfigError(f"{where}: all weights are 0, so nothing could be drawn; give at least one source a share")


def _apply_override(raw: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    if not equals or not path:
        raise ConfigError(f"override {override!r} must look like a.b=c")
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


def _item(items: list[Any], piece: str, override: str) -> Any:
    # Not isdigit, which is true of ² as well.
    if not piece.isdecimal() or len(piece) > 9 or int(piece) >= len(items):
        raise ConfigError(
            f"override {override!r}: {piece!r} must be a number below {len(items)}, the length of the list"
        )
    return items[int(piece)]


def _resolve_paths(raw: dict[str, Any], base: Path) -> None:
    if isinstance(raw.get("checkpoint"), dict):
        _resolve(raw["checkpoint"], "path", base)
    sources = raw.get("sources")
    if not isinstance(sources, dict):
        return
    for name, source in sources.items():
        if isinstance(source, str | list):
            sources[name] = source = {"path": source}
        if not isinstance(source, dict):
            continue
        _resolve(source, "path", base)
        transforms = source.get("transforms")
        for transform in transforms if isinstance(transforms, list) else []:
            if isinstance(transform, dict) and transform.get("tokenizer") != "bytes":
                _resolve(transform, "tokenizer", base)
        if isinstance(source.get("on_error"), dict):
            _resolve(source["on_error"], "quarantine", base)


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


TransformLike = TransformConfig | Callable[..., Any]
"""What may stand in `transforms` from Python."""

"""Everything a user may set, as one value that is checked once, when it is made."""

import difflib
import os
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from msd.config.decode import decode
from msd.config.doors import as_dict, decode_sources, merged, merged_mesh, merged_sources, normalised
from msd.config.security import SecurityConfig
from msd.config.strategy import strategy_of
from msd.core.axes import AXES, SPLIT_DP
from msd.core.checks import check_range, few, own_path
from msd.core.config import ConfigStruct, parse_bytes, unknown_key
from msd.core.mesh import Mesh
from msd.core.stages import Stages
from msd.cost.config import CostConfig, TransformerCost
from msd.errors import ConfigError
from msd.loader.config import SourceConfig
from msd.loader.transforms.config import TokenizingStruct
from msd.planner.batch_schedule import AUTO_LOOKAHEAD, BatchSchedule, schedule_of
from msd.planner.config import BalanceConfig, BatchConfig, EncoderConfig, MixtureConfig
from msd.planner.config.mixture import groups_of, relative_weights, sources_of
from msd.scaling.config import ScalingConfig

DEFAULT_COST = {"backbone": TransformerCost(hidden=4096, layers=32)}


_MAX_PARTS = 1 << 16
"""Of microbatches, loaders, constructors and hosts: far above any machine, far below what memory cannot hold."""


_MAX_ROW_TOKENS = (1 << 31) - 1
"""Offsets in a row are int32."""


NO_SOURCES = "sources is empty; name at least one: sources: {web: {format: jsonl, path: web/*.jsonl}}"


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
    silence_s: float = 3.0
    """A process of the run that says nothing for so long is taken for lost: others take over what it had. If it was
    only slow it comes back as one more."""
    host_memory: int | str | None = None
    """What one loader host may hold before the row that it is at is taken for one that eats memory, such as 8GiB.
    Null watches nothing."""
    fill_shadows: bool = False
    """True: shadows read ahead what the hosts that they stand by for prepare. False: they hold no payload."""
    events: str | None = None
    """File that gets a JSON line for whatever happens: losses, edits, decisions, saves, progress. Null writes none."""

    def __post_init__(self) -> None:
        if self.host_memory is not None:
            size = parse_bytes(self.host_memory, name="runtime.host_memory")
            msgspec.structs.force_setattr(self, "host_memory", size)
        if self.events is not None:
            msgspec.structs.force_setattr(self, "events", own_path(self.events, name="runtime.events"))
            if "://" in self.events:
                raise ConfigError(f"runtime.events {self.events!r} is a URL; give the path of a local file")
        check_range("runtime.silence_s", self.silence_s, 0.1, 1e9)
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
    """Snapshots that stay."""
    resume: Literal["auto", "never", "must"] = "auto"
    """auto: from the newest snapshot, if there is one. must: there has to be one. never: from the beginning, and only
    where no snapshot lies."""
    storage_options: dict[str, Any] = {}
    """For a `path` that is an fsspec URL."""
    lease_s: float = 30.0
    """Another run may take the path over when its owner has not renewed its lease for so long."""
    take_over: bool = False
    """True: take the path from a run that still holds its lease; that one ends."""
    force: bool = False
    """True: resume in spite of changes that make another order from there on, such as another seed or tokenizer."""

    def __post_init__(self) -> None:
        if self.every < 1 or self.keep < 1:
            raise ConfigError(f"checkpoint needs every >= 1 and keep >= 1, got every={self.every}, keep={self.keep}")
        check_range("checkpoint.lease_s", self.lease_s, 0.01, 1e9)
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
    """Axis sizes, outermost first: `pp`, `dp` (or `dp_replicate` and `dp_shard`), `cp`, `tp`, `ep`; see `Mesh.of`."""
    num_microbatches: int = 4
    """Per data-parallel rank and step."""
    strategy: Any = "default"
    """A strategy that comes with msd by its name, a function `(graph, context) -> graph`, its dotted path
    `package.module:function`, or `{function: ..., options: {...}}`; see `msd.planner.strategies`."""
    balance: BalanceConfig = BalanceConfig()
    cost: dict[str, CostConfig] = msgspec.field(default_factory=lambda: dict(DEFAULT_COST))
    """Per module: `backbone` (by tokens) and, for images, `encoder` (by patches)."""
    encoder: EncoderConfig = EncoderConfig()
    broadcast: list[str] = []
    """Axes along which only the rank at coordinate 0 fetches."""
    fields_by_stage: bool = False
    """True: the first, middle and last pipeline stages get only the fields they need."""
    stages: Stages = Stages()
    """How pipeline stages lie on the ranks of `pp`."""
    loaders: int | Literal["auto"] | dict[str, int] = "auto"
    """Loaders per source. Never changes what is delivered."""
    constructors: int | Literal["auto"] = "auto"
    """Never changes what is delivered."""
    shadows: int = 0
    """Standby loader hosts."""
    runtime: RuntimeConfig = RuntimeConfig()
    checkpoint: CheckpointConfig | None = None
    """Null writes and resumes nothing."""
    scaling: ScalingConfig | None = None
    """Null keeps the sizes that the run began with."""
    security: SecurityConfig | None = None
    """Certificates: everything that goes over TCP is encrypted, and both sides show one. Null encrypts nothing."""

    def __post_init__(self) -> None:
        for name, kind in typing.get_type_hints(Config).items():
            value = getattr(self, name)
            if name == "sources":
                value = decode_sources(value)
            elif name != "strategy":
                value = decode(normalised(name, value), kind, name)
            msgspec.structs.force_setattr(self, name, value)
        self._check()

    @property
    def place(self) -> Mesh:
        """The trainer mesh."""
        return Mesh.of(**self.mesh)

    @property
    def sequences_per_microbatch(self) -> int:
        """Micro batch size: sequences of one row, in the first step."""
        schedule = schedule_of(self.batch, self.multiple_of)
        num_sequences = self.batch.global_batch_size if schedule is None else schedule.at(0).num_sequences
        return num_sequences // (self.place.size("dp") * self.num_microbatches)

    @property
    def longest_sequence(self) -> int:
        """Tokens of a sequence where it is longest: no sample is longer."""
        return max(BatchSchedule(self.batch, 1).lengths)

    @property
    def multiple_of(self) -> int:
        """What numbers of sequences are rounded down to a multiple of."""
        if self.batch.multiple_of != "auto":
            return self.batch.multiple_of
        return self.place.size("dp") * self.num_microbatches

    @property
    def document_multiple(self) -> int:
        """Tokens that a document's extent is a multiple of."""
        if self.batch.document_multiple != "auto":
            return self.batch.document_multiple
        mesh = self.place
        multiple = 2 * mesh.size("cp") if mesh.size("cp") > 1 and self.batch.slice != "headtail" else 1
        return multiple * (mesh.size("tp") if self.batch.sequence_parallel else 1)

    @property
    def weights(self) -> dict[str, float]:
        """Relative weight of each source before any schedule and any size, zero for sources left out."""
        return relative_weights(self.mixture.weights, self.sources)

    @property
    def lookahead(self) -> int:
        """Samples that may wait for the next step."""
        chosen = self.batch.packing.lookahead
        return min(AUTO_LOOKAHEAD, self.batch.global_batch_size) if chosen == "auto" else chosen

    def max_epochs(self, source: str) -> float | None:
        """Return the passes over a source at most, by itself and by the mixture; None is for ever."""
        most = (self.sources[source].max_epochs, self.mixture.repetitions_of(source))
        return min((number for number in most if number is not None), default=None)

    def end_of(self, source: str) -> Literal["repeat", "stop", "drop", "error"]:
        """Return what happens when a source ends: repeat, stop, drop or error."""
        if self.max_epochs(source) is None:
            return "repeat"
        return self.sources[source].on_exhausted or self.mixture.on_exhausted or "stop"

    def replace(self, **changes: Any) -> "PipelineConfig":
        """Return a copy with some settings changed; what a change does not name stays.

        `config.replace(mesh={"dp": 2}, sources={"web": {"split": [0.0, 0.9]}}, mixture={"weights": {"web": 1}})`

        Sections and `mesh` are merged key by key, sources by name and then key by key: a new name adds a source, None
        takes one away, and anything but a mapping (a path, a DataFrame) takes the place of the whole source. Lists and
        the mappings `mixture.weights`, `cost`, `loaders` and `options` are replaced as a whole.

        Raises:
            ConfigError: If there is no such setting, or the result cannot mean anything.
        """
        values = as_dict(self)
        for name, change in changes.items():
            if name not in values:
                raise ConfigError(unknown_key(name, list(values)))
            values[name] = merged_sources(values[name], change) if name == "sources" else merged(values[name], change)
            if name == "mesh" and isinstance(change, Mapping):
                values[name] = merged_mesh(self.mesh, change)
        return Config(**values)

    def on_mesh(self, sizes: Mapping[str, int]) -> "PipelineConfig":
        """Return a copy for another mesh: axes that `sizes` leaves out have size 1, and all stay in their places."""
        return Config(**as_dict(self) | {"mesh": merged_mesh(dict.fromkeys(self.mesh, 1), sizes)})

    def __repr__(self) -> str:
        described = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"Config({described})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        batch = self.batch
        sizes = f"{batch.global_batch_size} x {batch.sequence_length} tokens"
        if batch.tokens_per_step is not None:
            sizes = f"{batch.tokens_per_step} tokens in sequences of {batch.sequence_length}"
        return [
            ("sources", {name: source.format for name, source in self.sources.items()}),
            ("mesh", {axis: size for axis, size in self.place.as_dict().items() if size > 1}),
            ("num_microbatches", self.num_microbatches),
            ("batch", f"{sizes}, {batch.packing.method}"),
            ("seed", self.seed),
        ]

    def _check(self) -> None:
        if not self.sources:
            raise ConfigError(NO_SOURCES)
        strategy_of(self.strategy)
        if self.security is not None:
            self.security.check_scheduler(self.runtime.scheduler)
        mesh = self.place
        self._check_mixture()
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
        is_usual = self.batch.multiple_of == "auto" and self.batch.tokens_per_step is None and not self.batch.schedule
        name = "global_batch_size" if is_usual else "multiple_of"
        size = self.batch.global_batch_size if is_usual else self.multiple_of
        if size % rows:
            raise ConfigError(
                f"batch.{name} {size} does not divide by dp * num_microbatches = "
                f"{mesh.size('dp')} * {self.num_microbatches} = {rows}; set it to a multiple of {rows}, "
                f"for instance {max(rows, round(size / rows) * rows)}"
            )
        schedule = BatchSchedule(self.batch, self.multiple_of)
        row_tokens = schedule.most_tokens // rows
        if row_tokens > _MAX_ROW_TOKENS:
            raise ConfigError(
                f"a microbatch has {row_tokens} tokens (global_batch_size / (dp * num_microbatches) * "
                f"sequence_length), which must be at most {_MAX_ROW_TOKENS}; raise num_microbatches, or lower "
                "batch.global_batch_size"
            )
        for axis in self.broadcast:
            if axis not in (*AXES, *mesh.as_dict()):
                raise ConfigError(unknown_key(axis, list(mesh.as_dict()), "broadcast"))
            if axis in ("dp", *SPLIT_DP):
                raise ConfigError(f"broadcast: [{axis}] would give every rank the same data; use tp, cp or pp")
        multiple = self.document_multiple
        for length in schedule.lengths:
            if length % multiple:
                raise ConfigError(
                    f"batch.sequence_length {length} is not a multiple of document_multiple {multiple}; set it to "
                    f"{max(1, length // multiple) * multiple}"
                )
        cp = mesh.size("cp")
        for length in schedule.lengths:
            if cp > 1 and self.batch.slice == "headtail" and length % (2 * cp):
                raise ConfigError(
                    f"batch.sequence_length {length} must be a multiple of 2 * cp = {2 * cp} for batch.slice: "
                    f"headtail; set it to {-(-length // (2 * cp)) * 2 * cp}"
                )
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
            named = [one.tokenizer for one in source.transforms if isinstance(one, TokenizingStruct)]
            for tokenizer in [*named, source.packed_tokenizer or "bytes"]:
                if tokenizer != "bytes" and not os.path.isfile(tokenizer):
                    raise ConfigError(
                        f"sources.{name}: tokenizer {tokenizer!r} is not a file; give the path of a "
                        "tokenizer.json, or tokenizer: bytes"
                    )

    def _check_mixture(self) -> None:
        mixture = self.mixture
        trees = [("mixture.weights", mixture.weights), *((stage.where, stage.weights) for stage in mixture.schedule)]
        for where, weights in trees:
            _check_names((source for source, _ in sources_of(weights or {})), self.sources, where)
            for group, _ in groups_of(weights or {}):
                if group in self.sources:
                    raise ConfigError(f"{where}: {group!r} is a source; give the group another name")
        if isinstance(mixture.repetitions, dict):
            _check_names(mixture.repetitions, self.sources, "mixture.repetitions")
        for name in (name for name, source in self.sources.items() if source.is_unbounded):
            if mixture.repetitions_of(name) is not None:
                raise ConfigError(
                    f"mixture.repetitions {mixture.repetitions_of(name):g} cannot hold for source {name!r}, which has "
                    "no end; name the others: repetitions: {NAME: ...}"
                )
            if mixture.goes_by_size:
                raise ConfigError(
                    f"mixture: source {name!r} has no end, so mode proportional, temperature and clock: epoch have no "
                    "size to go by; give weights, and another clock"
                )
        for name, source in self.sources.items():
            if source.on_exhausted == "repeat" and self.max_epochs(name) is not None:
                raise ConfigError(
                    f"sources.{name}: on_exhausted: repeat contradicts mixture.repetitions {self.max_epochs(name):g}; "
                    "leave one of them out"
                )
        ending = [name for name in self.sources if self.max_epochs(name) is not None]
        silent = [name for name in ending if self.sources[name].on_exhausted is None]
        if mixture.on_exhausted == "repeat" and silent:
            raise ConfigError(
                f"mixture.on_exhausted: repeat contradicts that source {silent[0]!r} ends after "
                f"{self.max_epochs(silent[0]):g} epochs; use stop, drop or error"
            )
        if mixture.on_exhausted not in (None, "repeat") and not ending:
            raise ConfigError(
                f"mixture.on_exhausted: {mixture.on_exhausted} needs a source that ends; set mixture.repetitions: 1, "
                "or max_epochs of a source"
            )


PipelineConfig = Config
"""What the rooms of the package call it."""


def _check_names(names: Iterable[str], sources: Mapping[str, Any], where: str) -> None:
    for name in names:
        if name not in sources:
            near = difflib.get_close_matches(name, list(sources), n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else "name a source that exists or add it under sources"
            raise ConfigError(f"{where}: there is no source {name!r} (sources: {few(sources)}); {hint}")

"""Where a source's rows come from and in which order they are strung together."""

from typing import Any, Literal

import msgspec

from msd.core.checks import check_range, own_path
from msd.core.config import ConfigStruct, parse_bytes
from msd.errors import ConfigError

PACKED = "packed"
"""The folder of a `msd run`: rows are whole sequences."""
TOKENIZER = "tokenizer"
"""Option of packed sequences."""
FORMATS = (
    "auto",
    "parquet",
    "jsonl",
    "webdataset",
    "arrow",
    "hf",
    "text",
    "packed",
    "memory",
    "class",
    "tail",
    "queue",
)
UNBOUNDED = ("tail", "queue")
"""Formats of sources without an end."""
GROWING = (".jsonl", ".ndjson", ".jsonlines")
"""With `format: tail`, a path without a pattern that ends in one of these is a file that grows."""

POLL_S, SETTLE_S = 1.0, 2.0


class ShuffleConfig(ConfigStruct, frozen=True, kw_only=True):
    """How far apart neighbours come. Part of the order: kept in the state, not to be changed on resume."""

    block_bytes: int | str = "1MiB"
    """Cap of a block: the piece of a shard that is read at once."""
    window: int | Literal["auto"] = "auto"
    """Blocks whose rows are permuted together; `auto` takes as many as mix well within the byte budget."""

    def __post_init__(self) -> None:
        parse_bytes(self.block_bytes, name="shuffle.block_bytes")
        if self.window != "auto" and self.window < 1:
            raise ConfigError(f"shuffle.window must be auto or at least 1 block, got {self.window}")
        if self.window != "auto":
            check_range("shuffle.window", self.window, 1, 1 << 31)


class ReaderConfig(ConfigStruct, frozen=True, kw_only=True):
    """A named origin of rows."""

    format: str = "auto"
    """parquet, jsonl, webdataset, arrow, hf, text, packed, memory, class, tail, queue, or `package.module:Class`;
    auto looks at names."""
    path: str | list[str] | None = None
    """Glob, directory, file, or a list of them; local or any fsspec URL."""
    storage_options: dict[str, Any] = {}
    """Passed to fsspec for remote paths."""
    engine: Literal["pyarrow", "fastparquet"] = "pyarrow"
    """Which library reads Parquet; both give the same rows."""
    columns: list[str] | None = None
    """Columns to read from Parquet, Arrow and Hugging Face data; null reads all."""
    cls: Any = None
    """With `format: class` or `queue`: the class or factory, or its dotted path `package.module:Class`."""
    options: dict[str, Any] = {}
    """Keyword arguments of that class. With `format: packed`: `{tokenizer: PATH}`, which must be that of the folder."""
    rows: Any = None
    """With `format: memory`: a list of dictionaries, DataFrame, Arrow table, Hugging Face dataset. From Python only."""
    spool: str | None = None
    """With `format: tail` or `queue`: the folder of the ledger, which all hosts of the run share; what a queue gave is
    kept there, too."""
    poll_s: float = POLL_S
    """With `format: tail` or `queue`: how often to look for something new while rows are lacking, at most."""
    settle_s: float = SETTLE_S
    """With `format: tail`: a file that was not written for so long is complete; 0 takes each as soon as it has its
    name."""
    split: tuple[float, float] = (0.0, 1.0)
    """The part of the rows, by hash, that this source gives; [0.95, 1.0] holds out the last twentieth."""
    shuffle: ShuffleConfig | bool = ShuffleConfig()
    """False keeps file order, which is the default of packed sequences; true shuffles them, too."""
    max_row_bytes: int | str = "1GiB"
    """A file of which one row takes more, unpacked, is refused when it is indexed."""
    max_epochs: float | None = None
    """Passes over the source, fractions allowed; null goes on for ever."""
    on_exhausted: Literal["repeat", "stop", "drop", "error"] | None = None
    """After the last epoch: stop the run, drop the source and spread its share, or fail. Null: repeat for ever without
    `max_epochs`, stop with it."""

    def __post_init__(self) -> None:
        parse_bytes(self.max_row_bytes, name="max_row_bytes")
        low, high = self.split
        if not 0.0 <= low < high <= 1.0:
            raise ConfigError(f"split must be two fractions with 0 <= low < high <= 1, got [{low}, {high}]")
        if self.max_epochs is not None and not self.max_epochs > 0:
            raise ConfigError(f"max_epochs must be above 0 or null (for ever), got {self.max_epochs}")
        if self.max_epochs is not None:
            check_range("max_epochs", self.max_epochs, 0, 1e9, "null goes on for ever")
        if self.max_epochs is None and self.on_exhausted not in (None, "repeat"):
            raise ConfigError(
                f"on_exhausted: {self.on_exhausted} needs max_epochs: without it the source never ends; "
                "set max_epochs: 1, or leave on_exhausted out"
            )
        if self.max_epochs is not None and self.on_exhausted == "repeat":
            raise ConfigError(
                "on_exhausted: repeat contradicts max_epochs; use stop, drop or error, or max_epochs: null"
            )
        if self.format not in FORMATS and ":" not in self.format:
            raise ConfigError(
                f"format must be one of {', '.join(FORMATS)} or a dotted path package.module:Class, got {self.format!r}"
            )
        if self.columns is not None and not self.columns:
            raise ConfigError("columns: [] reads no column; name those to read, or leave it out (null reads all)")
        if self.format == "memory" and self.rows is None:
            raise ConfigError("format memory needs rows: a list of dictionaries, a DataFrame, an Arrow table")
        if self.format == "class" and self.cls is None:
            raise ConfigError("format class needs cls: a class or factory, or its dotted path package.module:Class")
        if self.is_unbounded:
            self._check_unbounded()
        else:
            for setting, usual in (("spool", None), ("poll_s", POLL_S), ("settle_s", SETTLE_S)):
                if getattr(self, setting) != usual:
                    raise ConfigError(
                        f"{setting} is for sources without an end: format tail or queue, not {self.format}"
                    )
        if self.format not in ("memory", "class", "queue") and ":" not in self.format and self.path is None:
            raise ConfigError(f"format {self.format} needs a path: a file, glob, directory or URL")
        if self.format == PACKED:
            self._check_packed()
        if self.path is not None:
            paths = [self.path] if isinstance(self.path, str) else self.path
            own = [own_path(path, name="path") for path in paths]
            msgspec.structs.force_setattr(self, "path", own[0] if isinstance(self.path, str) else own)

    def _check_packed(self) -> None:
        if not isinstance(self.path, str):
            raise ConfigError(
                "format packed reads one folder that `msd run` wrote; make a source of each folder, with its path"
            )
        if self.columns is not None or self.engine != "pyarrow":
            raise ConfigError("format packed reads the columns that `msd run` wrote; leave columns and engine out")
        unknown = sorted(set(self.options) - {TOKENIZER})
        if unknown:
            raise ConfigError(f"format packed has no option {unknown[0]!r}; the only one is {TOKENIZER}")
        if self.packed_tokenizer not in (None, "bytes"):
            own = own_path(str(self.options[TOKENIZER]), name=f"options.{TOKENIZER}")
            msgspec.structs.force_setattr(self, "options", {TOKENIZER: own})
        if self.shuffle == ShuffleConfig():
            msgspec.structs.force_setattr(self, "shuffle", False)

    @property
    def packed_tokenizer(self) -> str | None:
        """With `format: packed`: the tokenizer that the sequences are said to be of, if one is named."""
        return self.options.get(TOKENIZER) if self.format == PACKED else None

    @property
    def is_unbounded(self) -> bool:
        """Whether rows are still to come when a run begins."""
        return self.format in UNBOUNDED

    def _check_unbounded(self) -> None:
        check_range("poll_s", self.poll_s, 0.01, 1e6)
        check_range("settle_s", self.settle_s, 0.0, 1e6)
        if self.spool is None:
            raise ConfigError(
                f"format {self.format} needs spool: a folder that all hosts of the run share, where it is kept which "
                "rows came when"
            )
        msgspec.structs.force_setattr(self, "spool", own_path(self.spool, name="spool"))
        for setting, path in (("spool", self.spool), ("path", self.path)):
            if isinstance(path, str) and ("://" in path or "::" in path):
                why = (
                    "files are made exclusively there, which no object store promises"
                    if setting == "spool"
                    else ("it is watched by the times of its files")
                )
                raise ConfigError(
                    f"{setting} {path!r} is a URL; name a plain path, of a file system all hosts mount: {why}"
                )
        if self.split != (0.0, 1.0) or self.max_epochs is not None:
            setting = "max_epochs" if self.max_epochs is not None else "split"
            raise ConfigError(
                f"{setting} means nothing for format {self.format}, whose rows come once and never end; leave it out"
            )
        if self.format == "queue" and self.cls is None:
            raise ConfigError("format queue needs cls: a class with take(max_rows, timeout_s), or its dotted path")
        if self.format == "tail" and (self.cls is not None or self.rows is not None):
            raise ConfigError("format tail reads files; leave cls and rows out, or set format: queue")
        if self.format == "tail" and isinstance(self.path, list):
            raise ConfigError("format tail watches one path: a folder, a glob, or one file; make a source of each")

    @property
    def block_bytes(self) -> int:
        """Cap of a block in bytes."""
        config = self.shuffle if isinstance(self.shuffle, ShuffleConfig) else ShuffleConfig()
        return parse_bytes(config.block_bytes, name="shuffle.block_bytes")

    @property
    def row_limit(self) -> int:
        """Bytes of one row at most."""
        return parse_bytes(self.max_row_bytes, name="max_row_bytes")

    @property
    def window(self) -> int | Literal["auto"]:
        """Blocks of a window, or auto."""
        return self.shuffle.window if isinstance(self.shuffle, ShuffleConfig) else "auto"

    @property
    def is_shuffled(self) -> bool:
        """Whether rows leave file order."""
        return self.shuffle is not False

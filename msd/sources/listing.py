"""Which files a source has, in which order, and of which format."""

import logging
import posixpath

import msgspec

from msd.core.index import BlockTable
from msd.errors import SourceError
from msd.sources.config import PACKED, UNBOUNDED, ReaderConfig
from msd.sources.discover import EXTENSIONS, HF_MARKS, counted, discover, shown
from msd.sources.files import Opener, ShardFile, is_local, reading
from msd.sources.found import Found
from msd.sources.packed import packed_shards

_LOG = logging.getLogger(__name__)
_NAMED_ONLY = {
    "jsonl": (".json", ".json.gz", ".json.zst"),
    "text": (".html", ".htm", ".c", ".h", ".cc", ".cpp", ".js", ".ts", ".java", ".go", ".rs", ".tex", ".xml", ".csv"),
}
"""Further endings that say the format of a file that was named, for `format: auto`."""


def list_shards(name: str, config: ReaderConfig) -> list[ShardFile]:
    """Return the files of a source, sorted by their name relative to the source's root, each once.

    A name depends on the tree alone, not on where it lies: it is relative to the directory given, the fixed part of a
    glob, the directory of a file, or the directory that the items of a list have in common. Hidden files are ignored.

    Args:
        name: The source's, for errors.
        config: Its paths and format.

    Raises:
        SourceError: If nothing is found: naming the path, what was looked for, what lies nearby, and what to do.
    """
    return find_shards(name, config)[1]


def find_shards(name: str, config: ReaderConfig) -> tuple[str, list[ShardFile]]:
    """Return the format of a source and its files, which `list_shards` describes; no files for rows from Python."""
    chosen = _set_format(config)
    if chosen in ("memory", "class", *UNBOUNDED):
        return chosen, []
    reached = discover(name, config)
    chosen = chosen or _format_of(name, config, reached)
    found = [file for file in reached if file.version]
    dead = [file for file in reached if not file.version]
    if chosen == "hf":
        return chosen, _hf_shards(name, config, _with_names(name, found))
    if chosen == PACKED:
        return chosen, packed_shards(name, config, _with_names(name, found))
    taken = [file for file in found if file.is_named or file.inside.lower().endswith(EXTENSIONS[chosen])]
    dead = [file for file in dead if file.is_named or file.inside.lower().endswith(EXTENSIONS[chosen])]
    if dead and taken:
        _LOG.warning(
            "sources.%s: %d links lead to no file and are left out, the first is %r; fetch what they lead to if it is "
            "data",
            name,
            len(dead),
            dead[0].path,
        )
    if not taken:
        links = f", and {len(dead)} links that lead to no file ({dead[0].path})" if dead else ""
        raise SourceError(
            f"sources.{name}: no {chosen} file in {shown(config)}; looked for {' '.join(EXTENSIONS[chosen])}, found "
            f"{counted(file.inside for file in found)}{links}; set the format these have, or name the files with a glob"
        )
    return chosen, sorted(_with_names(name, taken))


def resolve_format(name: str, config: ReaderConfig) -> str:
    """Return the format of a source: the one that is set, or for `auto` the one that its files' names say.

    Raises:
        SourceError: If the names say nothing, or several formats.
    """
    return _set_format(config) or _format_of(name, config, discover(name, config))


def _set_format(config: ReaderConfig) -> str | None:
    """Return the format that the configuration says, or None where it leaves that to the files' names."""
    if config.is_unbounded:
        return config.format
    if ":" in config.format or config.cls is not None:
        return "class"
    if config.rows is not None:
        return "memory"
    return None if config.format == "auto" else config.format


def format_of_index(name: str, config: ReaderConfig, blocks: BlockTable) -> str:
    """Return the format of a source that is indexed, without listing its files again."""
    files = [Found("", shard.name, shard.path, shard.nbytes, "", True) for shard in blocks.shards]
    return _set_format(config) or _format_of(name, config, files)


def _format_of(name: str, config: ReaderConfig, found: list[Found]) -> str:
    seen: dict[str, str] = {}
    for file in found:
        for chosen, endings in EXTENSIONS.items():
            extra = _NAMED_ONLY.get(chosen, ()) if file.is_named else ()
            is_mark = chosen == "hf" and posixpath.basename(file.inside) in HF_MARKS
            if is_mark or (chosen != "hf" and file.inside.lower().endswith(endings + extra)):
                seen.setdefault(chosen, file.inside)
    if "hf" in seen:
        return "hf"
    # A README beside data is no text source.
    data = {chosen: example for chosen, example in seen.items() if chosen != "text"} or seen
    if len(data) == 1:
        return next(iter(data))
    if data:
        examples = ", ".join(f"{chosen} ({example})" for chosen, example in sorted(data.items()))
        raise SourceError(
            f"sources.{name}: {shown(config)} holds several formats: {examples}; make one source of each, with "
            "`format:` set or a glob that names one kind"
        )
    raise SourceError(
        f"sources.{name}: cannot tell the format of {shown(config)} from the names found "
        f"({counted(file.inside for file in found)}); set `format:`"
    )


def _with_names(name: str, found: list[Found]) -> list[ShardFile]:
    """Return the files with names relative to the directory that all roots have in common."""
    roots = {file.root for file in found}
    protocols = {file.path.partition("://")[0] if not is_local(file.path) else "" for file in found}
    common = posixpath.commonpath(roots) if len(roots) > 1 and len(protocols) == 1 else None
    shards: dict[str, ShardFile] = {}
    for file in found:
        inside = file.inside if common is None else posixpath.relpath(posixpath.join(file.root, file.inside), common)
        if inside in shards:
            raise SourceError(
                f"sources.{name}: {shards[inside].path} and {file.path} would both be shard {inside!r}; make two "
                "sources of them"
            )
        shards[inside] = ShardFile(inside, file.path, file.nbytes, file.version)
    return list(shards.values())


def _hf_shards(name: str, config: ReaderConfig, files: list[ShardFile]) -> list[ShardFile]:
    """Return the Arrow files of directories that `datasets` saved, in the order that their state lists them."""
    by_name = {file.name: file for file in files}
    for mark in sorted(file.name for file in files if posixpath.basename(file.name) == "dataset_dict.json"):
        splits = sorted({posixpath.dirname(n) for n in by_name if posixpath.basename(n) == "state.json"})
        raise SourceError(
            f"sources.{name}: {by_name[mark].path} says that this directory holds splits ({', '.join(splits) or 'none'}"
            f"); name the directory of one, such as {shown(config)}/{splits[0] if splits else 'train'}"
        )
    opener, shards = Opener(config.storage_options), []
    for state_file in sorted(file for file in files if posixpath.basename(file.name) == "state.json"):
        path = state_file.path
        with reading(path, ValueError, KeyError, TypeError, RecursionError), opener.open(path) as file:
            state = msgspec.json.decode(file.read())
            data_files = [entry["filename"] for entry in state["_data_files"]]
        if state.get("_indices_files") or state.get("_indices_data_files"):
            raise SourceError(
                f"sources.{name}: {state_file.path} was saved with an indices mapping; save its "
                "flatten_indices() instead"
            )
        for data_file in data_files:
            inside = posixpath.join(posixpath.dirname(state_file.name), data_file)
            if inside not in by_name:
                raise SourceError(
                    f"sources.{name}: {state_file.path} lists {data_file}, which does not exist; save the dataset again"
                )
            shards.append(by_name[inside])
    if not shards:
        raise SourceError(
            f"sources.{name}: no state.json in {shown(config)}, so no dataset was saved there; for plain Arrow or "
            f"Parquet files set format: arrow or parquet (found {counted(by_name)})"
        )
    return shards

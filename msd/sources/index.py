"""The index of every source: built once, in parallel over shards, kept in the cache."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from msd.core.index import BlockTable, Shard
from msd.errors import SourceError
from msd.sources.cache import IndexCache
from msd.sources.config import ReaderConfig
from msd.sources.files import Opener, ShardFile
from msd.sources.listing import find_shards, list_shards
from msd.sources.open import shard_format
from msd.sources.schema import check_same_schema
from msd.sources.seekable import rewrite_seekable
from msd.sources.shard import ShardIndex, block_table, entry_cost

__all__ = ["IndexProgress", "entry_cost", "index_sources", "list_shards", "rewrite_seekable"]

_NUM_SHOWN = 3
"""Broken files that an error names; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexProgress:
    """How far indexing has come, after one more shard. Totals are over all sources and known from the start."""

    source: str
    shard: str
    """Name of the shard that was finished just now."""
    is_cached: bool
    """Whether its index was known, so that no data was read."""
    shards_done: int
    shards_total: int
    bytes_done: int
    """Stored bytes."""
    bytes_total: int


def index_sources(
    sources: Mapping[str, ReaderConfig],
    *,
    cache_dir: Path | None = None,
    workers: int | None = None,
    on_progress: Callable[[IndexProgress], None] | None = None,
) -> dict[str, BlockTable]:
    """Return the block table of each source, from the cache where its files are unchanged.

    Args:
        sources: Name to configuration; one without an end has a ledger, and an empty table.
        cache_dir: Where indexes are kept; None is `MSD_CACHE` or `~/.cache/msd`.
        workers: Threads; None is `min(8, 4 * cpus)`.
        on_progress: Called in the caller's thread after each shard.

    Raises:
        SourceError: If a source has no files, or files that cannot be read (all are tried; the first are named), or
            shards whose columns differ.
    """
    cache = IndexCache(cache_dir)
    num_threads = workers or min(8, 4 * (os.cpu_count() or 1))
    with ThreadPoolExecutor(num_threads, thread_name_prefix="msd-index") as pool:
        listings = {name: pool.submit(find_shards, name, config) for name, config in sources.items()}
        listed = {name: listing.result() for name, listing in listings.items()}
        tasks: dict[Future[tuple[ShardIndex, bool]], tuple[str, ShardFile]] = {}
        for name, (chosen, files) in listed.items():
            for file in files:
                tasks[pool.submit(_index_file, file, chosen, sources[name], cache)] = name, file
        _report(tasks, on_progress)
    _check_all_read(tasks)
    parts: dict[str, list[tuple[Shard, ShardIndex]]] = {name: [] for name in sources}
    for task, (name, file) in tasks.items():
        index = task.result()[0]
        shard = Shard(name=file.name, path=file.path, nbytes=file.nbytes, num_rows=index.num_rows, version=file.version)
        parts[name].append((shard, index))
    return {name: _table(name, sources[name], listed[name][0], parts[name]) for name in sources}


def _index_file(file: ShardFile, chosen: str, config: ReaderConfig, cache: IndexCache) -> tuple[ShardIndex, bool]:
    index_shard, _ = shard_format(chosen)
    # The index of a text file is its size: looking it up would cost as much as knowing it.
    if chosen == "text":
        return _bounded(index_shard(file, config, Opener(config.storage_options)), file, config), False
    # What was read whole once, and was what it must be, is so while it does not change.
    kept_as = f"{chosen} {file.sha256}" if file.sha256 else chosen
    known = cache.load(file, kept_as, config.block_bytes)
    if known is not None:
        return _bounded(known, file, config), True
    index = _bounded(index_shard(file, config, Opener(config.storage_options)), file, config)
    cache.store(file, kept_as, config.block_bytes, index)
    return index, False


def _bounded(index: ShardIndex, file: ShardFile, config: ReaderConfig) -> ShardIndex:
    """Return an index, unless one of its rows is larger than rows may be: a block above its cap is a single row."""
    largest = int(index.nbytes_B.max(initial=0))
    if largest > max(config.row_limit, config.block_bytes):
        raise SourceError(
            f"{file.path} has a row of {largest} bytes, unpacked, above max_row_bytes {config.row_limit}; raise that "
            "if such rows are meant, or leave the file out"
        )
    return index


def _report(
    tasks: Mapping[Future[tuple[ShardIndex, bool]], tuple[str, ShardFile]],
    on_progress: Callable[[IndexProgress], None] | None,
) -> None:
    bytes_done, bytes_total = 0, sum(file.nbytes for _, file in tasks.values())
    for done, task in enumerate(as_completed(tasks), start=1):
        name, file = tasks[task]
        bytes_done += file.nbytes
        if on_progress is not None:
            on_progress(
                IndexProgress(
                    source=name,
                    shard=file.name,
                    is_cached=task.exception() is None and task.result()[1],
                    shards_done=done,
                    shards_total=len(tasks),
                    bytes_done=bytes_done,
                    bytes_total=bytes_total,
                )
            )


def _check_all_read(tasks: Mapping[Future[tuple[ShardIndex, bool]], tuple[str, ShardFile]]) -> None:
    broken: list[str] = []
    for task, (name, _) in tasks.items():
        error = task.exception()
        if isinstance(error, SourceError):
            broken.append(f"sources.{name}: {error}")
        elif error is not None:
            raise error
    if broken:
        more = f"; and {len(broken) - _NUM_SHOWN} more files" if len(broken) > _NUM_SHOWN else ""
        raise SourceError("; ".join(broken[:_NUM_SHOWN]) + more)


def _table(name: str, config: ReaderConfig, chosen: str, parts: list[tuple[Shard, ShardIndex]]) -> BlockTable:
    if chosen == "memory":
        from msd.sources import memory

        parts = memory.index_rows(name, config)
    elif chosen == "class":
        from msd.sources import user

        parts = user.index_rows(name, config)
    try:
        check_same_schema(
            ((shard.path, index.schema) for shard, index in parts if index.schema is not None), config.columns
        )
    except SourceError as error:
        raise SourceError(f"sources.{name}: {error}") from None
    return block_table(parts, split=config.split)

"""From a source's configuration to the code that reads its format; each format is imported when it is used."""

from msd.core.index import BlockTable
from msd.sources.base import BlockReader
from msd.sources.config import PACKED, ReaderConfig
from msd.sources.files import Opener
from msd.sources.listing import format_of_index, resolve_format
from msd.sources.shard import IndexShard, MakeReader

__all__ = ["open_reader", "resolve_format", "shard_format"]


def open_reader(name: str, config: ReaderConfig, blocks: BlockTable) -> BlockReader:
    """Return a reader of the blocks of source `name`; files are opened when they are read.

    Args:
        name: The source's, for errors.
        config: What the source was indexed with.
        blocks: Its index, from `index_sources`.

    Raises:
        SourceError: If rows given from Python are none.
    """
    chosen = format_of_index(name, config, blocks)
    if chosen == "memory":
        from msd.sources import memory

        return memory.make_reader(name, config, blocks)
    if chosen == "class":
        from msd.sources import user

        return user.make_reader(name, config, blocks)
    return shard_format(chosen)[1](name, config, blocks, Opener(config.storage_options))


def shard_format(chosen: str) -> tuple[IndexShard, MakeReader]:
    """Return how shards of a format are indexed and read."""
    if chosen == "jsonl":
        from msd.sources import jsonl

        return jsonl.index_shard, jsonl.make_reader
    if chosen == "webdataset":
        from msd.sources import tar

        return tar.index_shard, tar.make_reader
    if chosen == "parquet":
        from msd.sources import parquet

        return parquet.index_shard, parquet.make_reader
    if chosen in ("arrow", "hf"):
        from msd.sources import arrow

        return arrow.index_shard, arrow.make_reader
    if chosen == PACKED:
        from msd.sources import packed

        return packed.index_shard, packed.make_reader
    if chosen == "text":
        from msd.sources import text

        return text.index_shard, text.make_reader
    raise ValueError(f"format {chosen!r} has no shards")

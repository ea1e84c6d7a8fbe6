"""Plain text: a row per file, with its text and its path relative to the source's root."""

from msd.core.arrays import Int64Array
from msd.core.index import BlockTable
from msd.core.sample import RawSample
from msd.sources.base import BadRow
from msd.sources.config import ReaderConfig
from msd.sources.files import Opener, ShardFile, is_local, open_shard, reading
from msd.sources.shard import ShardIndex, ShardReader


def index_shard(file: ShardFile, config: ReaderConfig, opener: Opener) -> ShardIndex:
    """Return one block of one row; a local file is opened, not read. An empty file is an empty text."""
    if is_local(file.path):
        with reading(file.path), opener.open(file.path):
            pass
    return ShardIndex.of([(0, 1, 0, file.nbytes)])


def make_reader(source: str, config: ReaderConfig, blocks: BlockTable, opener: Opener) -> ShardReader:
    """Return a reader of text files; a file that is not UTF-8 is a bad row."""

    def read(block: int, row_N: Int64Array) -> list[RawSample | BadRow]:
        shard = blocks.shards[blocks.shard_B[block]]
        with reading(shard.path), open_shard(opener, shard) as file:
            data = file.read()
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            return [BadRow(f"file is not UTF-8: {error.reason} at byte {error.start}")] * len(row_N)
        return [{"text": text, "path": shard.name} for _ in row_N]

    return ShardReader(source, read, lambda: None)

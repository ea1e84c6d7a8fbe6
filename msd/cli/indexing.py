"""Index the sources of a configuration with a progress bar."""

from typing import TYPE_CHECKING

from msd.cli import output

if TYPE_CHECKING:
    from msd.config import Config
    from msd.core.index import BlockTable
    from msd.sources.index import IndexProgress


def indexed(config: "Config", *, workers: int | None = None, read: set[str] | None = None) -> "dict[str, BlockTable]":
    """Return the index of every source, with a bar over its shards.

    Args:
        config: The configuration.
        workers: Shards indexed at once; None leaves it to the machine.
        read: Filled with the sources that had a shard which was not in the cache.
    """
    from msd.build import index_all

    with output.progress_bar() as progress:
        task = progress.add_task("indexing", total=None)

        def on_progress(done: "IndexProgress") -> None:
            if read is not None and not done.is_cached:
                read.add(done.source)
            progress.update(
                task, completed=done.shards_done, total=done.shards_total, description=f"indexing {done.source}"
            )

        return index_all(config, workers=workers, on_progress=on_progress)

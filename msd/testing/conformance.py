"""What every source must do, as a check that your own format can be put through.

    from msd.testing.conformance import check_source
    check_source({"format": "jsonl", "path": str(folder)})
    check_source(config, expected=[{"text": "a"}, {"text": "b"}])

A class of yours is checked by `check_source({"format": "class", "cls": MyRows, "options": {...}})`.
"""

# B = blocks. N = rows of a block.

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from msd.core.index import BlockTable
from msd.core.sample import RawSample
from msd.core.seeds import permutation
from msd.sources.base import BadRow, BlockReader
from msd.sources.config import ReaderConfig
from msd.sources.index import index_sources
from msd.sources.open import open_reader

Row = RawSample | BadRow


def check_source(
    config: ReaderConfig | Mapping[str, Any],
    *,
    expected: Sequence[Any] | None = None,
    cache_dir: Path | None = None,
) -> BlockTable:
    """Check that a source gives each row once, in any order of asking, and return its index.

    Checked: the index adds up; indexing again gives the same digest; every block gives the rows that the index says;
    the rows of all blocks are those of `expected`; any rows of any block, in any order, are those of a sequential read;
    blocks may be read in any order; a reader works after `close()`, and `close()` twice.

    Args:
        config: A `ReaderConfig`, or its settings.
        expected: All rows in file order; `BadRow` of any reason stands for a bad one. None compares only the source
            with itself.
        cache_dir: Where indexes are kept; None is `MSD_CACHE` or `~/.cache/msd`.

    Raises:
        AssertionError: Saying what the source did instead.
    """
    settings = config if isinstance(config, ReaderConfig) else msgspec.convert(dict(config), ReaderConfig)
    blocks = index_sources({"checked": settings}, cache_dir=cache_dir)["checked"]
    check_index(blocks)
    again = index_sources({"checked": settings}, cache_dir=cache_dir)["checked"]
    _expect(again.digest == blocks.digest, "indexing the same data again gives another digest")
    check_reader(lambda: open_reader("checked", settings, blocks), blocks, expected=expected)
    return blocks


def check_index(blocks: BlockTable) -> None:
    """Check that the columns of an index fit together.

    Raises:
        AssertionError: Naming the column.
    """
    for name in ("shard_B", "unit_B"):
        column = getattr(blocks, name)
        _expect(len(column) == blocks.num_blocks, f"{name} has {len(column)} entries for {blocks.num_blocks} blocks")
        _expect(bool((np.diff(column) >= 0).all()), f"{name} falls")
    for unit in np.unique(blocks.unit_B):
        _expect(len(np.unique(blocks.shard_B[blocks.unit_B == unit])) == 1, f"unit {unit} lies in several shards")
    for number, shard in enumerate(blocks.shards):
        rows_B = blocks.num_rows_B[blocks.shard_B == number]
        first_row_B = blocks.first_row_B[blocks.shard_B == number]
        _expect(
            int(rows_B.sum()) == shard.num_rows, f"{shard.name}: blocks hold {rows_B.sum()} of {shard.num_rows} rows"
        )
        _expect(
            first_row_B.tolist() == (np.cumsum(rows_B) - rows_B).tolist(), f"{shard.name}: first rows do not follow"
        )


def check_reader(
    make_reader: Callable[[], BlockReader], blocks: BlockTable, *, expected: Sequence[Any] | None = None
) -> None:
    """Check that a reader gives the same rows however it is asked.

    Raises:
        AssertionError: Naming the block.
    """
    reader = make_reader()
    rows_B = [reader.read_block(block, _all(blocks, block)) for block in range(blocks.num_blocks)]
    for block, rows in enumerate(rows_B):
        _expect(
            len(rows) == blocks.num_rows_B[block], f"block {block} gave {len(rows)} of {blocks.num_rows_B[block]} rows"
        )
    if expected is not None:
        found = [row for rows in rows_B for row in rows]
        _expect(len(found) == len(expected), f"the source gave {len(found)} rows, not {len(expected)}")
        for number, (row, right) in enumerate(zip(found, expected, strict=True)):
            _expect(same_row(row, right), f"row {number} is {row!r}, not {right!r}")
    reader.close()
    reader.close()
    for turn in range(2):
        other = reader if turn == 0 else make_reader()
        for block in permutation(blocks.num_blocks, "conformance", turn).tolist():
            asked = permutation(int(blocks.num_rows_B[block]), "conformance", turn, block)[: 1 + turn * 10]
            given = other.read_block(block, asked)
            _expect(len(given) == len(asked), f"block {block} gave {len(given)} rows for {len(asked)}")
            for row, number in zip(given, asked.tolist(), strict=True):
                _expect(
                    same_row(row, rows_B[block][number]), f"block {block} row {number} depends on how it is asked for"
                )
        other.close()


def same_row(first: Any, second: Any) -> bool:
    """Return whether two values are equal with the same types; NaN equals NaN, and any bad row another."""
    if isinstance(first, BadRow) or isinstance(second, BadRow):
        return isinstance(first, BadRow) and isinstance(second, BadRow)
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return (
            isinstance(first, np.ndarray)
            and isinstance(second, np.ndarray)
            and first.dtype == second.dtype
            and bool(np.array_equal(first, second, equal_nan=first.dtype.kind == "f"))
        )
    if isinstance(first, dict) and isinstance(second, dict):
        return list(first) == list(second) and all(same_row(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(same_row, first, second))
    return type(first) is type(second) and bool(first == second or (first != first and second != second))


def _all(blocks: BlockTable, block: int) -> Any:
    return np.arange(int(blocks.num_rows_B[block]), dtype=np.int64)


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)

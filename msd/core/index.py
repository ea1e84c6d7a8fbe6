"""What is known of a source before it is read: its shards and the blocks they are cut into."""

# B = blocks of a source, in file order. N = rows of one block.

import hashlib
from dataclasses import dataclass, field

import numpy as np

from msd.core.arrays import Int32Array, Int64Array
from msd.core.seeds import hash_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file of a source."""

    name: str
    """Path relative to the source's root: the shard's identity, the same on every machine."""
    path: str
    """Where it lies today: a local path or an fsspec URL. Never part of an identity."""
    nbytes: int
    """Stored size."""
    num_rows: int
    version: str = field(default="", compare=False)
    """What tells the file that was indexed from one that was written later: size and modification time, or an etag;
    empty where that is not known. Never part of an identity: the same data elsewhere has another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The part of the rows whose hash lies in [low, high); a row's hash depends on shard name and row number alone."""

    low: float = 0.0
    high: float = 1.0

    @property
    def is_everything(self) -> bool:
        """Whether no row is left out."""
        return self.low <= 0.0 and self.high >= 1.0

    def kept(self, shard_name: str, first_row: int, num_rows: int) -> Int64Array:
        """Return which of `num_rows` rows from `first_row` of a shard belong to the split, as indices from 0."""
        if self.is_everything:
            return np.arange(num_rows, dtype=np.int64)
        word_N = hash_rows(first_row, num_rows, "split", shard_name)
        kept_N = word_N >= np.uint64(min(int(self.low * 2**64), 2**64 - 1))
        if self.high < 1.0:
            kept_N &= word_N < np.uint64(int(self.high * 2**64))
        return np.flatnonzero(kept_N).astype(np.int64, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockTable:
    """The index of a source: O(blocks) columns, whatever the number of rows."""

    shards: tuple[Shard, ...]
    shard_B: Int32Array
    """Index into `shards`; does not decrease."""
    unit_B: Int32Array
    """Blocks of one unit follow one another in the source's order; does not decrease. A block that can be entered at
    random is a unit of its own; a compressed stream or an oversized row group is one unit of several blocks."""
    first_row_B: Int64Array
    """Row number of the block's first row within its shard."""
    num_rows_B: Int64Array
    """Rows in the block, before the split."""
    offset_B: Int64Array
    """Where the block starts, in the terms of its format: a byte offset or a row group; for a compressed stream, where
    its unit starts in the file."""
    nbytes_B: Int64Array
    """Bytes the block's rows take when held, as well as the index can tell."""
    split: Split = Split()
    kept_B: Int64Array = field(init=False)
    """Rows of the block that belong to the split."""

    def __post_init__(self) -> None:
        if self.split.is_everything:
            kept_B = self.num_rows_B.astype(np.int64)
        else:
            kept_B = np.array([len(self.kept_rows(block)) for block in range(self.num_blocks)], dtype=np.int64)
        object.__setattr__(self, "kept_B", kept_B)

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return len(self.shard_B)

    @property
    def num_rows(self) -> int:
        """Rows in one epoch: those of the split."""
        return int(self.kept_B.sum())

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks when held."""
        return int(self.nbytes_B.sum())

    def kept_rows(self, block: int) -> Int64Array:
        """Return the rows of `block` that belong to the split, as indices within the block."""
        shard = self.shards[self.shard_B[block]]
        return self.split.kept(shard.name, int(self.first_row_B[block]), int(self.num_rows_B[block]))

    @property
    def digest(self) -> str:
        """Identity of the data's shape: relative names, row counts and cuts; no absolute path, no modification time."""
        summary = hashlib.blake2b(digest_size=16)
        for shard in self.shards:
            # File names need not be UTF-8; surrogates stand for the bytes that are not.
            summary.update(f"{shard.name}\0{shard.nbytes}\0{shard.num_rows}\n".encode(errors="surrogateescape"))
        for column in (self.shard_B, self.unit_B, self.first_row_B, self.num_rows_B, self.kept_B):
            summary.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
        return summary.hexdigest()

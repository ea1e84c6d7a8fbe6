"""What a format must offer: an index once, then any rows of any block."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from msd.core.arrays import Int64Array
from msd.core.sample import RawSample


@dataclass(frozen=True, slots=True)
class BadRow:
    """Stands for a row whose bytes could not be read as a row; counted like a sample that failed."""

    reason: str
    """One line."""


@runtime_checkable
class BlockReader(Protocol):
    """Rows of one source, by block. Opens files when they are needed; never holds more than a few open."""

    def read_block(self, block: int, row_N: Int64Array) -> list[RawSample | BadRow]:
        """Return the rows at indices `row_N` (from 0, within the block, any order), in that order.

        Raises:
            SourceError: If the shard cannot be read, or is not what the index says: naming the file and the remedy.
        """
        ...

    def close(self) -> None:
        """Close open files. The reader may be used again; it then opens them again."""
        ...

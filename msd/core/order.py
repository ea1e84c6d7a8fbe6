"""The sequence of a source: which row comes at which ordinal, by arithmetic on the index.

Per epoch the units are permuted over the whole source, their blocks strung together and cut into windows of
consecutive blocks; inside a window the rows are permuted. The sequence is window after window. A row's *ordinal*
counts through all epochs. Nothing here depends on loaders, workers or arrival: any loader may prepare any window.
"""

# K = blocks in the order of one epoch. W = windows of one epoch. N = rows of one window, in sequence order.

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from msd.core.arrays import Int64Array
from msd.core.index import BlockTable
from msd.core.seeds import permutation

AUTO_WINDOW_BYTES = 8 << 20
"""`window: auto` takes blocks up to this many bytes ..."""
AUTO_WINDOW_BLOCKS = 64
"""... and at most this many blocks: more mix no better and cost open blocks."""


def auto_window_blocks(blocks: BlockTable) -> int:
    """Return the number of blocks of a window that mixes well within the byte budget; at least one."""
    if blocks.num_blocks == 0:
        return 1
    mean_bytes = max(1, blocks.nbytes // blocks.num_blocks)
    return int(max(1, min(AUTO_WINDOW_BLOCKS, AUTO_WINDOW_BYTES // mean_bytes, blocks.num_blocks)))


@dataclass(frozen=True, slots=True)
class Window:
    """One window of a source's sequence."""

    epoch: int
    number: int
    """Within its epoch, from 0."""
    first_ordinal: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where a row lies in the data."""

    epoch: int
    shard: str
    """The file, by its relative name."""
    row: int
    """Within the file."""


@dataclass(frozen=True, slots=True, eq=False)
class _Epoch:
    block_K: Int64Array
    start_W: Int64Array
    """Position of each window's first row within the epoch; one more entry than windows."""


class SourceOrder:
    """Maps ordinals of a source to windows, and windows to rows. Pure; O(blocks) memory."""

    is_unbounded = False
    """Whether rows are still to come when a run begins; see `msd.core.unbounded`."""

    def __init__(self, *, seed: int, source: str, blocks: BlockTable, shuffle: bool, window_blocks: int) -> None:
        """Lay out the sequence of `source`.

        Args:
            seed: Seed of the run.
            source: Name of the source; the order depends on it, not on its place among the others.
            blocks: The source's index.
            shuffle: False keeps file order; windows are cut all the same, since loaders divide them.
            window_blocks: Blocks of a window, at least 1.
        """
        self.seed = seed
        self.source = source
        self.blocks = blocks
        self.shuffle = shuffle
        self.window_blocks = window_blocks
        self.rows_per_epoch = blocks.num_rows
        self.windows_per_epoch = -(-blocks.num_blocks // window_blocks)
        self._epochs: dict[int, _Epoch] = {}

    def total_ordinals(self, max_epochs: float | None) -> int | None:
        """Return how many ordinals the source gives in all: `max_epochs` (fractions round down) or None, for ever."""
        if max_epochs is None:
            return None
        # In binary 0.29 * 100 is just under 29: the fraction that was meant must not lose its last row.
        return int(Fraction(max_epochs).limit_denominator(10**9) * self.rows_per_epoch)

    def window_at(self, ordinal: int) -> Window:
        """Return the window that holds `ordinal`."""
        if self.rows_per_epoch == 0:
            raise ValueError(f"source {self.source!r} has no rows, so no ordinal {ordinal}")
        if ordinal < 0:
            raise ValueError(f"ordinals of source {self.source!r} count from 0, got {ordinal}")
        epoch, position = divmod(int(ordinal), self.rows_per_epoch)
        start_W = self._epoch(epoch).start_W
        # Empty windows share their start with the next one; the last of equals is the one with rows.
        number = int(np.searchsorted(start_W, position, side="right")) - 1
        return Window(
            epoch,
            number,
            epoch * self.rows_per_epoch + int(start_W[number]),
            int(start_W[number + 1] - start_W[number]),
        )

    def window_numbers(self, ordinal_N: Int64Array) -> Int64Array:
        """Return for each ordinal the number of its window, counted through all epochs."""
        epoch_N, position_N = np.divmod(ordinal_N, max(1, self.rows_per_epoch))
        number_N = np.empty(len(ordinal_N), dtype=np.int64)
        for epoch in np.unique(epoch_N).tolist():
            inside_N = epoch_N == epoch
            number_N[inside_N] = np.searchsorted(self._epoch(epoch).start_W, position_N[inside_N], side="right") - 1
        return epoch_N * self.windows_per_epoch + number_N

    def window_offsets(self, ordinal_N: Int64Array) -> Int64Array:
        """Return for each ordinal its place within its window."""
        epoch_N, position_N = np.divmod(ordinal_N, max(1, self.rows_per_epoch))
        offset_N = np.empty(len(ordinal_N), dtype=np.int64)
        for epoch in np.unique(epoch_N).tolist():
            inside_N = epoch_N == epoch
            start_W = self._epoch(epoch).start_W
            offset_N[inside_N] = (
                position_N[inside_N] - start_W[np.searchsorted(start_W, position_N[inside_N], side="right") - 1]
            )
        return offset_N

    def window_blocks_of(self, window: Window) -> Int64Array:
        """Return the blocks of a window, in the order in which they are strung together."""
        first = window.number * self.window_blocks
        return self._epoch(window.epoch).block_K[first : first + self.window_blocks]

    def window_rows(self, window: Window) -> tuple[Int64Array, Int64Array]:
        """Return (block, row within the block) of each row of a window, in sequence order."""
        parts = [(block, self.blocks.kept_rows(block)) for block in self.window_blocks_of(window).tolist()]
        block_N = np.concatenate([np.full(len(kept), block, dtype=np.int64) for block, kept in parts])
        row_N = np.concatenate([kept for _, kept in parts])
        if self.shuffle:
            turn = permutation(len(row_N), self.seed, "rows", self.source, window.epoch, window.number)
            block_N, row_N = block_N[turn], row_N[turn]
        return block_N, row_N

    def place_of(self, ordinal: int) -> RowPlace:
        """Return where the row at `ordinal` lies."""
        window = self.window_at(ordinal)
        block_N, row_N = self.window_rows(window)
        place = ordinal - window.first_ordinal
        block = int(block_N[place])
        shard = self.blocks.shards[self.blocks.shard_B[block]].name
        return RowPlace(window.epoch, shard, int(self.blocks.first_row_B[block] + row_N[place]))

    def _epoch(self, epoch: int) -> _Epoch:
        known = self._epochs.get(epoch)
        if known is not None:
            return known
        num_blocks = self.blocks.num_blocks
        block_K = np.arange(num_blocks, dtype=np.int64)
        if self.shuffle and num_blocks:
            _, unit_B = np.unique(self.blocks.unit_B, return_inverse=True)
            turn = permutation(int(unit_B.max()) + 1, self.seed, "units", self.source, epoch)
            place_of_unit = np.empty_like(turn)
            place_of_unit[turn] = np.arange(len(turn))
            block_K = np.argsort(place_of_unit[unit_B], kind="stable").astype(np.int64, copy=False)
        ends_K = np.cumsum(self.blocks.kept_B[block_K])
        last_of_window = np.minimum(np.arange(1, self.windows_per_epoch + 1) * self.window_blocks, num_blocks) - 1
        start_W = (
            np.concatenate([np.zeros(1, dtype=np.int64), ends_K[last_of_window]])
            if num_blocks
            else np.zeros(1, dtype=np.int64)
        )
        laid_out = _Epoch(block_K, start_W)
        self._epochs = {kept: self._epochs[kept] for kept in sorted(self._epochs)[-1:]} | {epoch: laid_out}
        return laid_out

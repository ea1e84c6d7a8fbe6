"""The sequence of a source without an end: admissions one after the other, each laid out like a source of its own.

When a row came is no input of anything: an ordinal is given to it when its block is admitted, and a ledger keeps that.
"""

# N = ordinals.

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from msd.core.arrays import Int64Array
from msd.core.index import BlockTable
from msd.core.order import RowPlace, SourceOrder, Window, auto_window_blocks
from msd.errors import SourceError

UNENDING_ROWS = 1 << 53
"""Rows of the one epoch: more than will ever come, and a float holds it exactly."""
WINDOW_ROWS = 256
"""Rows of a window: what hosts divide. It says nothing of how rows are permuted."""
_KEPT_ORDERS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """Rows that were given their ordinals together."""

    number: int
    """Counted from 0."""
    first_ordinal: int
    blocks: BlockTable

    @property
    def end(self) -> int:
        """Ordinal after its last row."""
        return self.first_ordinal + self.blocks.num_rows


class Admissions(Protocol):
    """The ledger of a source, for whoever only reads it. For any number of threads."""

    def find(self, ordinal: int) -> Admitted | None:
        """Return the admission of a row, or None as long as there is none."""
        ...

    @property
    def num_rows(self) -> int:
        """Rows admitted, as far as this process has looked."""
        ...

    def count(self) -> tuple[int, int]:
        """Return how many rows were admitted up to now, and in how many admissions."""
        ...


class UnboundedOrder(SourceOrder):
    """One epoch that never ends. Its windows are spans of ordinals, so that who divides them needs no ledger.

    An admission is laid out as an epoch of a source that has its blocks alone: its units are permuted, cut into
    windows, and the rows of a window permuted; the number of the admission stands for the epoch.
    """

    is_unbounded = True

    def __init__(
        self, *, seed: int, source: str, admissions: Admissions, shuffle: bool, window: int | Literal["auto"]
    ) -> None:
        """Lay out the sequence of `source`.

        Args:
            seed: Seed of the run.
            source: Name of the source.
            admissions: Its ledger.
            shuffle: False keeps the order within an admission, too.
            window: Blocks of an admission whose rows are permuted together.
        """
        super().__init__(seed=seed, source=source, blocks=_NOTHING, shuffle=shuffle, window_blocks=1)
        self.admissions = admissions
        self.window_blocks = 0 if window == "auto" else window
        self.rows_per_epoch = UNENDING_ROWS
        self.windows_per_epoch = UNENDING_ROWS // WINDOW_ROWS
        self._orders: OrderedDict[int, SourceOrder] = OrderedDict()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        """Return what another process needs."""
        return {key: value for key, value in self.__dict__.items() if key not in ("_lock", "_orders", "_epochs")}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Stand in another process."""
        self.__dict__.update(state)
        self._orders, self._lock, self._epochs = OrderedDict(), threading.Lock(), {}

    def total_ordinals(self, max_epochs: float | None) -> int | None:
        """Return None: there is no end."""
        return None

    def window_at(self, ordinal: int) -> Window:
        """Return the window that holds `ordinal`."""
        if ordinal < 0:
            raise ValueError(f"ordinals of source {self.source!r} count from 0, got {ordinal}")
        number = ordinal // WINDOW_ROWS
        return Window(0, number, number * WINDOW_ROWS, WINDOW_ROWS)

    def window_numbers(self, ordinal_N: Int64Array) -> Int64Array:
        """Return for each ordinal the number of its window."""
        return ordinal_N // WINDOW_ROWS

    def window_offsets(self, ordinal_N: Int64Array) -> Int64Array:
        """Return for each ordinal its place within its window."""
        return ordinal_N % WINDOW_ROWS

    def window_blocks_of(self, window: Window) -> Int64Array:
        """Return no block: what a window will hold is not known."""
        return np.empty(0, dtype=np.int64)

    def place_of(self, ordinal: int) -> RowPlace:
        """Return where the row at `ordinal` lies.

        Raises:
            SourceError: If it was not admitted.
        """
        admitted = self.admitted(ordinal)
        inner = self.order_of(admitted)
        place = inner.place_of(inner_ordinal(admitted, ordinal))
        return RowPlace(0, place.shard, place.row)

    def admitted(self, ordinal: int) -> Admitted:
        """Return the admission of a row.

        Raises:
            SourceError: If there is none.
        """
        found = self.admissions.find(ordinal)
        if found is None:
            raise SourceError(
                f"sources.{self.source}: row {ordinal} was asked for, and its ledger holds {self.admissions.num_rows} "
                "rows; name the spool that the run was made with"
            )
        return found

    def order_of(self, admitted: Admitted) -> SourceOrder:
        """Return the sequence of one admission, of which it is the epoch of its number."""
        with self._lock:
            order = self._orders.pop(admitted.number, None)
            if order is None:
                blocks = admitted.blocks
                order = SourceOrder(
                    seed=self.seed,
                    source=self.source,
                    blocks=blocks,
                    shuffle=self.shuffle,
                    window_blocks=self.window_blocks or auto_window_blocks(blocks),
                )
            self._orders[admitted.number] = order
            while len(self._orders) > _KEPT_ORDERS:
                self._orders.popitem(last=False)
            return order


def inner_ordinal(admitted: Admitted, ordinal: int) -> int:
    """Return the ordinal of a row in the sequence of its admission; see `UnboundedOrder.order_of`."""
    return admitted.number * admitted.blocks.num_rows + ordinal - admitted.first_ordinal


def _no_rows() -> BlockTable:
    nothing = np.empty(0, dtype=np.int64)
    return BlockTable(
        shards=(),
        shard_B=nothing.astype(np.int32),
        unit_B=nothing.astype(np.int32),
        first_row_B=nothing,
        num_rows_B=nothing,
        offset_B=nothing,
        nbytes_B=nothing,
    )


_NOTHING = _no_rows()

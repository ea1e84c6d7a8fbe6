"""What rows turned out to take while a run goes on: a bounded ledger, refitted, held against the profile."""

# B = batches.

from collections import deque
from dataclasses import dataclass

import numpy as np

from msd.core.arrays import Float64Array
from msd.cost.features import BYTES
from msd.cost.linear import LEAST_ROWS, LinearModel, floored

KEPT = 512
"""Batches of a source."""
RECENT = 64
"""Of those, the newest that drift is judged by."""
DRIFTED = 1.25
"""Times more, or less, than predicted from which on a profile no longer says what rows take."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that were prepared together."""

    num_rows: int
    num_bytes: float
    """Of the rows as they were read."""
    worker_s: float
    """Of workers, waiting for a core left out."""
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Drift:
    """How far a profile is from what rows take now."""

    factor: float
    """Measured over predicted."""
    num_rows: int

    @property
    def is_drifted(self) -> bool:
        """Whether the profile should be made again."""
        return not 1 / DRIFTED <= self.factor <= DRIFTED

    def __str__(self) -> str:
        if not self.is_drifted:
            return f"rows take {self.factor:.2f} times what the profile says"
        return (
            f"rows take {self.factor:.2f} times what the profile says, over {self.num_rows:,} rows: "
            "run `msd profile` again"
        )


class Ledger:
    """Of one source."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._batches: deque[Batch] = deque(maxlen=KEPT)

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: Batch) -> None:
        """Note a batch; the oldest goes when there are too many."""
        if batch.num_rows > 0:
            self._batches.append(batch)

    def drift(self, model: LinearModel) -> Drift | None:
        """Return how far a model of seconds from bytes is from the newest batches; None while there are too few."""
        recent = list(self._batches)[-RECENT:]
        num_rows = sum(batch.num_rows for batch in recent)
        if len(recent) < LEAST_ROWS:
            return None
        measured = sum(batch.worker_s for batch in recent)
        (per_byte,) = model.coefficients
        predicted = per_byte * sum(batch.num_bytes for batch in recent) + model.intercept * num_rows
        return Drift(measured / predicted if predicted > 0 else float("inf"), num_rows)

    def refit(self) -> LinearModel | None:
        """Return the model of seconds a row from its bytes that the ledger speaks for; None while it is too short."""
        if len(self._batches) < LEAST_ROWS:
            return None
        rows_B, bytes_B, seconds_B = self._columns()
        from scipy.optimize import nnls

        weight_B = 1.0 / floored(seconds_B)
        scale = max(float(bytes_B.max()), 1.0), max(float(rows_B.max()), 1.0)
        columns = np.column_stack([bytes_B / scale[0], rows_B / scale[1]])
        (per_byte, per_row), _ = nnls(columns * weight_B[:, None], seconds_B * weight_B)
        mean_B = bytes_B / rows_B
        return LinearModel(
            (BYTES,),
            (float(per_byte / scale[0]),),
            float(per_row / scale[1]),
            (float(mean_B.min()),),
            (float(mean_B.max()),),
        )

    def cpu_share(self) -> float:
        """Return the part of workers' seconds in which they used a core; 1 while nothing is known."""
        worker_s = sum(batch.worker_s for batch in self._batches)
        return min(1.0, sum(batch.cpu_s for batch in self._batches) / worker_s) if worker_s > 0 else 1.0

    def _columns(self) -> tuple[Float64Array, Float64Array, Float64Array]:
        batches = self._batches
        return (
            np.array([batch.num_rows for batch in batches], dtype=np.float64),
            np.array([batch.num_bytes for batch in batches], dtype=np.float64),
            np.array([batch.worker_s for batch in batches], dtype=np.float64),
        )

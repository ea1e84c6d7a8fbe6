"""Seconds that rows are predicted to take which nobody has read yet: from what the index knows of them."""

from msd.core.order import SourceOrder
from msd.cost.linear import LinearModel

MOST_WINDOWS = 4096
"""Looked at, at most: beyond, the mean of those stands for the rest."""


def seconds_ahead(order: SourceOrder, model: LinearModel, start: int, stop: int) -> float:
    """Return the seconds of a worker that the rows of ordinals `start .. stop - 1` are predicted to take.

    Windows differ where rows grow along the shards: the index says how many bytes each has, and a linear model of the
    bytes of a row is right on the mean of a window.

    Args:
        order: The sequence of the source.
        model: Seconds a row from its bytes, its only feature.
        start: First ordinal.
        stop: After the last; not beyond the end of the source.
    """
    (per_byte,) = model.coefficients
    num_bytes, num_rows, at = 0.0, 0, start
    for _ in range(MOST_WINDOWS):
        if at >= stop or order.rows_per_epoch == 0:
            break
        window = order.window_at(at)
        end = min(stop, window.first_ordinal + window.num_rows)
        num_bytes += (end - at) * bytes_of_row(order, at)
        num_rows += end - at
        at = end
    if not num_rows:
        return 0.0
    seconds = per_byte * num_bytes + model.intercept * num_rows
    return seconds * (stop - start) / num_rows


def bytes_of_row(order: SourceOrder, ordinal: int) -> float:
    """Return the mean bytes of a row, by the index, in the window of `ordinal`."""
    blocks = order.blocks
    inside = order.window_blocks_of(order.window_at(ordinal))
    return float(blocks.nbytes_B[inside].sum()) / max(1, int(blocks.num_rows_B[inside].sum()))

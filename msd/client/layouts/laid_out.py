"""What a layout makes of a batch."""

from collections.abc import Callable
from typing import Any

import numpy as np

from msd.client.layouts.encoder import encoder_rounds
from msd.core.arrays import Int32Array, Int64Array
from msd.core.batch import IMAGE_FIELDS, Microbatch, RankBatch
from msd.errors import ConfigError


class LaidOutBatch(list[Any]):
    """One item a microbatch, in the order of the slots, with what a loop needs to know of the step.

    Where another rank fetches, each item is the `BatchMarker` that says so.
    """

    step: int
    rank: int
    sample_ids: list[tuple[str, int, int]]
    """(source, ordinal, part) of the documents of the rank's rows, in order."""
    num_valid_tokens: int
    """Labelled positions that this rank holds."""
    global_num_valid_tokens: int
    """Labelled positions of the step: divide the summed loss by it, on every rank."""
    sequence_length: int
    """Tokens of a sequence; a whole row is one or more of them."""
    encoder: list[dict[str, Any]]
    """What this rank encodes apart from its rows, round by round, for `msd.torch.EmbeddingExchange`; empty where images
    are encoded with their row. See `encoder_rounds`."""

    @classmethod
    def of(cls, batch: RankBatch, lay_out: Callable[[Microbatch], Any]) -> "LaidOutBatch":
        """Return a batch with each of its microbatches laid out."""
        # Trainers copy nested lists by `type(value)(items)`, so the constructor stays that of a list.
        made = cls(batch.markers or map(lay_out, batch.microbatches))
        made.step = batch.step
        made.rank = batch.rank
        made.sample_ids = batch.sample_ids
        made.num_valid_tokens = batch.num_valid_tokens
        made.global_num_valid_tokens = batch.global_num_valid_tokens
        made.sequence_length = batch.sequence_length
        made.encoder = encoder_rounds(batch)
        return made

    def __repr__(self) -> str:
        of_step = "".join(f", {name}={value}" for name, value in vars(self).items() if isinstance(value, int))
        return f"<LaidOutBatch: {len(self)} microbatches{of_step}>"


def check_slices(batch: RankBatch, layout: str, *, takes: str | None, otherwise: str) -> None:
    """Refuse context-parallel slices that a layout cannot express. Whole rows are always taken.

    Args:
        batch: Of one rank.
        layout: Name of the layout.
        takes: The slices that it takes, as `batch.slice` says them; None for none.
        otherwise: What to do.

    Raises:
        ConfigError: If the rank holds other slices.
    """
    if batch.slice_method not in (None, takes):
        accepted = "whole rows" if takes is None else f"whole rows and slices cut by batch.slice: {takes}"
        raise ConfigError(
            f"layout {layout!r} takes {accepted}, and this run cuts them by batch.slice: {batch.slice_method}; "
            f"{otherwise}"
        )


def as_int64(values_T: Int32Array | None) -> Int64Array | None:
    """Return integers as torch wants to index and compare them; None stays None."""
    return None if values_T is None else values_T.astype(np.int64)


def received(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields without those that the rank's pipeline stages do not get."""
    return {name: value for name, value in fields.items() if value is not None}


def images_of(row: Microbatch) -> dict[str, Any]:
    """Return the field `images` of a row that has some: pixels, grids, owner and starts, as in `RowImages`."""
    if row.images is None:
        return {}
    return {"images": {name: getattr(row.images, name) for name in IMAGE_FIELDS}}

"""Which pipeline stages a rank holds, and which fields of a microbatch they need."""

from typing import Literal

from msd.core.checks import check_range
from msd.core.config import ConfigStruct

FIRST_FIELDS = ("input_ids", "position_ids", "segment_ids", "images")
"""What the first stage needs: it holds the embedding, and the image encoder where there is one."""
LAST_FIELDS = ("labels", "loss_mask")
"""What the last stage needs: it holds the loss."""
FIELDS = (*FIRST_FIELDS, *LAST_FIELDS)
"""What some stages can do without. Boundaries, lengths, shapes and counts of labels go to every stage."""
_MAX_STAGES = 1 << 16


class Stages(ConfigStruct, frozen=True, kw_only=True):
    """How the stages of a model lie on the ranks of `pp`."""

    per_rank: int = 1
    """Stages of each rank; above 1 they are virtual (interleaved) stages, numbered through the model."""
    style: Literal["loop", "v"] = "loop"
    """loop deals stages to ranks again and again from the first rank, as interleaved 1F1B does; v turns around at both
    ends, as ZB-V and DualPipe-V do, so that with two stages a rank the first rank holds the first and the last."""

    def __post_init__(self) -> None:
        check_range("stages.per_rank", self.per_rank, 1, _MAX_STAGES)

    def of(self, index: int, num_ranks: int) -> tuple[int, ...]:
        """Return the stages that the rank at `index` of `num_ranks` along `pp` holds, in the order of the model."""
        turns_back = self.style == "v"
        return tuple(
            turn * num_ranks + (num_ranks - 1 - index if turns_back and turn % 2 else index)
            for turn in range(self.per_rank)
        )

    def fields_of(self, index: int, num_ranks: int) -> tuple[str, ...]:
        """Return the fields that the stages of one rank need, of `FIELDS`; none for a rank of middle stages."""
        held = self.of(index, num_ranks)
        first = FIRST_FIELDS if 0 in held else ()
        last = LAST_FIELDS if self.per_rank * num_ranks - 1 in held else ()
        return (*first, *last)

"""How predicted cost is evened out."""

from typing import Literal

import msgspec

from msd.core.checks import check_range
from msd.core.config import ConfigStruct


class BalanceConfig(ConfigStruct, frozen=True, kw_only=True):
    """How predicted cost is evened out."""

    method: Literal["lpt", "karmarkar_karp", "zigzag", "none"] = "lpt"
    across: list[Literal["bucket", "microbatch"]] = msgspec.field(default_factory=lambda: ["bucket", "microbatch"])
    """bucket evens out ranks, microbatch evens out the slots of all ranks (lockstep); both is the default."""
    objective: Literal["auto", "cost", "lockstep", "pipeline"] = "auto"
    """cost of ranks, lockstep over slots, 1F1B time of the pipeline; auto is the sum of those that apply."""
    min_gain: float = 0.0
    """Relative gain of the objective below which the packed layout is kept."""
    align: list[Literal["image"]] = msgspec.field(default_factory=list)
    """Modalities that all rows of a slot have, or none: a row that lacks one carries a flagged dummy."""

    def __post_init__(self) -> None:
        check_range("balance.min_gain", self.min_gain, 0.0, 1.0, "0 takes every gain")

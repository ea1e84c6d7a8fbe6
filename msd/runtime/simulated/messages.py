"""What a rank is answered on a simulated cluster."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from msd.coordinator.standing import RankStanding
from msd.core.batch import RankBatch
from msd.core.state import StateDict


@dataclass(frozen=True, slots=True)
class Moved:
    """Where a rank stands that was connected, that loaded, or whose run went to another generation."""

    stands: RankStanding
    first_step: int
    """Of the generation."""
    start: StateDict
    """The position before it."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The rank is to say HELLO again: its connection is not known here."""


Answer: TypeAlias = RankBatch | Moved | Unknown | Exception | None
"""None is the end."""
Reply: TypeAlias = Callable[[Answer], None]

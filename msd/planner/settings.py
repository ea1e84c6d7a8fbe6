"""What a planner is told once, when it is built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msd.core.cost import CostFunction
from msd.core.mesh import Mesh
from msd.core.stages import Stages
from msd.core.written import Written
from msd.planner.config import BalanceConfig, BatchConfig, EncoderConfig, MixtureConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTerms:
    """What the planner knows of a source before it sees a row."""

    name: str
    rows_per_epoch: int
    """Zero for an empty source: legal, never drawn, noted."""
    total_ordinals: int | None
    """Ordinals in all, or None when the source repeats for ever."""
    end: Literal["repeat", "stop", "drop", "error"] = "repeat"
    max_rate: float = 0.01
    """Share of failed rows above which the run stops."""
    raises: bool = False
    """The first failed row stops the run."""
    overflow: Literal["split", "truncate", "drop"] = "split"
    """What becomes of a sample that is longer than the sequences of its step."""
    written: Written | None = None
    """Of a source whose rows were packed before, each a whole sequence: what they were packed with."""

    @property
    def lack(self) -> str:
        """What is there of a source that has no row to give."""
        if not self.rows_per_epoch:
            return "no rows"
        return f"no whole row under max_epochs or mixture.repetitions ({self.rows_per_epoch} rows an epoch)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """Everything that a plan is a function of, but for progress and metadata."""

    sources: tuple[SourceTerms, ...]
    mixture: MixtureConfig
    batch: BatchConfig
    mesh: Mesh
    num_microbatches: int
    document_multiple: int
    """What this mesh needs, or what the configuration says."""
    lookahead: int
    balance: BalanceConfig
    cost: Mapping[str, CostFunction]
    """`backbone`, and `encoder` where images are costed apart."""
    broadcast: tuple[str, ...] = ()
    stages: Stages = field(default_factory=Stages)
    fields_by_stage: bool = False
    """Pipeline stages get only the fields that they need."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    multiple_of: int = 1
    """Sequences of a step are a multiple of this where they follow from tokens, or lie on a ramp."""
    strategy: Callable[..., Any] | None = None
    """None is the default strategy."""

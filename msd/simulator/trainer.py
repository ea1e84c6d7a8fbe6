"""What is assumed of the trainer: every number that a predicted second depends on, besides the plan."""

from typing import Literal

from msd.core.checks import check_range
from msd.core.config import ConfigStruct
from msd.errors import ConfigError

DEFAULT_FLOPS_PER_S = 2e14


class Trainer(ConfigStruct, frozen=True, kw_only=True):
    """A model of the machine that trains.

    Time of a pass is cost over speed: the same for each token of a document of equal length, whatever else is in the
    row. Communication inside a model-parallel group is part of the speed. Stages follow 1F1B without virtual stages.
    """

    mesh: dict[str, int] | None = None
    """Axis sizes, outermost first; null takes the configuration's."""
    flops_per_s: float | None = None
    """What one rank achieves; null takes the cost's own `flops_per_s`, or 2e14. 1 where costs are seconds."""
    encoder_flops_per_s: float | None = None
    """The same for the image encoder; null takes `flops_per_s`."""
    encoder: Literal["first_stage", "every_rank"] = "first_stage"
    """first_stage: the first pipeline stage encodes the images of its row before its own layers, its context- and
    tensor-parallel ranks together. every_rank: each rank holds a whole encoder; images are encoded for the whole step
    before the pipeline starts, and their backward pass follows it."""
    sync: Literal["step", "microbatch"] = "step"
    """When data-parallel ranks meet: once a step (DDP), or in every microbatch (FSDP, expert parallelism)."""
    backward: float = 2.0
    """Time of a backward pass over that of its forward pass."""
    stage_shares: list[float] | None = None
    """Share of the backbone in each pipeline stage; null is equal shares."""
    pass_overhead_s: float = 0.0
    """Added to each forward and each backward pass of a microbatch in a stage."""
    step_overhead_s: float = 0.0
    """Added to each step: gradient synchronisation that is not hidden, the optimizer."""
    embedding_bytes: float = 0.0
    """Bytes of one image embedding; with `every_rank` they travel to the first stage, and their gradients back."""
    link_bytes_per_s: float = 5e10
    """Of one rank, for embeddings."""
    pads: bool = True
    """Rows of the planner are computed whole, padding included; rows of samples dealt are computed as they are."""

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None:
                check_range(f"trainer.{name}", value, low, high)
        shares = self.stage_shares
        if shares is not None and (not shares or min(shares) < 0 or not 0.999 <= sum(shares) <= 1.001):
            raise ConfigError(f"trainer.stage_shares must be shares of the stages that sum to 1, got {shares}")

    def shares(self, num_stages: int) -> list[float]:
        """Return the share of the backbone in each of so many stages.

        Raises:
            ConfigError: If `stage_shares` is for another number of stages.
        """
        if self.stage_shares is None:
            return [1 / num_stages] * num_stages
        if len(self.stage_shares) != num_stages:
            raise ConfigError(
                f"trainer.stage_shares has {len(self.stage_shares)} stages, the mesh has pp={num_stages}; give one "
                "share for each stage"
            )
        return list(self.stage_shares)


_BOUNDS: dict[str, tuple[float, float]] = {
    "flops_per_s": (1e-9, 1e30),
    "encoder_flops_per_s": (1e-9, 1e30),
    "backward": (0.0, 100.0),
    "pass_overhead_s": (0.0, 1e6),
    "step_overhead_s": (0.0, 1e6),
    "embedding_bytes": (0.0, 1e9),
    "link_bytes_per_s": (1.0, 1e15),
}

"""Everything a user may set for one source."""

from typing import Literal

import msgspec

from msd.core.checks import check_range, own_path
from msd.core.config import ConfigStruct
from msd.errors import ConfigError
from msd.loader.transforms.config import TransformConfig
from msd.sources.config import PACKED, ReaderConfig


class OnErrorConfig(ConfigStruct, frozen=True, kw_only=True):
    """What a sample that fails means."""

    policy: Literal["skip", "raise"] = "skip"
    max_rate: float = 0.01
    """Failed rows over rows consumed (the last 10,000, at least 100) above which the run stops."""
    quarantine: str | None = None
    """JSON-lines file that lists each failed row by (source, ordinal) with shard, row and reason."""
    hang_s: float = 120.0
    """A row whose transforms take longer hangs its process; after the second time it is skipped."""

    def __post_init__(self) -> None:
        check_range("on_error.hang_s", self.hang_s, 0.001, 1e9)
        if not 0.0 <= self.max_rate <= 1.0:
            raise ConfigError(f"on_error.max_rate must lie in [0, 1], got {self.max_rate}; 0.01 allows 1 in 100")
        if self.quarantine is not None:
            path = own_path(self.quarantine, name="on_error.quarantine")
            msgspec.structs.force_setattr(self, "quarantine", path)


class OnStallConfig(ConfigStruct, frozen=True, kw_only=True):
    """What happens when the source does not deliver."""

    after_s: float = 60.0
    then: Literal["wait", "suspend", "stop"] = "wait"

    def __post_init__(self) -> None:
        if self.after_s <= 0:
            raise ConfigError(f"on_stall.after_s must be above 0 seconds, got {self.after_s}")
        check_range("on_stall.after_s", self.after_s, 0.001, 1e9)


class SourceConfig(ReaderConfig, frozen=True, kw_only=True):
    """A named origin of samples: where rows come from and what is done to them."""

    transforms: list[TransformConfig] = []
    transform_in: Literal["auto", "threads", "processes"] = "auto"
    """Where a loader host runs them; auto measures whether threads wait for one another. Never changes what comes."""
    overflow: Literal["split", "truncate", "drop"] = "split"
    """What is done with a sample longer than a sequence; counted."""
    on_error: OnErrorConfig = OnErrorConfig()
    on_stall: OnStallConfig = OnStallConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.format == PACKED and self.transforms:
            raise ConfigError(
                "format packed has whole sequences, made of samples already; leave transforms out, or write the folder "
                "again with other ones"
            )

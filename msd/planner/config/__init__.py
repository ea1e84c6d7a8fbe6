"""What a step is made of: the mixture, the batch, how it is packed and balanced, who encodes images."""

from msd.planner.config.balance import BalanceConfig
from msd.planner.config.batch import BatchConfig, BatchStageConfig, LimitsConfig, PackingConfig
from msd.planner.config.encoder import EncoderConfig
from msd.planner.config.mixture import FeedbackConfig, GroupConfig, MixtureConfig, StageConfig

__all__ = [
    "BalanceConfig",
    "BatchConfig",
    "BatchStageConfig",
    "EncoderConfig",
    "FeedbackConfig",
    "GroupConfig",
    "LimitsConfig",
    "MixtureConfig",
    "PackingConfig",
    "StageConfig",
]

"""Everything a user may set: YAML at the door, or the same thing as Python values."""

from msd.config.load import load_config, parse_config
from msd.config.pipeline import CheckpointConfig, Config, PipelineConfig, RuntimeConfig
from msd.core.dotted import import_dotted

__all__ = [
    "CheckpointConfig",
    "Config",
    "PipelineConfig",
    "RuntimeConfig",
    "import_dotted",
    "load_config",
    "parse_config",
]

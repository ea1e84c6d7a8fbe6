"""What would run and is probably not meant; several commands say it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msd.config import Config


def tokenizers_of(config: "Config") -> dict[str, str]:
    """Return the tokenizer of every source that has one."""
    from msd.loader.transforms.config import TokenizingStruct

    return {
        name: transform.tokenizer
        for name, source in config.sources.items()
        for transform in source.transforms
        if isinstance(transform, TokenizingStruct)
    }


def mixed_tokenizers(config: "Config") -> Iterator[str]:
    """Yield a remark if one token id means different things in different sources."""
    tokenizers = tokenizers_of(config)
    if len(set(tokenizers.values())) > 1:
        named = ", ".join(f"{name}: {path}" for name, path in tokenizers.items())
        yield f"warning: sources use different tokenizers, so one id means different things ({named})"


def is_drawn(config: "Config", source: str) -> bool:
    """Whether the mixture ever draws from a source, at the first step or in a later stage."""
    from msd.planner.config.mixture import relative_weights

    if config.mixture.feedback is not None:
        return True
    stages = (relative_weights(stage.weights, config.sources)[source] for stage in config.mixture.schedule)
    return config.weights[source] > 0 or any(weight > 0 for weight in stages)

"""What would run and is probably not meant; several commands say it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msd.config import Config
    from msd.core.order import SourceOrder
    from msd.planner.forecast import Forecast

MANY_EPOCHS = 4
"""Passes over a source above which its repetition is warned about."""


def tokenizers_of(config: "Config") -> dict[str, str]:
    """Return the tokenizer of every source that has one."""
    from msd.loader.transforms.config import TokenizingStruct

    named = {name: source.packed_tokenizer for name, source in config.sources.items()}
    return {name: tokenizer for name, tokenizer in named.items() if tokenizer is not None} | {
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


def repeating(forecast: "Forecast") -> Iterator[str]:
    """Yield a warning for every source that a run will pass over more than `MANY_EPOCHS` times."""
    for source in forecast.sources:
        if source.epochs > MANY_EPOCHS:
            yield (
                f"warning: source {source.name!r} will have been passed over {source.epochs:.1f} times by step "
                f"{forecast.num_steps:,}; lower its weight, or cap it with mixture.repetitions"
            )
    if forecast.ended_by is not None:
        yield f"warning: source {forecast.ended_by!r} ends the run at step {forecast.num_steps:,}"


def narrow_window(order: "SourceOrder") -> str | None:
    """Return what to say of a source whose windows cannot mix its rows, or None."""
    if not order.shuffle or order.window_blocks > 1 or order.blocks.num_blocks < 2:
        return None
    rows = -(-order.blocks.num_rows // order.blocks.num_blocks)
    return (
        f"a window is one block of about {rows:,} rows: neighbours in a file stay neighbours; "
        "lower shuffle.block_bytes or raise shuffle.window"
    )


def is_drawn(config: "Config", source: str) -> bool:
    """Whether the mixture ever draws from a source, at the first step or in a later stage."""
    from msd.planner.config.mixture import relative_weights

    if config.mixture.feedback is not None:
        return True
    stages = (relative_weights(stage.weights, config.sources)[source] for stage in config.mixture.schedule)
    return config.weights[source] > 0 or any(weight > 0 for weight in stages)

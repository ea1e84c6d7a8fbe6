"""What the transforms of one source must agree on: one tokenizer, one image geometry, one placeholder."""

from collections.abc import Sequence

from msd.errors import ConfigError
from msd.loader.transforms.base import Step
from msd.loader.transforms.chat import ChatStep
from msd.loader.transforms.config import ImageConfig
from msd.loader.transforms.text import TokenizeStep
from msd.loader.transforms.tokenizer import IMAGE_TOKENS, FileTokenizer, Tokenizer


def only_tokenizer(steps: Sequence[TokenizeStep | ChatStep]) -> Tokenizer | None:
    """Return the tokenizer that all steps share, or None without any."""
    if len({step.tokenizer.digest for step in steps}) > 1:
        raise ConfigError("its transforms name different tokenizers, whose ids would mix; use one tokenizer a source")
    return steps[0].tokenizer if steps else None


def only_geometry(configs: Sequence[ImageConfig]) -> ImageConfig | None:
    """Return the first image transform, whose geometry all others must have, or None without any."""
    for config in configs[1:]:
        for option in ("patch", "merge", "image_token"):
            if getattr(config, option) != getattr(configs[0], option):
                raise ConfigError(
                    f"its image transforms have different {option}: {getattr(configs[0], option)} and "
                    f"{getattr(config, option)}; set the same in all"
                )
    return configs[0] if configs else None


def image_token_of(config: ImageConfig, tokenizer: Tokenizer | None) -> int:
    """Return the id of an image placeholder."""
    asked = config.image_token
    if isinstance(asked, int):
        if not 0 <= asked < 2**31:
            raise ConfigError(f"image_token must lie in [0, 2^31), got {asked}")
        return asked
    if tokenizer is None:
        raise ConfigError(
            "an image transform needs image_token as an id where the source has no tokenize transform to look it up"
            + (f", got {asked!r}" if asked else "")
        )
    if asked is None:
        return tokenizer.num_ids if tokenizer.image_id is None else tokenizer.image_id
    found = tokenizer.id_of(asked)
    if found is None:
        near = tokenizer.nearest(asked)
        hint = f"; did you mean {near!r}?" if near else f"; leave it out, or use one of {', '.join(IMAGE_TOKENS)}"
        raise ConfigError(f"image_token {asked!r} is not in the tokenizer's vocabulary{hint}")
    return found


def versions(steps: Sequence[Step], tokenizer: Tokenizer | None) -> dict[str, str]:
    """Return the releases of the libraries whose results may differ between releases."""
    releases = {}
    if any(step.kind == "image" for step in steps):
        import PIL

        releases["pillow"] = PIL.__version__
    if any(step.kind in ("function", "filter") for step in steps):
        import numpy as np

        releases["numpy"] = np.__version__
    if isinstance(tokenizer, FileTokenizer):
        import tokenizers

        releases["tokenizers"] = tokenizers.__version__
    return releases

"""Who encodes images, where that is not the ranks of their rows."""

from typing import Literal

from msd.core.config import ConfigStruct


class EncoderConfig(ConfigStruct, frozen=True, kw_only=True):
    """Who encodes images under `strategy: vlm_hybrid`, and how often ranks meet to exchange embeddings."""

    ranks: Literal["dp", "dp_cp", "world"] = "world"
    """world: all ranks. dp_cp: one of each data-parallel and context-parallel coordinate, in the first pipeline stage.
    dp: one of each data-parallel coordinate."""
    every: Literal["auto", "slot", "step"] = "auto"
    """slot: ranks meet for each microbatch. step: once, for all of them. auto: slot, unless later pipeline stages
    encode."""

"""The batches of a rank as other trainers name, shape and shift them; see `msd.client.layouts`."""

from msd.client.layouts import (
    NAMED,
    LaidOutBatch,
    Layout,
    Segments,
    encoder_rounds,
    flash,
    hf,
    layout_named,
    megatron,
    megatron_packed,
    qwen,
    segments,
    torchtitan,
)

__all__ = [
    "NAMED",
    "LaidOutBatch",
    "Layout",
    "Segments",
    "encoder_rounds",
    "flash",
    "hf",
    "layout_named",
    "megatron",
    "megatron_packed",
    "qwen",
    "segments",
    "torchtitan",
]

"""The batches of a rank as other trainers name, shape and shift them.

A layout is a function `(RankBatch) -> anything`; those here return one item a microbatch and use numpy alone.
`msd.torch.DataLoader(engine, layout="hf")` applies one to each batch and makes tensors of its arrays. Options are bound
with `functools.partial(layouts.qwen, mean=..., std=...)`.

Layouts of text keep the images of a row that has some in a field `images`, as `msd.core.batch.RowImages` names them;
their `starts` are positions of the whole row.
"""

from msd.client.layouts.encoder import encoder_rounds
from msd.client.layouts.flash import flash
from msd.client.layouts.hf import hf
from msd.client.layouts.laid_out import LaidOutBatch
from msd.client.layouts.megatron import megatron, megatron_packed
from msd.client.layouts.named import NAMED, Layout, layout_named
from msd.client.layouts.qwen import qwen
from msd.client.layouts.segments import Segments, segments
from msd.client.layouts.torchtitan import torchtitan

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

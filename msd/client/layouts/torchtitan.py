"""torchtitan: `({"input", "positions"}, labels)`."""

# T = tokens of a row. E = segments: documents, and padding between them.

from typing import Any

from msd.client.layouts.hf import TRAINER_SLICES
from msd.client.layouts.laid_out import LaidOutBatch, as_int64, check_slices, images_of, received
from msd.client.layouts.segments import segments
from msd.core.arrays import Int64Array
from msd.core.batch import Microbatch, RankBatch


def torchtitan(batch: RankBatch, *, varlen: bool = True) -> LaidOutBatch:
    """Return each microbatch as a pair of inputs and labels.

        input               int64 [T]
        positions           int64 [T]: restart at 0 in each document; a document begins where the position is 0
        cu_seq_q, cu_seq_k  int32 [E + 1]: where each document begins; ends at T
        max_q, max_k        int: the longest document

    Labels are int64 [T], the target at each position: shifted already, -100 where nothing is learned. What pads a
    row is documents of its own without labels, no longer than the longest real one, in all of these fields alike.
    Divide the summed loss by `step.global_num_valid_tokens`.

    Args:
        batch: Of one rank.
        varlen: False leaves the last four fields out, for a trainer that finds documents by `positions` and hands
            every other field to the model.

    Raises:
        ConfigError: If the rank holds context-parallel slices; torchtitan slices itself.
    """
    check_slices(batch, "torchtitan", takes=None, otherwise=TRAINER_SLICES)
    return LaidOutBatch.of(batch, lambda row: _row(row, varlen))


def _row(row: Microbatch, varlen: bool) -> tuple[dict[str, Any], Int64Array | None]:
    found = segments(row)
    inputs = {"input": as_int64(row.input_ids), "positions": found.position_ids}
    boundaries = {
        "cu_seq_q": found.cu_seqlens,
        "cu_seq_k": found.cu_seqlens,
        "max_q": found.max_seqlen,
        "max_k": found.max_seqlen,
    }
    fields = received(inputs) | (boundaries if varlen else {}) | images_of(row)
    return fields, as_int64(row.labels)

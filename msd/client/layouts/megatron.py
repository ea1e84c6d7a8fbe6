"""Megatron-Core: rows of one sequence each with a mask, or packed rows with boundaries (THD)."""

# B = sequences of a row. S = tokens of a sequence. T = B * S, or the rank's slice of it. N = documents of the row.

from typing import Any

import numpy as np

from msd.client.layouts.laid_out import LaidOutBatch, as_int64, check_slices, images_of, received
from msd.client.layouts.segments import document_numbers
from msd.core.arrays import BoolArray, Int32Array
from msd.core.batch import IGNORE_INDEX, Microbatch, RankBatch
from msd.errors import ConfigError

_WITHOUT_DOCUMENTS = (
    "use layout 'megatron_packed', or batch.slice: headtail with functools.partial(msd.layouts.megatron, "
    "attention_mask=False), where documents of one sequence see each other"
)


def megatron(batch: RankBatch, *, attention_mask: bool = True) -> LaidOutBatch:
    """Return each microbatch as Megatron's pretraining batch.

        tokens          int64 [B, S]
        labels          int64 [B, S]: the target at each position, shifted already; 0 where nothing is learned
        loss_mask       float32 [B, S]: 1 where a label counts
        position_ids    int64 [B, S]: restart at 0 in each document; 0 on padding
        attention_mask  bool [B, 1, S, S]: True where a query (third axis) must not see a key

    Megatron's loss reads every label and multiplies by `loss_mask`, so no label is -100. Padding sees padding before it
    and nothing else. The mask takes S bytes a token: for long sequences use `megatron_packed`.

    Under context parallelism with `batch.slice: headtail` the fields are the rank's slice, [B, S / cp], as
    `get_batch_on_this_cp_rank` would cut them: do not slice again. There is no mask then.

    Args:
        batch: Of one rank.
        attention_mask: False leaves the mask out; documents of one sequence then see each other, as in Megatron's
            pretraining without `--reset-attention-mask`.

    Raises:
        ConfigError: If the rank holds slices that are cut document by document, or slices and a mask is wanted.
    """
    check_slices(batch, "megatron", takes="headtail", otherwise=_WITHOUT_DOCUMENTS)
    if attention_mask and batch.slice_method is not None:
        raise ConfigError(f"layout 'megatron' has no mask for slices; {_WITHOUT_DOCUMENTS}")

    def lay_out(row: Microbatch) -> dict[str, Any]:
        num_sequences = int(row.cu_seqlens_padded[-1]) // batch.sequence_length
        fields = _fields(row, (num_sequences, -1))
        if attention_mask:
            fields["attention_mask"] = _may_not_attend(document_numbers(row).reshape(num_sequences, -1))
        return fields

    return LaidOutBatch.of(batch, lay_out)


def megatron_packed(batch: RankBatch) -> LaidOutBatch:
    """Return each microbatch as one packed row in the THD format of Transformer Engine.

        tokens             int64 [1, T]
        labels             int64 [1, T]: the target at each position, shifted already; 0 where nothing is learned
        loss_mask          float32 [1, T]: 1 where a label counts
        position_ids       int64 [1, T]: restart at 0 in each document; 0 on padding
        packed_seq_params  the keyword arguments of `PackedSeqParams`:
          qkv_format                                   "thd"
          cu_seqlens_q, cu_seqlens_kv                  int32 [N + 1]: cumulated real lengths, what attention computes
          cu_seqlens_q_padded, cu_seqlens_kv_padded    int32 [N + 1]: where each document starts; ends at the row's end
          max_seqlen_q, max_seqlen_kv                  int: the longest document with its padding

    Padding belongs to the document before it and is excluded from attention by the two lists. The longest document
    counts with its padding, because rotary embeddings are made for `max_seqlen_q` positions and applied to padded
    documents, and because ring attention divides it by the number of ranks.

    Under context parallelism the token fields are the rank's slice, T / cp of them, and the boundaries stay those of
    the whole row, as Transformer Engine expects; do not slice again.

    Raises:
        ConfigError: If the rank holds slices that are not cut document by document.
    """
    check_slices(batch, "megatron_packed", takes="zigzag", otherwise="set batch.slice: zigzag")
    return LaidOutBatch.of(batch, _packed_row)


def _packed_row(row: Microbatch) -> dict[str, Any]:
    longest = int(np.diff(row.cu_seqlens_padded).max())
    return {
        **_fields(row, (1, -1)),
        "packed_seq_params": {
            "qkv_format": "thd",
            "cu_seqlens_q": row.cu_seqlens,
            "cu_seqlens_kv": row.cu_seqlens,
            "cu_seqlens_q_padded": row.cu_seqlens_padded,
            "cu_seqlens_kv_padded": row.cu_seqlens_padded,
            "max_seqlen_q": longest,
            "max_seqlen_kv": longest,
        },
    }


def _fields(row: Microbatch, shape: tuple[int, int]) -> dict[str, Any]:
    labels = None if row.labels is None else np.where(row.labels == IGNORE_INDEX, 0, row.labels)
    fields = {
        "tokens": as_int64(row.input_ids),
        "labels": as_int64(labels),
        "loss_mask": row.loss_mask,
        "position_ids": as_int64(row.position_ids),
    }
    return {name: array.reshape(shape) for name, array in received(fields).items()} | images_of(row)


def _may_not_attend(segment_BS: Int32Array) -> BoolArray:
    """Return [B, 1, S, S]: whether the key comes later than the query, or is of another document."""
    length = segment_BS.shape[1]
    is_later_SS = np.triu(np.ones((length, length), dtype=np.bool_), k=1)
    is_other_BSS = segment_BS[:, :, None] != segment_BS[:, None, :]
    may_not_BSS: BoolArray = is_other_BSS | is_later_SS
    return may_not_BSS[:, None]

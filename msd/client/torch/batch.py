"""A rank's batch as tensors."""

# T = tokens of a row, or of the rank's context-parallel slice of it. N = documents of the whole row.

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from msd.client.layouts import encoder_rounds
from msd.client.torch.tensors import as_tensors, changed
from msd.core.batch import TOKEN_FIELDS, BatchMarker, Microbatch, RankBatch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchBatch:
    """What one rank receives for one optimizer step, as tensors."""

    step: int
    rank: int
    sample_ids: list[tuple[str, int, int]]
    """(source, ordinal, part) of the documents of the rank's rows, in order; repeated for each piece of a cut part."""
    microbatches: list[dict[str, Any]]
    """One dictionary a row. Of shape [T]: input_ids, labels, position_ids, segment_ids (int64), loss_mask (float32).
    Of shape [N + 1]: cu_seqlens, cu_seqlens_padded (int32). Besides: num_tokens (T) and max_seqlen, and images, which
    is None or pixels (uint8), grids, owner, starts (int32); see `msd.core.batch`. `labels[j]` is already the target at
    position j: do not shift again. With `fields_by_stage`, what the rank's pipeline stages do not need is None."""
    num_valid_tokens: int
    """Labelled positions that this rank holds."""
    global_num_valid_tokens: int
    """Labelled positions of the step: divide the summed loss by it, on every rank."""
    sequence_length: int
    """Tokens of a sequence: a whole row reshapes to [sequences, sequence_length]."""
    markers: list[BatchMarker] = field(default_factory=list)
    """Where to receive the microbatches from, when a broadcast axis says that another rank fetches them."""
    encoder: list[dict[str, Any]] = field(default_factory=list)
    """With `strategy: vlm_hybrid`, one dictionary a round: pixels (uint8), grids (int32), num_embeddings (int), ranks,
    returns, send_counts, receive_counts (lists), send_rows, slots, positions (int64); see
    `msd.core.batch.EncoderShare` and `EmbeddingExchange`."""

    def __repr__(self) -> str:
        rows = f"{len(self.microbatches)} microbatches" if not self.markers else f"{len(self.markers)} markers"
        documents = f"{len(self.sample_ids)} documents, {self.num_valid_tokens} labelled tokens"
        encodes = f", encodes {sum(len(share['grids']) for share in self.encoder)} images" if self.encoder else ""
        return f"<TorchBatch step={self.step} rank={self.rank}: {rows}, {documents}{encodes}>"

    @classmethod
    def of(cls, batch: RankBatch) -> "TorchBatch":
        """Return a rank batch as tensors; float and boundary arrays are shared with it, not copied."""
        return cls(
            step=batch.step,
            rank=batch.rank,
            sample_ids=batch.sample_ids,
            microbatches=[_tensors(row) for row in batch.microbatches],
            num_valid_tokens=batch.num_valid_tokens,
            global_num_valid_tokens=batch.global_num_valid_tokens,
            sequence_length=batch.sequence_length,
            markers=batch.markers,
            encoder=as_tensors(encoder_rounds(batch)),
        )

    def to(self, device: Any, *, non_blocking: bool = False) -> "TorchBatch":
        """Return the batch with its tensors on `device`."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "TorchBatch":
        """Return the batch in page-locked memory, from which copies to an accelerator overlap with computation."""
        return self.each(lambda tensor: tensor.pin_memory())

    def each(self, change: Callable[[Any], Any]) -> "TorchBatch":
        """Return the batch with every tensor changed."""
        return replace(
            self,
            microbatches=changed(self.microbatches, torch.Tensor, change),
            encoder=changed(self.encoder, torch.Tensor, change),
        )


def _tensors(row: Microbatch) -> dict[str, Any]:
    arrays = {name: getattr(row, name) for name in (*TOKEN_FIELDS, "cu_seqlens", "cu_seqlens_padded")}
    fields: dict[str, Any] = {
        name: None if array is None else torch.from_numpy(array) for name, array in arrays.items()
    }
    for name in ("input_ids", "labels", "position_ids", "segment_ids"):
        fields[name] = None if fields[name] is None else fields[name].long()
    images = row.images
    return fields | {
        "num_tokens": row.num_tokens,
        "max_seqlen": row.max_seqlen,
        "images": None
        if images is None
        else {name: torch.from_numpy(getattr(images, name)) for name in ("pixels", "grids", "owner", "starts")},
    }

"""What a rank encodes apart from its rows."""

from typing import Any

import numpy as np

from msd.core.batch import EncoderShare, RankBatch


def encoder_rounds(batch: RankBatch) -> list[dict[str, Any]]:
    """Return what a rank encodes and exchanges, round by round, as `msd.torch.EmbeddingExchange` takes it.

    Pixels (uint8), grids (int32), num_embeddings (int), ranks, returns, send_counts, receive_counts (lists), send_rows,
    slots, positions (int64); see `msd.core.batch.EncoderShare`.
    """
    return [_round(share) for share in batch.encoder]


def _round(share: EncoderShare) -> dict[str, Any]:
    # Counts say how to split; a collective takes them as numbers, wherever the tensors are.
    counts = {name: getattr(share, name).tolist() for name in ("ranks", "returns", "send_counts", "receive_counts")}
    indices = {name: getattr(share, name).astype(np.int64) for name in ("send_rows", "slots", "positions")}
    payload = {"pixels": share.pixels, "grids": share.grids}
    return {**payload, **counts, **indices, "num_embeddings": share.num_embeddings}

"""Rows that one rank fetched travel to the ranks that share them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from msd.core.batch import BatchMarker, Microbatch, RankBatch


def shared(batch: RankBatch, group: Any) -> RankBatch:
    """Return a batch with microbatches on every rank of a group: the one that fetched them sends them."""
    for row in batch.microbatches:
        counts = np.array([row.num_tokens, row.max_seqlen], dtype=np.int64)
        _broadcast([counts, *row.arrays.values()], batch.rank, group)
    if not batch.markers:
        return batch
    return replace(batch, microbatches=[_received(marker, group) for marker in batch.markers], markers=[])


def _received(marker: BatchMarker, group: Any) -> Microbatch:
    counts = np.empty(2, dtype=np.int64)
    arrays = {name: np.empty(shape, dtype) for name, (shape, dtype) in marker.shapes.items()}
    _broadcast([counts, *arrays.values()], marker.root, group)
    return Microbatch.of(arrays, num_tokens=int(counts[0]), max_seqlen=int(counts[1]))


def _broadcast(arrays: Sequence[np.ndarray[Any, Any]], root: int, group: Any) -> None:
    for array in arrays:
        dist.broadcast(torch.from_numpy(np.ascontiguousarray(array)), src=root, group=group)

"""The plain PyTorch pattern: what people write first, as a yardstick for the benchmarks.

An `IterableDataset` per source with a shuffle buffer, a weighted random draw, and a collate function that packs
greedily; each rank reads its share of the row groups, or of the rows where there are fewer groups than readers.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SHUFFLE_BUFFER = 100
Rows = Callable[[pq.ParquetFile, int], Iterator[np.ndarray]]


def rows_as_values(file: pq.ParquetFile, group: int) -> Iterator[np.ndarray]:
    """Yield the rows of a row group by way of Python values."""
    for batch in file.iter_batches(32, row_groups=[group]):
        for row in batch.to_pylist():
            yield np.array(row["ids"])


def rows_as_views(file: pq.ParquetFile, group: int) -> Iterator[np.ndarray]:
    """Yield the rows of a row group as views of its column."""
    for ids in file.read_row_group(group)["ids"]:
        yield ids.values.to_numpy()


class Source(IterableDataset):  # type: ignore[type-arg]
    """Rows of one file for ever, shuffled within a buffer: the share of one reader."""

    def __init__(self, path: Path, share: int, num_shares: int, rows_of: Rows, buffer: int) -> None:
        self.path, self.share, self.num_shares, self.rows_of, self.buffer = path, share, num_shares, rows_of, buffer

    def __iter__(self) -> Iterator[np.ndarray]:
        draw, file = np.random.default_rng(self.share), pq.ParquetFile(self.path)
        while True:
            buffer: list[np.ndarray] = []
            for ids in self._read(file, draw):
                buffer.append(ids)
                if len(buffer) >= self.buffer:
                    place = int(draw.integers(len(buffer)))
                    buffer[place], buffer[-1] = buffer[-1], buffer[place]
                    yield buffer.pop()
            draw.shuffle(buffer)  # type: ignore[arg-type]
            yield from buffer

    def _read(self, file: pq.ParquetFile, draw: np.random.Generator) -> Iterator[np.ndarray]:
        if file.num_row_groups >= self.num_shares:
            for group in draw.permutation(np.arange(self.share, file.num_row_groups, self.num_shares)):
                yield from self.rows_of(file, int(group))
            return
        row = 0
        for group in range(file.num_row_groups):
            for ids in self.rows_of(file, group):
                if row % self.num_shares == self.share:
                    yield ids
                row += 1


class Mixture(IterableDataset):  # type: ignore[type-arg]
    """Packed sequences from a weighted draw over all sources."""

    def __init__(
        self,
        paths: list[Path],
        weights: np.ndarray,
        rank: int,
        num_ranks: int,
        length: int,
        *,
        rows_of: Rows = rows_as_values,
        buffer: int = SHUFFLE_BUFFER,
    ) -> None:
        self.paths, self.weights, self.rank, self.num_ranks, self.length = paths, weights, rank, num_ranks, length
        self.rows_of, self.buffer = rows_of, buffer

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker else (0, 1)
        share, num_shares = self.rank * count + number, self.num_ranks * count
        draw, weights = np.random.default_rng(1000 + share), self.weights / self.weights.sum()
        streams = [iter(Source(path, share, num_shares, self.rows_of, self.buffer)) for path in self.paths]

        def samples() -> Iterator[np.ndarray]:
            while True:
                yield from (next(streams[source]) for source in draw.choice(len(streams), size=64, p=weights))

        yield from packed(samples(), self.length)


def packed(samples: Iterator[np.ndarray], length: int) -> Iterator[dict[str, Any]]:
    """Pack greedily: a sequence is closed by the first sample that does not fit."""
    waiting: list[np.ndarray] = []
    while True:
        room, documents = length, []
        while True:
            sample = waiting.pop() if waiting else next(samples)
            if len(sample) > room:
                waiting.append(sample)
                break
            documents.append(sample)
            room -= len(sample)
        yield collate(documents, room)


def collate(documents: list[np.ndarray], room: int) -> dict[str, Any]:
    """Return the arrays of a sequence as tensors."""
    lengths = [len(document) for document in documents]
    tail = np.zeros(room, dtype=np.int64)
    nothing = np.full(room, -100, dtype=np.int64)
    labels = [np.append(document[1:], -100) for document in documents]
    return {
        "input_ids": torch.from_numpy(np.concatenate([*documents, tail]).astype(np.int64)),
        "labels": torch.from_numpy(np.concatenate([*labels, nothing]).astype(np.int64)),
        "position_ids": torch.from_numpy(np.concatenate([*(np.arange(n) for n in lengths), tail])),
        "segment_ids": torch.from_numpy(np.repeat(np.arange(len(lengths) + 1), [*lengths, room])),
        "cu_seqlens": torch.from_numpy(np.cumsum([0, *lengths]).astype(np.int32)),
        "num_samples": len(documents),
    }


def steps_of(mixture: Mixture, sequences: int, workers: int = 0) -> Iterator[list[dict[str, Any]]]:
    """Yield the sequences of one rank and step, for ever."""
    loader = iter(DataLoader(mixture, batch_size=None, num_workers=workers))
    while True:
        yield [next(loader) for _ in range(sequences)]

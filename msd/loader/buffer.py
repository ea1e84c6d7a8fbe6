"""Payload of rows that were examined and may be asked for, bounded by bytes."""

import threading
from collections import OrderedDict

from msd.core.sample import Sample

_SAMPLE_BYTES = 512
"""What a sample takes besides its payload, roughly: objects and array headers."""


class BufferPool:
    """The bytes that all buffers of a process hold together. For any number of threads.

    Whoever needs most holds most, as long as there is room. Each buffer has a floor besides that nobody takes from it,
    so that a source with large rows does not have those of another made again and again.
    """

    def __init__(self, max_bytes: int, num_buffers: int) -> None:
        """Divide so many bytes.

        Args:
            max_bytes: Of all buffers, floors included; one row each may exceed them.
            num_buffers: That share them, as a rule.
        """
        self.floor_bytes = max_bytes // (3 * max(1, num_buffers))
        self._shared_bytes = max_bytes - max_bytes // 3
        self._nbytes = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Held by all buffers now."""
        return self._nbytes

    @property
    def is_tight(self) -> bool:
        """Whether so much is held that what was handed out had better go."""
        return self._nbytes > self._shared_bytes // 2

    def has_room(self, nbytes: int) -> bool:
        """Return whether so many bytes more may be held."""
        return self._nbytes + nbytes <= self._shared_bytes

    def change(self, nbytes: int) -> None:
        """Note that so many bytes more are held, or fewer."""
        with self._lock:
            self._nbytes += nbytes


class PayloadBuffer:
    """Holds the samples of rows by ordinal. What it drops can be made again, so it may drop anything.

    Samples are asked for in about the order in which they were examined. So rows that were handed out already go
    first, the oldest of them first; then, since the oldest are needed soonest, the row that was examined last but
    one, never the one just put in.
    """

    def __init__(self, max_bytes: int, pool: BufferPool | None = None) -> None:
        """Make an empty buffer.

        Args:
            max_bytes: Bound on what is held; one row may exceed it alone.
            pool: Bound on what this one and others hold together.
        """
        self.max_bytes = max_bytes
        self._pool = pool
        self.nbytes = 0
        self._waiting: OrderedDict[int, tuple[Sample, ...]] = OrderedDict()
        self._handed_out: OrderedDict[int, tuple[Sample, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting) + len(self._handed_out)

    def put(self, ordinal: int, samples: tuple[Sample, ...]) -> None:
        """Hold the samples of a row that waits to be asked for."""
        self._put(self._waiting, ordinal, samples)

    def put_handed_out(self, ordinal: int, samples: tuple[Sample, ...]) -> None:
        """Hold the samples of a row that was made again to be handed out; its other parts may be asked for yet."""
        self._put(self._handed_out, ordinal, samples)

    def get(self, ordinal: int) -> tuple[Sample, ...] | None:
        """Return the samples of a row to be handed out, or None if they must be made again."""
        samples = self._waiting.pop(ordinal, None)
        if samples is None:
            return self._handed_out.get(ordinal)
        if self._pool is not None and self._pool.is_tight:
            self._count(-_nbytes(samples))
        else:
            self._handed_out[ordinal] = samples
        return samples

    def release(self, before: int) -> None:
        """Drop the rows with ordinals below `before`."""
        for held in (self._waiting, self._handed_out):
            for ordinal in [ordinal for ordinal in held if ordinal < before]:
                self._count(-_nbytes(held.pop(ordinal)))

    def clear(self) -> None:
        """Drop everything."""
        self._waiting.clear()
        self._handed_out.clear()
        self._count(-self.nbytes)

    def _put(self, held: OrderedDict[int, tuple[Sample, ...]], ordinal: int, samples: tuple[Sample, ...]) -> None:
        for earlier in (self._waiting, self._handed_out):
            if ordinal in earlier:
                self._count(-_nbytes(earlier.pop(ordinal)))
        nbytes = _nbytes(samples)
        while len(self) and not self._has_room(nbytes):
            _, dropped = self._handed_out.popitem(last=False) if self._handed_out else self._waiting.popitem(last=True)
            self._count(-_nbytes(dropped))
        held[ordinal] = samples
        self._count(nbytes)

    def _has_room(self, nbytes: int) -> bool:
        if self.nbytes + nbytes > self.max_bytes:
            return False
        pool = self._pool
        return pool is None or self.nbytes + nbytes <= pool.floor_bytes or pool.has_room(nbytes)

    def _count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        if self._pool is not None:
            self._pool.change(nbytes)


def _nbytes(samples: tuple[Sample, ...]) -> int:
    return sum(sample.nbytes + _SAMPLE_BYTES for sample in samples)

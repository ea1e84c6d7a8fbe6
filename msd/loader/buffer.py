"""Payload of rows that were examined and may be asked for, bounded by bytes."""

from collections import OrderedDict

from msd.core.sample import Sample

_SAMPLE_BYTES = 512
"""What a sample takes besides its payload, roughly: objects and array headers."""


class PayloadBuffer:
    """Holds the samples of rows by ordinal. What it drops can be made again, so it may drop anything.

    Samples are asked for in about the order in which they were examined. So rows that were handed out already go
    first, the oldest of them first; then, since the oldest are needed soonest, the row that was examined last but
    one, never the one just put in.
    """

    def __init__(self, max_bytes: int) -> None:
        """Make an empty buffer.

        Args:
            max_bytes: Bound on what is held; one row may exceed it alone.
        """
        self.max_bytes = max_bytes
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
        self._handed_out[ordinal] = samples
        return samples

    def release(self, before: int) -> None:
        """Drop the rows with ordinals below `before`."""
        for held in (self._waiting, self._handed_out):
            for ordinal in [ordinal for ordinal in held if ordinal < before]:
                self.nbytes -= _nbytes(held.pop(ordinal))

    def clear(self) -> None:
        """Drop everything."""
        self._waiting.clear()
        self._handed_out.clear()
        self.nbytes = 0

    def _put(self, held: OrderedDict[int, tuple[Sample, ...]], ordinal: int, samples: tuple[Sample, ...]) -> None:
        for earlier in (self._waiting, self._handed_out):
            if ordinal in earlier:
                self.nbytes -= _nbytes(earlier.pop(ordinal))
        nbytes = _nbytes(samples)
        while len(self) and self.nbytes + nbytes > self.max_bytes:
            _, dropped = self._handed_out.popitem(last=False) if self._handed_out else self._waiting.popitem(last=True)
            self.nbytes -= _nbytes(dropped)
        held[ordinal] = samples
        self.nbytes += nbytes


def _nbytes(samples: tuple[Sample, ...]) -> int:
    return sum(sample.nbytes + _SAMPLE_BYTES for sample in samples)

"""Cuts a stream of bytes into blocks at line ends, and counts the rows in each."""

# L = lines of one chunk of bytes, or of what waits to be cut.

import numpy as np

from msd.core.arrays import BoolArray, Int64Array

BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_MAYBE_BLANK = np.frombuffer(_SPACE + BOM[:1], dtype=np.uint8)


def is_row(line: bytes) -> bool:
    """Return whether a line holds more than white space; a byte order mark counts as white space."""
    return bool(line.removeprefix(BOM).strip(_SPACE))


def rows_of_block(data: bytes) -> list[bytes]:
    """Return the lines of a block that are rows."""
    return [line for line in data.split(b"\n") if is_row(line)]


class LineScanner:
    """Finds line ends in bytes that arrive in chunks, and closes a block before it would exceed its cap.

    A line longer than the cap is a block of its own. Memory: the line ends of one block.
    """

    def __init__(self, block_bytes: int) -> None:
        """Cut blocks of at most `block_bytes`."""
        self._cap = block_bytes
        self._tail = b""
        """Of the line that is not over yet: its end while it may still be blank, else nothing."""
        self._tail_is_row = False
        self._scanned = 0
        """Bytes up to where the next chunk begins, `_tail` included."""
        self._block_start = 0
        self._waiting: list[tuple[Int64Array, BoolArray]] = []
        """Line ends that are in no block yet, and whether each line is a row."""

    @property
    def is_at_line_start(self) -> bool:
        """Whether the bytes so far end with a line end, or there are none."""
        return not self._tail and not self._tail_is_row

    def feed(self, chunk: bytes) -> list[tuple[int, int]]:
        """Take the next bytes; return (rows, bytes) of each block that is complete now."""
        if self._tail:
            self._scanned -= len(self._tail)
            chunk, self._tail = self._tail + chunk, b""
        byte_T = np.frombuffer(chunk, dtype=np.uint8)
        end_L = np.flatnonzero(byte_T == ord("\n")) + 1
        if len(end_L):
            start_L = np.concatenate([[0], end_L[:-1]])
            is_row_L = ~np.isin(byte_T[start_L], _MAYBE_BLANK)
            for line in np.flatnonzero(~is_row_L).tolist():
                is_row_L[line] = is_row(chunk[start_L[line] : end_L[line]])
            is_row_L[0] |= self._tail_is_row
            self._tail_is_row = False
            self._waiting.append((end_L + self._scanned, is_row_L))
        self._keep_tail(chunk[end_L[-1] if len(end_L) else 0 :])
        self._scanned += len(chunk)
        return self._cut() if self._scanned - self._block_start >= self._cap else []

    def finish(self) -> list[tuple[int, int]]:
        """Return the blocks left when a unit ends: a last line needs no line end. The scanner goes on after them."""
        if not self.is_at_line_start:
            is_last_row = self._tail_is_row or is_row(self._tail)
            self._waiting.append((np.array([self._scanned]), np.array([is_last_row])))
            self._tail, self._tail_is_row = b"", False
        blocks = self._cut()
        for end_L, is_row_L in self._waiting:
            if len(end_L):
                blocks.append((int(is_row_L.sum()), int(end_L[-1]) - self._block_start))
                self._block_start = int(end_L[-1])
        self._waiting = []
        return blocks

    def _keep_tail(self, tail: bytes) -> None:
        if self._tail_is_row or not tail:
            return
        # Up to three bytes may be the beginning of a byte order mark.
        if len(tail) > len(BOM) and is_row(tail):
            self._tail_is_row = True
        else:
            # What is blank so far is told by its last byte: a line may be as long as a file, unpacked.
            self._tail = tail if len(tail) <= len(BOM) else tail[-1:]

    def _cut(self) -> list[tuple[int, int]]:
        if not self._waiting:
            return []
        end_L, is_row_L = (np.concatenate(column) for column in zip(*self._waiting, strict=True))
        blocks, first = [], 0
        rows_before_L = np.concatenate([[0], np.cumsum(is_row_L)])
        while first < len(end_L):
            fits = int(np.searchsorted(end_L, self._block_start + self._cap, side="right"))
            if fits == len(end_L) and end_L[-1] - self._block_start < self._cap:
                break
            after = max(fits, first + 1)
            end = int(end_L[after - 1])
            blocks.append((int(rows_before_L[after] - rows_before_L[first]), end - self._block_start))
            self._block_start, first = end, after
        self._waiting = [(end_L[first:], is_row_L[first:])]
        return blocks

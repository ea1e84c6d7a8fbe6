"""Compressed files read from front to back: gzip and Zstandard, member by member, a little at a time."""

import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal

import zstandard

from msd.errors import SourceError

Codec = Literal["gzip", "zstd"]

_READ_BYTES = 256 << 10
_FEED_BYTES: dict[Codec, int] = {"gzip": 8 << 10, "zstd": 1 << 10}
"""What one call decodes is bounded by what it is fed: gzip expands a thousandfold at most, a Zstandard frame that is
made for it 32 times as much."""


def codec_of(head: bytes) -> Codec | None:
    """Return how a file that starts with `head` is compressed, or None."""
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    is_skippable_frame = len(head) >= 4 and 0x50 <= head[0] <= 0x5F and head[1:4] == b"\x2a\x4d\x18"
    return "zstd" if head.startswith(b"\x28\xb5\x2f\xfd") or is_skippable_frame else None


def decode(file: BinaryIO, codec: Codec, *, path: str, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield (byte offset of the member, decoded bytes) from the member that starts at byte `start`, to the end.

    A member is a gzip member or a Zstandard frame; empty ones and skippable frames yield nothing.

    Raises:
        SourceError: If the data is damaged or ends inside a member: naming file and byte.
    """
    file.seek(start)
    position = member = start
    decoder: Any = None
    feed_bytes = _FEED_BYTES[codec]
    while chunk := file.read(_READ_BYTES):
        for piece_start in range(0, len(chunk), feed_bytes):
            piece = chunk[piece_start : piece_start + feed_bytes]
            while piece:
                if decoder is None:
                    # Writers may pad with zeros behind the last gzip member.
                    unpadded = piece.lstrip(b"\0") if codec == "gzip" else piece
                    position, piece = position + len(piece) - len(unpadded), unpadded
                    if not piece:
                        break
                    member, decoder = position, _decoder(codec)
                try:
                    decoded = decoder.decompress(piece)
                except (zlib.error, zstandard.ZstdError) as error:
                    raise SourceError(
                        f"{path} is damaged: its {codec} data cannot be decoded near byte {position} ({error}); fetch "
                        "or write it again"
                    ) from None
                if decoded:
                    yield member, decoded
                rest = decoder.unused_data if decoder.eof else b""
                position += len(piece) - len(rest)
                piece, decoder = rest, None if decoder.eof else decoder
    if decoder is not None:
        raise SourceError(
            f"{path} is truncated: its {codec} data ends at byte {position} inside the member that starts at byte "
            f"{member}; fetch or write it again"
        )


class StreamCursor:
    """Reads ranges of decoded bytes at rising positions, counted from the member at `start`."""

    def __init__(self, file: BinaryIO, codec: Codec, *, path: str, start: int = 0) -> None:
        """Stand at decoded byte 0 of the member that starts at byte `start` of `file`."""
        self._chunks = decode(file, codec, path=path, start=start)
        self._held = b""
        self._held_start = 0

    def can_read(self, begin: int) -> bool:
        """Return whether `begin` still lies ahead; otherwise decoding has to start again."""
        return begin >= self._held_start

    def read(self, begin: int, size: int) -> bytes:
        """Return `size` bytes from decoded byte `begin`; fewer at the end of the file."""
        if not self.can_read(begin):
            raise ValueError(f"decoded byte {begin} lies behind the cursor, which holds from {self._held_start} on")
        while begin >= self._held_start + len(self._held):
            self._held_start += len(self._held)
            self._held = next(self._chunks, (0, b""))[1]
            if not self._held:
                return b""
        pieces, self._held_start = [self._held[begin - self._held_start :]], begin
        length = len(pieces[0])
        while length < size:
            _, piece = next(self._chunks, (0, b""))
            if not piece:
                break
            pieces.append(piece)
            length += len(piece)
        self._held = b"".join(pieces) if len(pieces) > 1 else pieces[0]
        return self._held[:size]

    def forget(self, before: int) -> None:
        """Let go of what was decoded ahead of byte `before`."""
        cut = min(max(0, before - self._held_start), len(self._held))
        self._held, self._held_start = self._held[cut:], self._held_start + cut

    def drain(self) -> None:
        """Decode to the end of the file, so that damage anywhere is noticed."""
        for _ in self._chunks:
            pass


class PlainCursor:
    """The same reads on a file that is not compressed, at any position."""

    def __init__(self, file: BinaryIO) -> None:
        """Read from `file`."""
        self._file = file

    def can_read(self, begin: int) -> bool:
        """Return True: any position can be read."""
        return begin >= 0

    def read(self, begin: int, size: int) -> bytes:
        """Return `size` bytes from byte `begin`; fewer at the end of the file."""
        self._file.seek(begin)
        return self._file.read(size)

    def forget(self, before: int) -> None:
        """Do nothing: nothing is held."""

    def drain(self) -> None:
        """Do nothing: there is no checksum to reach."""


def _decoder(codec: Codec) -> Any:
    return zlib.decompressobj(wbits=31) if codec == "gzip" else zstandard.ZstdDecompressor().decompressobj()

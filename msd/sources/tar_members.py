"""The members of a tar archive, from its headers alone: ustar, GNU long names, pax records (POSIX.1-2001)."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from msd.errors import SourceError

_BLOCK = 512
_FILES = (b"0", b"\0", b"7")
_WITHOUT_DATA = (b"1", b"2", b"3", b"4", b"5", b"6")
_MOST_EXTENSION_BYTES = 4 << 20
"""Of a header that only says something of the member after it."""
_MOST_DIGITS = 20
_KEPT = ("path", "size", "GNU.sparse.major", "GNU.sparse.map")


class Member(NamedTuple):
    """One member of an archive; positions count from where the archive, or the block of it, begins."""

    name: str
    is_file: bool
    """A regular file, rather than a directory, link or device."""
    start: int
    """Of its first header, which may be one that only carries its long name."""
    data_start: int
    size: int
    end: int
    """Of its data, padded to whole tar blocks."""


def tar_members(read: Callable[[int, int], bytes], *, path: str, nbytes: int | None) -> Iterator[Member]:
    """Yield the members of an archive in order, until its end marker or its last byte.

    Args:
        read: Returns up to `size` bytes from a position; positions never fall.
        path: Of the archive, for errors.
        nbytes: Size of the archive, or None if only reading can tell.

    Raises:
        SourceError: If the archive is truncated or damaged: naming file and byte.
    """
    position, start = 0, -1
    records: dict[str, str] = {}
    while True:
        header = read(position, _BLOCK)
        if (not header and start < 0) or header == bytes(_BLOCK):
            return
        if len(header) < _BLOCK:
            raise _truncated(path, position + len(header))
        start = position if start < 0 else start
        kind, size = _check_header(path, header, position)
        data_start = position + _BLOCK
        if kind in b"LKxg":
            if size > _MOST_EXTENSION_BYTES:
                raise _damaged(path, position, f"an extension header of {size} bytes")
            body = read(data_start, size)
            if len(body) < size:
                raise _truncated(path, data_start + len(body))
            records |= _records(kind, body)
            position = data_start + _padded(size)
            continue
        if kind == b"S" or "GNU.sparse.major" in records or "GNU.sparse.map" in records:
            raise SourceError(f"{path}: the member at byte {start} is sparse, which is not supported; write it whole")
        size = 0 if kind in _WITHOUT_DATA else _stated(records, size, path, position)
        name = records.get("path") or _name(header)
        has_data = data_start + size <= nbytes if nbytes is not None else not size or read(data_start + size - 1, 1)
        if not has_data:
            raise _truncated(path, data_start if nbytes is None else nbytes, name)
        # Some writers leave out the padding behind the last member.
        end = data_start + _padded(size)
        is_padded = end <= nbytes if nbytes is not None else not size or read(end - 1, 1)
        end = end if is_padded else data_start + size
        yield Member(name, kind in _FILES and not name.endswith("/"), start, data_start, size, end)
        position, start, records = end, -1, {}


def _check_header(path: str, header: bytes, position: int) -> tuple[bytes, int]:
    try:
        expected = int(header[148:156].strip(b" \0") or b"0", 8)
        size = _number(header[124:136])
    except ValueError:
        expected, size = -1, 0
    if expected not in checksums(header):
        raise _damaged(path, position, "no tar header")
    return header[156:157], size


def checksums(header: bytes) -> tuple[int, int]:
    """Return the sums that writers know: of unsigned bytes, and, in some old archives, of signed ones."""
    counted = header[:148] + b" " * 8 + header[156:]
    return sum(counted), sum(counted) - 256 * sum(byte > 127 for byte in counted)


def _number(field: bytes) -> int:
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    return int(field.strip(b" \0") or b"0", 8)


def _records(kind: bytes, body: bytes) -> dict[str, str]:
    """Return what an extension header says about the member that follows it."""
    if kind == b"L":
        return {"path": _text(body.rstrip(b"\0"))}
    records: dict[str, str] = {}
    while kind == b"x" and body:
        length, space, _ = body.partition(b" ")
        if not space or not length.isdigit() or len(length) > _MOST_DIGITS or int(length) <= len(length) + 1:
            break
        key, _, value = body[len(length) + 1 : int(length) - 1].partition(b"=")
        if _text(key) in _KEPT:
            records[_text(key)] = _text(value)
        body = body[int(length) :]
    return records


def _stated(records: dict[str, str], size: int, path: str, position: int) -> int:
    """Return the size of a member: an extension header wins over its own."""
    stated = records.get("size")
    if stated is None:
        return size
    # A negative one would lead back to what was read before, for ever.
    if not (stated.isascii() and stated.isdigit() and len(stated) <= _MOST_DIGITS):
        raise _damaged(path, position, f"a size of {stated[:40]!r}")
    return int(stated)


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return _text(prefix + b"/" + name if prefix else name)


def _text(name: bytes) -> str:
    return name.decode("utf-8", errors="backslashreplace")


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _damaged(path: str, position: int, found: str) -> SourceError:
    return SourceError(f"{path} is damaged: there is {found} at byte {position}; remove it or repair it")


def _truncated(path: str, position: int, name: str = "") -> SourceError:
    inside = f" inside member {name!r}" if name else ""
    return SourceError(f"{path} is truncated: it ends at byte {position}{inside}; remove it or fetch it again")

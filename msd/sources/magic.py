"""What kind of file starts with some bytes, so that an error can say what was found."""

from msd.errors import SourceError

_MAGIC = (
    (b"PAR1", "a Parquet file"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data"),
    (b"ARROW1", "an Arrow IPC file"),
    (b"FEA1", "a Feather V1 file"),
    (b"\xff\xff\xff\xff", "an Arrow IPC stream"),
    (b"ORC", "an ORC file"),
    (b"Obj\x01", "an Avro file"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ", "xz data"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"%PDF", "a PDF"),
    (b"\x89HDF", "an HDF5 file"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
    (b"version https://git-lfs", "a Git LFS pointer: the data itself was not fetched"),
    (b"<!DOCTYPE", "an HTML page"),
    (b"<html", "an HTML page"),
)


def not_the_format(path: str, wanted: str, head: bytes) -> SourceError:
    """Return the error for a file that is not what its source says it is."""
    if not head:
        return SourceError(
            f"{path} is empty (0 bytes), so it is not {wanted}: probably an interrupted write; remove it or write it "
            "again"
        )
    found = describe(head)
    return SourceError(
        f"{path} is not {wanted}: it starts with {head[:8]!r}{f', {found}' if found else ''}; leave it out "
        "of the path, or set the format that it has"
    )


def describe(head: bytes) -> str | None:
    """Return what kind of file starts with `head`, or None if nothing is recognised."""
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if head[257:262] == b"ustar":
        return "a tar archive"
    return "no text" if b"\0" in head[:512] else None

"""What a file is, by its content first and its name second, and its first few rows."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

RECORD_FORMATS = ("parquet", "jsonl", "webdataset", "arrow")
TEXT_SUFFIXES = (".txt", ".md", ".rst", ".py", ".html", ".c", ".h", ".cpp", ".java", ".js", ".ts", ".go", ".rs", ".tex")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
NUM_ROWS = {"parquet": 64, "arrow": 64, "jsonl": 64, "webdataset": 16}
"""Rows looked at, by format: of tar archives few, since their rows are images more often than not."""
_PEEK_BYTES = 4096
_LINE_BYTES = 1 << 22
_ARCHIVE_BYTES = 256 << 20
"""Unpacked, of an archive that is looked at."""

Open = Callable[[str], Any]
"""Opens a path for reading bytes."""


def format_of(path: str, open_file: Open) -> tuple[str, str]:
    """Return (format, reason): one of the record formats, `text`, or an empty format with the reason against."""
    name = PurePosixPath(path).name.lower()
    with open_file(path) as file:
        head = file.read(_PEEK_BYTES)
    if not head:
        return "", "is empty"
    if head[:4] == b"PAR1":
        return "parquet", "starts with PAR1"
    if head[:6] == b"ARROW1" or name.endswith((".arrow", ".feather")):
        return "arrow", "is an Arrow file"
    if head[257:262] == b"ustar" or name.endswith((".tar", ".tar.gz", ".tgz")):
        return "webdataset", "is a tar archive"
    if head[:2] == b"\x1f\x8b" or head[:4] == b"\x28\xb5\x2f\xfd":
        if any(suffix in name for suffix in _JSON_SUFFIXES) or _looks_like_json(_first_bytes(path, open_file)):
            return "jsonl", "is compressed JSON lines"
        return "", "is compressed, and not JSON lines or tar"
    if name.endswith(IMAGE_SUFFIXES):
        return "", "is a loose image; pack images with their captions into WebDataset tar files"
    if name.endswith((".csv", ".tsv")):
        return "", "is a table of text; convert it to Parquet, or pass a DataFrame as a source from Python"
    if name.endswith(".json") and head.lstrip()[:1] == b"[":
        return "", "is one JSON list; write one object a line"
    if name.endswith(_JSON_SUFFIXES) or _looks_like_json(head):
        return "jsonl", "has a JSON object a line"
    if name.endswith(TEXT_SUFFIXES):
        return "text", "is plain text"
    return "", "is of a kind that msd does not read"


def first_rows(path: str, format_name: str, open_file: Open) -> list[dict[str, Any] | None]:
    """Return up to `NUM_ROWS` rows of one file; None stands for one that cannot be read as a row.

    Raises:
        OSError, ValueError: If the file is not what its format promises.
    """
    if format_name == "parquet":
        return [*_parquet_rows(path, open_file)]
    if format_name == "arrow":
        return [*_arrow_rows(path, open_file)]
    if format_name == "webdataset":
        return [*_tar_rows(path, open_file)]
    if format_name == "jsonl":
        return _json_rows(path, open_file)
    return []


def is_image(value: Any) -> bool:
    """Whether a value is an encoded image, by its first bytes; also as `{bytes: ...}`, or a list of images."""
    if isinstance(value, dict):
        value = value.get("bytes")
    if isinstance(value, list):
        return bool(value) and is_image(value[0])
    if not isinstance(value, bytes):
        return False
    return value.startswith((b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"II*\0", b"MM\0*")) or (
        value[:4] == b"RIFF" and value[8:12] == b"WEBP"
    )


def _parquet_rows(path: str, open_file: Open) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    with open_file(path) as file:
        for batch in pq.ParquetFile(file).iter_batches(batch_size=NUM_ROWS["parquet"]):
            rows: list[dict[str, Any]] = batch.to_pylist()
            return rows
    return []


def _arrow_rows(path: str, open_file: Open) -> list[dict[str, Any]]:
    import pyarrow as pa

    with open_file(path) as file:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        reader = pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)
        if is_file and not reader.num_record_batches:
            return []
        batch = reader.get_batch(0) if is_file else next(iter(reader), None)
        rows: list[dict[str, Any]] = [] if batch is None else batch.slice(0, NUM_ROWS["arrow"]).to_pylist()
        return rows


def _tar_rows(path: str, open_file: Open) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    with (
        open_file(path) as file,
        _decompressed(file) as stream,
        tarfile.open(fileobj=_AtMost(stream, _ARCHIVE_BYTES), mode="r|") as archive,
    ):
        for member in archive:
            if not member.isfile():
                continue
            place = PurePosixPath(member.name)
            key, _, extension = place.name.partition(".")
            row = rows.setdefault(str(place.parent / key), {})
            if len(rows) > NUM_ROWS["webdataset"]:
                break
            content = archive.extractfile(member)
            assert content is not None
            row[extension.lower()] = _member_value(extension.lower(), content.read())
    return list(rows.values())[: NUM_ROWS["webdataset"]]


def _member_value(extension: str, content: bytes) -> Any:
    if extension in ("txt", "text", "caption"):
        return content.decode("utf-8", "replace")
    if extension == "json":
        try:
            return json.loads(content)
        except RecursionError:
            raise ValueError("JSON that is nested too deeply") from None
    return content


def _json_rows(path: str, open_file: Open) -> list[dict[str, Any] | None]:
    rows: list[dict[str, Any] | None] = []
    with open_file(path) as file, _decompressed(file) as stream:
        for _ in range(NUM_ROWS["jsonl"]):
            line = stream.readline(_LINE_BYTES)
            if not line:
                break
            if line.strip():
                rows.append(_object(line))
    return rows


def _object(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line, or None if it holds none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _first_bytes(path: str, open_file: Open) -> bytes:
    try:
        with open_file(path) as file, _decompressed(file) as stream:
            return stream.read(_PEEK_BYTES)
    except (OSError, EOFError, ValueError):
        return b""


def _decompressed(file: Any) -> io.BufferedIOBase:
    head = file.read(4)
    file.seek(0)
    if head[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=file)
    if head == b"\x28\xb5\x2f\xfd":
        import zstandard

        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True, closefd=False)
        return io.BufferedReader(reader)
    return io.BufferedReader(file) if not hasattr(file, "readline") else file


class _AtMost(io.RawIOBase):
    """Reads no more than so many bytes: what an archive claims of its members is not believed."""

    def __init__(self, stream: Any, most_bytes: int) -> None:
        self._stream, self._left = stream, most_bytes

    def read(self, nbytes: int = -1, /) -> bytes:
        """Return the next bytes.

        Raises:
            ValueError: If there are more than are read.
        """
        wanted = self._left + 1 if nbytes < 0 else min(nbytes, self._left + 1)
        content: bytes = self._stream.read(wanted)
        self._left -= len(content)
        if self._left < 0:
            raise ValueError("its first rows take more than 256 MiB, unpacked")
        return content


def _looks_like_json(head: bytes) -> bool:
    first, newline, _ = head.removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")
    if first[:1] != b"{":
        return False
    return not newline or _object(first) is not None

"""Rows to files, byte for byte the same on every run: fixed times and owners, no file names inside archives."""

import gzip
import io
import itertools
import json
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import zstandard

from msd.testing.corpus.photos import Photo
from msd.testing.corpus.text import Row

_T = TypeVar("_T")


def write_parquet(rows: Sequence[Row], folder: Path, *, num_files: int, rows_per_group: int) -> list[Path]:
    """Write rows to `num_files` Parquet files with several row groups each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    paths = []
    for number, part in enumerate(_parts(rows, num_files)):
        path = folder / f"part-{number:05d}.parquet"
        pq.write_table(pa.Table.from_pylist(list(part)), path, row_group_size=rows_per_group, compression="zstd")
        paths.append(path)
    return paths


def write_jsonl(rows: Sequence[Row], folder: Path, *, num_files: int) -> list[Path]:
    """Write rows as plain JSON lines."""
    return [_write(folder, f"part-{n:05d}.jsonl", _lines(part)) for n, part in enumerate(_parts(rows, num_files))]


def write_jsonl_gz(rows: Sequence[Row], folder: Path, *, num_files: int) -> list[Path]:
    """Write rows as gzipped JSON lines: streams without random access."""
    paths = []
    for number, part in enumerate(_parts(rows, num_files)):
        packed = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0, compresslevel=6) as stream:
            stream.write(_lines(part))
        paths.append(_write(folder, f"part-{number:05d}.jsonl.gz", packed.getvalue()))
    return paths


def write_jsonl_zst(rows: Sequence[Row], folder: Path, *, num_files: int, rows_per_frame: int) -> list[Path]:
    """Write rows as JSON lines in Zstandard files of several frames: each frame can be entered at random."""
    compressor = zstandard.ZstdCompressor(level=6)
    paths = []
    for number, part in enumerate(_parts(rows, num_files)):
        frames = [
            compressor.compress(_lines(part[start : start + rows_per_frame]))
            for start in range(0, len(part), rows_per_frame)
        ]
        paths.append(_write(folder, f"part-{number:05d}.jsonl.zst", b"".join(frames)))
    return paths


def write_tars(photos: Sequence[Photo], folder: Path, *, num_files: int, kind: str = "jpg") -> list[Path]:
    """Write image-text pairs as WebDataset shards: members `KEY.jpg`, or of another kind, and `KEY.txt`."""
    folder.mkdir(parents=True)
    paths = []
    for number, part in enumerate(_parts(photos, num_files)):
        path = folder / f"{folder.name}-{number:05d}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
            for photo in part:
                _add(archive, f"{photo.key}.{kind}", photo.encoded)
                _add(archive, f"{photo.key}.txt", photo.caption.encode())
        paths.append(path)
    return paths


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = 0o644
    archive.addfile(member, io.BytesIO(content))


def _lines(rows: Iterable[Row]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def _write(folder: Path, name: str, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    return path


def _parts(items: Sequence[_T], count: int) -> list[Sequence[_T]]:
    """Cut into at most `count` consecutive parts of nearly equal number, none empty."""
    count = max(1, min(count, len(items)))
    edges = [len(items) * part // count for part in range(count + 1)]
    return [items[start:end] for start, end in itertools.pairwise(edges)]

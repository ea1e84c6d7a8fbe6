"""Indexes of shards that were read before: one small file each, in a directory of ours, never beside the data."""

import hashlib
import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from msd.core.arrays import Int64Array
from msd.sources.files import ShardFile
from msd.sources.shard import ShardIndex

CACHE_VERSION = 2
"""Raised when an index of an unchanged file would come out differently."""

_LOG = logging.getLogger(__name__)


class _Record(msgspec.Struct, frozen=True):
    key: bytes
    file_version: str
    columns: tuple[bytes, bytes, bytes, bytes]
    """Little-endian int64: units, rows, offsets, bytes."""
    schema: dict[str, Any] | None


class IndexCache:
    """Keeps shard indexes by format, cut and absolute address; one is valid while its file is unchanged.

    Never fatal: what cannot be read is built again, what cannot be written is not kept.
    """

    def __init__(self, directory: Path | None = None) -> None:
        """Keep indexes under `directory`; None is `MSD_CACHE` or `~/.cache/msd`."""
        self._directory = (directory or default_cache_dir()) / "index"
        self._has_warned = False

    def load(self, file: ShardFile, chosen_format: str, block_bytes: int) -> ShardIndex | None:
        """Return the index of `file`, or None if there is none or the file changed since."""
        key = _key(file, chosen_format, block_bytes)
        try:
            content = self._path(key).read_bytes()
            digest, body = content[:16], content[16:]
            if hashlib.blake2b(body, digest_size=16).digest() != digest:
                return None
            record = msgspec.msgpack.decode(body, type=_Record)
        except (OSError, msgspec.MsgspecError):
            return None
        if record.key != key or record.file_version != file.version:
            return None
        unit_B, num_rows_B, offset_B, nbytes_B = (_column(column) for column in record.columns)
        return ShardIndex(
            unit_B=unit_B, num_rows_B=num_rows_B, offset_B=offset_B, nbytes_B=nbytes_B, schema=record.schema
        )

    def store(self, file: ShardFile, chosen_format: str, block_bytes: int, index: ShardIndex) -> None:
        """Keep the index of `file`: whole or not at all, also when several processes write."""
        key = _key(file, chosen_format, block_bytes)
        unit, rows, offset, nbytes = (
            column.astype("<i8").tobytes()
            for column in (index.unit_B, index.num_rows_B, index.offset_B, index.nbytes_B)
        )
        body = msgspec.msgpack.encode(_Record(key, file.version, (unit, rows, offset, nbytes), index.schema))
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
            try:
                with os.fdopen(descriptor, "wb") as out:
                    out.write(hashlib.blake2b(body, digest_size=16).digest() + body)
                os.replace(temporary, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                _LOG.warning(
                    "the index cache %s cannot be written (%s), so data is scanned at every start; set MSD_CACHE to a "
                    "writable directory",
                    self._directory,
                    error.strerror or error,
                )

    def _path(self, key: bytes) -> Path:
        name = hashlib.blake2b(key, digest_size=12).hexdigest()
        return self._directory / name[:2] / f"{name}.idx"


def default_cache_dir() -> Path:
    """Return where caches are kept: `MSD_CACHE`, else `~/.cache/msd`."""
    chosen = os.environ.get("MSD_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "msd"


def _key(file: ShardFile, chosen_format: str, block_bytes: int) -> bytes:
    # File names need not be UTF-8; surrogates stand for the bytes that are not.
    return f"{CACHE_VERSION} {chosen_format} {block_bytes} {file.path}".encode(errors="surrogateescape")


def _column(data: bytes) -> Int64Array:
    return np.frombuffer(data, dtype="<i8").astype(np.int64)

"""A folder that `msd run` wrote, read back: its rows are whole sequences, in the order of the steps.

The manifest says which files there are, what is in them and what they were packed with. Each file is read whole once,
when it is indexed, and must have the content that the manifest says.
"""

import hashlib
from collections.abc import Iterable
from typing import Annotated, BinaryIO

import msgspec

from msd.core.index import BlockTable
from msd.core.state import fingerprint
from msd.core.written import FOLDER_VERSION, MANIFEST, RUN, Written, WrittenImages
from msd.errors import SourceError
from msd.sources.base import BlockReader
from msd.sources.config import ReaderConfig
from msd.sources.files import Opener, ShardFile, reading
from msd.sources.shard import IndexShard, MakeReader, ShardIndex

ORIGIN_COLUMNS = ("sources", "ordinals", "parts", "first_tokens")
"""Columns of a sequence that name, by document, the sample that it was, and the token of it that it begins with."""
_READ_BYTES = 1 << 20
_AGAIN = "or write the folder again with `msd run`"
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Size = Annotated[int, msgspec.Meta(ge=1)]


class _Part(msgspec.Struct, frozen=True):
    name: str
    rows: _Count
    bytes: _Count
    sha256: Annotated[str, msgspec.Meta(min_length=64, max_length=64)]


class _Images(msgspec.Struct, frozen=True):
    patch: _Size
    merge: _Size
    image_token: _Count


class _Manifest(msgspec.Struct, frozen=True):
    """What reading back needs of a manifest."""

    sequence_lengths: Annotated[list[_Size], msgspec.Meta(min_length=1)]
    document_multiple: _Size
    num_buckets: _Size
    num_microbatches: _Size
    sequences_per_step: _Size | None
    tokenizers: list[str]
    images: _Images | None
    fingerprint: str
    parts: list[_Part]


class _Head(msgspec.Struct, frozen=True):
    format: str
    version: int


def read_written(name: str, config: ReaderConfig) -> Written:
    """Return what the folder of a source says of itself; no data is read.

    Raises:
        SourceError: If it is not finished, was written otherwise, or cannot be read: naming what to do.
    """
    manifest = _manifest(name, config)
    images = manifest.images
    files = [[part.name, part.sha256] for part in manifest.parts]
    return Written(
        sequence_length=manifest.sequence_lengths[0],
        document_multiple=manifest.document_multiple,
        num_buckets=manifest.num_buckets,
        num_microbatches=manifest.num_microbatches,
        sequences_per_step=manifest.sequences_per_step,
        tokenizers=tuple(manifest.tokenizers),
        images=None if images is None else WrittenImages(**msgspec.structs.asdict(images)),
        fingerprint=fingerprint([manifest.fingerprint, files]),
    )


def packed_shards(name: str, config: ReaderConfig, files: Iterable[ShardFile]) -> list[ShardFile]:
    """Return the files of a folder in the order of the steps, with what their content must be.

    Args:
        name: The source's, for errors.
        config: Its path.
        files: That lie in the folder.

    Raises:
        SourceError: If the folder is not finished, or a file is not there or has another size than it was written with.
    """
    by_name = {file.name: file for file in files}
    shards = []
    for part in _manifest(name, config).parts:
        found = by_name.get(part.name)
        if found is None:
            raise SourceError(f"sources.{name}: {config.path} lacks {part.name}; restore it, {_AGAIN}")
        if found.nbytes != part.bytes:
            raise SourceError(
                f"sources.{name}: {found.path} has {found.nbytes} bytes, and {part.bytes} were written; restore it, "
                f"{_AGAIN}"
            )
        shards.append(found._replace(sha256=part.sha256))
    if not shards:
        raise SourceError(f"sources.{name}: {config.path} holds no sequence: its run had no step; leave it out")
    return shards


def index_shard(file: ShardFile, config: ReaderConfig, opener: Opener) -> ShardIndex:
    """Return the blocks of a file of sequences, whose content is compared with what was written."""
    with reading(file.path), opener.open(file.path) as raw:
        found = _digest(raw)
    if found != file.sha256:
        raise SourceError(f"{file.path} is not what was written: its SHA-256 is {found[:12]}...; restore it, {_AGAIN}")
    return _kind(file.name)[0](file, config, opener)


def make_reader(source: str, config: ReaderConfig, blocks: BlockTable, opener: Opener) -> BlockReader:
    """Return a reader of sequences."""
    return _kind(blocks.shards[0].name)[1](source, config, blocks, opener)


def open_origins(source: str, config: ReaderConfig, blocks: BlockTable) -> BlockReader:
    """Return a reader of what sequences say of where their documents came from; it reads nothing else of them."""
    chosen = "arrow" if blocks.shards[0].name.endswith(".arrow") else "parquet"
    plain = ReaderConfig(
        format=chosen, path=config.path, storage_options=config.storage_options, columns=list(ORIGIN_COLUMNS)
    )
    return make_reader(source, plain, blocks, Opener(config.storage_options))


def is_packed(content: bytes) -> bool:
    """Return whether a file called `manifest.json` is that of a folder of packed sequences."""
    try:
        return msgspec.json.decode(content, type=_Head).format == "packed"
    except msgspec.MsgspecError:
        return False


def _kind(file_name: str) -> tuple[IndexShard, MakeReader]:
    if file_name.endswith(".arrow"):
        from msd.sources import arrow

        return arrow.index_shard, arrow.make_reader
    from msd.sources import parquet

    return parquet.index_shard, parquet.make_reader


def _digest(raw: BinaryIO) -> str:
    summary = hashlib.sha256()
    while content := raw.read(_READ_BYTES):
        summary.update(content)
    return summary.hexdigest()


def _manifest(name: str, config: ReaderConfig) -> _Manifest:
    assert isinstance(config.path, str), "a packed source has one path"
    folder, opener = config.path.removeprefix("file://").rstrip("/"), Opener(config.storage_options)
    content = _read(f"{folder}/{MANIFEST}", opener)
    if content is None and _read(f"{folder}/{RUN}", opener) is not None:
        raise SourceError(
            f"sources.{name}: {config.path} is not finished; run the `msd run` that writes it again, until it ends"
        )
    if content is None:
        raise SourceError(
            f"sources.{name}: there is no {MANIFEST} in {config.path}; name a folder that `msd run` wrote to its end"
        )
    damaged = f"sources.{name}: {MANIFEST} in {config.path} is damaged or no manifest of `msd run`"
    try:
        head = msgspec.json.decode(content, type=_Head)
        if head.format == "samples":
            raise SourceError(
                f"sources.{name}: {config.path} holds samples, not packed sequences; read its files with "
                "transforms: [{kind: tokens, field: input_ids}], or write a folder with --format packed"
            )
        if head.version != FOLDER_VERSION:
            raise SourceError(
                f"sources.{name}: {config.path} is of version {head.version}, this release reads {FOLDER_VERSION}; "
                "write it again with `msd run` of this release"
            )
        manifest = msgspec.json.decode(content, type=_Manifest)
    except msgspec.MsgspecError as error:
        raise SourceError(f"{damaged} ({error}); restore it, {_AGAIN}") from None
    if len(manifest.sequence_lengths) > 1:
        raise SourceError(
            f"sources.{name}: {config.path} holds sequences of {', '.join(map(str, manifest.sequence_lengths))} "
            "tokens, and a source has one length; write one folder for each, without a batch.schedule of lengths"
        )
    return manifest


def _read(path: str, opener: Opener) -> bytes | None:
    """Return the content of a file, or None if there is none."""
    with reading(path):
        try:
            with opener.open(path) as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

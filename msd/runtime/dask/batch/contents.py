"""What a folder is filled with: said when it is begun, compared when it is gone on with, listed when it is finished."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msd
from msd.build import build_chains, build_planner
from msd.checkpoint.folder import Folder
from msd.config import PipelineConfig
from msd.config.identity import identity
from msd.core.order import SourceOrder
from msd.core.state import canonical_json, fingerprint
from msd.core.written import FOLDER_VERSION, MANIFEST, RUN
from msd.errors import ConfigError, EngineError
from msd.loader.transforms.chain import TransformChain
from msd.runtime.parts import FileKind

Format: TypeAlias = Literal["packed", "samples"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a command asks for."""

    out: str
    format: Format = "packed"
    kind: FileKind = "parquet"
    steps: int | None = None
    """Of packed sequences; None is all of finite data."""
    epochs: float = 1.0
    """Of samples."""
    workers: int = 2
    scheduler: str | None = None
    storage_options: dict[str, Any] | None = None


def verify(folder: Folder, manifest: dict[str, Any]) -> None:
    """Read every file of a finished folder and compare it with what its manifest says.

    Raises:
        EngineError: Naming the first file that is not what was written.
    """
    for part in manifest["parts"]:
        content = folder.read(part["name"])
        if content is None:
            raise EngineError(
                f"{folder.path} lacks {part['name']}; remove {MANIFEST} there and run the same command again"
            )
        if hashlib.sha256(content).hexdigest() != part["sha256"]:
            raise EngineError(
                f"{part['name']} in {folder.path} is not what was written; remove it and {MANIFEST}, and run the same "
                "command again"
            )


def content_of(config: PipelineConfig, asked: Asked, orders: dict[str, SourceOrder]) -> dict[str, Any]:
    """Return what the content of a folder depends on."""
    chains = build_chains(config)
    parts = identity(config, orders, chains)
    mesh = config.place
    if asked.format == "packed":
        if mesh.size("cp") > 1:
            raise ConfigError(
                "mesh.cp: packed output holds whole rows; run it with mesh.cp=1, and batch.document_multiple as the "
                f"trainer needs it, such as {2 * mesh.size('cp')}"
            )
        if asked.steps is None and all(
            order.total_ordinals(config.max_epochs(name)) is None for name, order in orders.items()
        ):
            raise ConfigError("this mixture never ends: say how many steps with --steps, or set max_epochs")
    packed = _packed_with(config, orders, chains) if asked.format == "packed" else {}
    return {
        "format": asked.format,
        "version": FOLDER_VERSION,
        "msd": msd.__version__,
        "files": asked.kind,
        "steps": asked.steps if asked.format == "packed" else None,
        "epochs": asked.epochs if asked.format == "samples" else None,
        "sequence_length": config.batch.sequence_length,
        "mesh": mesh.as_dict(),
        "num_microbatches": config.num_microbatches,
        "fingerprint": fingerprint([parts, mesh.as_dict(), config.num_microbatches, packed]),
        "identity": parts,
        **packed,
    }


def _packed_with(
    config: PipelineConfig, orders: dict[str, SourceOrder], chains: Mapping[str, TransformChain]
) -> dict[str, Any]:
    """Return what whoever reads sequences back must agree with, or needs to know; see `core.written`."""
    strategy = build_planner(config, orders).strategy
    with_images = next((chain for chain in chains.values() if chain.image_token is not None), None)
    images = None
    if with_images is not None:
        images = {name: getattr(with_images, name) for name in ("patch", "merge", "image_token")}
    schedule = strategy.pack.schedule
    return {
        "sequence_lengths": sorted({strategy.pack.sequence_length} if schedule is None else set(schedule.lengths)),
        "document_multiple": strategy.pack.document_multiple,
        "pad_token_id": config.batch.pad_token_id,
        "num_buckets": len(strategy.distribute.consumers(strategy.tree)),
        "sequences_per_step": strategy.pack.num_sequences if schedule is None else None,
        "tokenizers": sorted({digest for chain in chains.values() for digest in chain.tokenizers}),
        "images": images,
    }


def begun(folder: Folder, said: dict[str, Any]) -> dict[str, Any] | None:
    """Note what a folder is filled with; return its manifest if it is finished.

    Raises:
        ConfigError: If it holds something else.
    """
    names = folder.names()
    for name in (MANIFEST, RUN):
        content = folder.read(name) if name in names else None
        if content is None:
            continue
        try:
            found = json.loads(content)
        except ValueError:
            raise ConfigError(f"{name} in {folder.path} is damaged; name another folder, or empty this one") from None
        differing = _differing(found, said)
        if differing:
            raise ConfigError(
                f"{folder.path} was begun with another configuration: {differing} differ; name another folder, or "
                "empty this one"
            )
        if name == MANIFEST:
            return dict(found)
        folder.sweep()
        return None
    foreign = [name for name in names if not name.startswith(".")]
    if foreign:
        raise ConfigError(
            f"{folder.path} holds other things, such as {sorted(foreign)[0]}; name a folder that is empty or not there"
        )
    folder.write(RUN, canonical_json(said).encode())
    return None


def _differing(found: dict[str, Any], said: dict[str, Any]) -> str:
    keys = [key for key in said if key != "identity" and key != "fingerprint" and found.get(key) != said[key]]
    before, now = found.get("identity", {}), said["identity"]
    keys += [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    return ", ".join(keys[:5]) + (f" and {len(keys) - 5} more" if len(keys) > 5 else "")


def totals(parts: list[dict[str, Any]]) -> dict[str, int]:
    """Return what all files of a folder have together."""
    keys = ("rows", "tokens", "bytes")
    return {"files": len(parts), **{key: sum(part[key] for part in parts) for key in keys}}

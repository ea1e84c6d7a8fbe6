"""Runs that every engine must deliver alike: configurations over made-up rows, and digests of what ranks receive.

expected = digests(local_engine, steps=50)
same_bytes(expected, other_engine)
"""

import hashlib
import io
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Protocol

import numpy as np

from msd.client import RankClient
from msd.config import PipelineConfig
from msd.core.batch import EncoderShare, Microbatch, RankBatch, RowImages
from msd.core.mesh import Mesh
from msd.core.state import canonical_json
from msd.runtime.state import read_state

Digests = Mapping[tuple[int, int], str | None]
"""By (step, rank): identity of the batch, None where the run has ended."""

_TOKENS = [{"kind": "tokens", "field": "ids"}]
_SHUFFLE = {"block_bytes": "2KiB", "window": 2}


class Serves(Protocol):
    """Of an engine, what scenarios use."""

    @property
    def mesh(self) -> Mesh:
        """The trainer mesh."""
        ...

    def client(self, rank: int) -> RankClient:
        """Return a client for one rank."""
        ...


def token_rows(seed: int, count: int, mean: int, *, longest: int = 200) -> list[dict[str, Any]]:
    """Return pre-tokenised rows with log-normal lengths."""
    draw = np.random.Generator(np.random.Philox(key=seed))
    length_N = np.clip(draw.lognormal(np.log(mean), 0.8, count).astype(int), 1, longest)
    return [{"ids": draw.integers(1, 1000, length).tolist()} for length in length_N.tolist()]


def image_rows(seed: int, count: int, mean: int) -> list[dict[str, Any]]:
    """Return rows with a small PNG each and some tokens."""
    from PIL import Image

    draw = np.random.Generator(np.random.Philox(key=seed))
    rows = token_rows(seed + 1, count, mean, longest=100)
    for row in rows:
        height, width = draw.integers(8, 28, 2).tolist()
        stored = io.BytesIO()
        Image.fromarray(draw.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(stored, "PNG")
        row["png"] = stored.getvalue()
    return rows


def text(packing: str = "best_fit", **changes: Any) -> PipelineConfig:
    """Return a run over three text sources that repeat."""
    return _config(
        packing,
        {
            "web": {"rows": token_rows(1, 240, 20), "transforms": _TOKENS, "shuffle": _SHUFFLE},
            "books": {"rows": token_rows(2, 90, 60), "transforms": _TOKENS},
            "code": {"rows": token_rows(3, 150, 30), "transforms": _TOKENS, "shuffle": _SHUFFLE, "overflow": "drop"},
        },
        {"mixture": {"weights": {"web": 0.6, "books": 0.3, "code": 0.1}}, **changes},
    )


def image_text(packing: str = "best_fit", **changes: Any) -> PipelineConfig:
    """Return a run over text, and images with captions."""
    image = {"kind": "image", "field": "png", "patch": 4, "merge": 2, "max_pixels": 576, "min_pixels": 64}
    photos = [{**image, "image_token": 1001}, *_TOKENS]
    return _config(
        packing,
        {
            "web": {"rows": token_rows(1, 240, 20), "transforms": _TOKENS, "shuffle": _SHUFFLE},
            "photos": {"rows": image_rows(4, 60, 12), "transforms": photos, "shuffle": _SHUFFLE},
        },
        {"mixture": {"weights": {"web": 0.5, "photos": 0.5}}, **changes},
    )


def hybrid(packing: str = "best_fit", **changes: Any) -> PipelineConfig:
    """Return the run over text and images, with images encoded apart from their rows."""
    cost = {"backbone": {"kind": "tokens"}, "encoder": {"kind": "attention"}}
    return image_text(packing, **{"strategy": "vlm_hybrid", "cost": cost, **changes})


def finite(packing: str = "best_fit", **changes: Any) -> PipelineConfig:
    """Return a run that ends: one source is dropped when it ends, the other ends the run; the last step is padded."""
    ends = {"max_epochs": 2, "transforms": _TOKENS, "shuffle": _SHUFFLE}
    return _config(
        packing,
        {
            "web": {**ends, "rows": token_rows(1, 120, 20)},
            "books": {**ends, "rows": token_rows(2, 20, 60), "on_exhausted": "drop"},
        },
        {"last": "pad", **changes},
    )


def uneven(packing: str = "best_fit", **changes: Any) -> PipelineConfig:
    """Return a run whose rows give none, one or many samples, or fail: filters, chunks, failures, random transforms."""
    return _config(
        packing,
        {
            "filtered": {
                "rows": token_rows(5, 200, 25),
                "transforms": [{"kind": "filter", "field": "ids", "min_length": 12}, *_TOKENS],
                "shuffle": _SHUFFLE,
            },
            "chunked": {
                "rows": token_rows(6, 60, 90),
                "transforms": [*_TOKENS, {"kind": "chunk", "size": 24, "overlap": 4}],
                "shuffle": _SHUFFLE,
            },
            "failing": {
                "rows": token_rows(7, 200, 25),
                "transforms": [fail_some, thin_out, *_TOKENS],
                "on_error": {"max_rate": 0.9},
                "shuffle": _SHUFFLE,
            },
        },
        changes,
    )


def many_sources(count: int = 40, packing: str = "best_fit", **changes: Any) -> PipelineConfig:
    """Return a run over many sources of a few rows each."""
    return _config(
        packing,
        {
            f"s{number:03d}": {"rows": token_rows(100 + number, 5 + number % 7, 20), "transforms": _TOKENS}
            for number in range(count)
        },
        changes,
    )


def fail_some(sample: dict[str, Any]) -> dict[str, Any]:
    """Raise for every seventh row or so."""
    if sum(sample["ids"]) % 7 == 0:
        raise ValueError("the tokens add up to a multiple of seven")
    return sample


def thin_out(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any] | None:
    """Leave out one row in five and tokens of the others, at random."""
    if rng.random() < 0.2:
        return None
    return {"ids": [token for token in sample["ids"] if rng.random() < 0.8] or [1]}


def moving(packing: str = "best_fit", **changes: Any) -> PipelineConfig:
    """Return a run whose weights go by size, in groups, and move within steps; one source is dropped on the way."""
    sources: dict[str, dict[str, Any]] = {
        "web": {"rows": token_rows(1, 240, 20), "shuffle": _SHUFFLE},
        "python": {"rows": token_rows(2, 150, 30), "shuffle": _SHUFFLE},
        "rust": {"rows": token_rows(3, 60, 30)},
        "wiki": {"rows": token_rows(4, 40, 60)},
    }
    code = {"weight": 2, "mode": "temperature", "temperature": 3, "weights": {"python": 1, "rust": 1}}
    mixture = {
        "unit": "loss_tokens",
        "weights": {"web": 2, "wiki": 1, "code": code},
        "clock": "microbatch",
        "schedule": [{"at": 7, "ramp": 30, "mode": "proportional"}, {"at": 61, "weights": {"web": 1, "code": code}}],
        "repetitions": {"rust": 1.5},
        "on_exhausted": "drop",
    }
    tokens = {name: {**source, "transforms": _TOKENS} for name, source in sources.items()}
    return _config(packing, tokens, {"mixture": mixture, **changes})


SCENARIOS: dict[str, Callable[..., PipelineConfig]] = {
    "text": text,
    "image-text": image_text,
    "hybrid": hybrid,
    "finite": finite,
    "uneven": uneven,
    "many-sources": many_sources,
    "moving": moving,
}
PACKINGS = ("best_fit", "concat", "none")
MESHES: tuple[dict[str, int], ...] = ({"dp": 4}, {"dp": 2, "tp": 2}, {"dp": 2, "cp": 2}, {"pp": 2, "dp": 2})


def digest(batch: RankBatch) -> str:
    """Return the identity of all that a rank receives in a step, bytes and order."""
    summary = hashlib.blake2b(digest_size=12)
    ids = [tuple(sample_id) for sample_id in batch.sample_ids]
    heads = (batch.step, batch.rank, ids, batch.num_valid_tokens, batch.global_num_valid_tokens)
    summary.update(repr((heads, [(m.root, sorted(m.shapes.items())) for m in batch.markers])).encode())
    # The planner's position, whether or not what it is a position of is said too.
    position = json.loads(batch.progress)
    progress = read_state(position).progress if position.get("kind") == "msd" else position
    summary.update(canonical_json(progress).encode())
    for row in batch.microbatches:
        _add(summary, row, Microbatch)
    for share in batch.encoder:
        _add(summary, share, EncoderShare)
    return summary.hexdigest()


def digests(
    engine: Serves, steps: int, order_of_ranks: Sequence[int] | None = None, *, seed: int | None = None
) -> dict[tuple[int, int], str | None]:
    """Return the digest of each step and rank.

    Args:
        engine: Just started.
        steps: How many each rank takes; a rank for which the run ends earlier has None there and stops.
        order_of_ranks: In which ranks take each step; by number if None.
        seed: With one, ranks take turns at random instead, never more than two steps apart.
    """
    ranks = list(range(engine.mesh.world_size)) if order_of_ranks is None else list(order_of_ranks)
    clients = {rank: engine.client(rank) for rank in ranks}
    found: dict[tuple[int, int], str | None] = {}
    try:
        for rank in _turns(ranks, steps, seed):
            batch = next(clients[rank], None)
            if batch is not None:
                found[batch.step, rank] = digest(batch)
            else:
                found[max((step for step, of in found if of == rank), default=-1) + 1, rank] = None
    finally:
        for client in clients.values():
            client.close()
    return found


def undisturbed(config: PipelineConfig, steps: int) -> dict[tuple[int, int], str | None]:
    """Return what the local engine delivers."""
    from msd.runtime.local import LocalEngine

    with LocalEngine(config) as engine:
        return digests(engine, steps)


def same_bytes(expected: Digests, *engines: Serves, seed: int | None = None) -> None:
    """Check that engines deliver what is expected to every rank, step by step.

    Raises:
        AssertionError: Naming the first step and rank that differ.
    """
    steps = 1 + max(step for step, _ in expected)
    for engine in engines:
        found = digests(engine, steps, seed=seed)
        differing = sorted(key for key in {**expected, **found} if expected.get(key) != found.get(key))
        if differing:
            step, rank = differing[0]
            raise AssertionError(
                f"step {step} of rank {rank} is {found.get((step, rank))} on {type(engine).__name__}, expected "
                f"{expected.get((step, rank))}; {len(differing)} of {len(expected)} differ"
            )


def _turns(ranks: Sequence[int], steps: int, seed: int | None) -> Iterable[int]:
    if seed is None:
        yield from (rank for _ in range(steps) for rank in ranks)
        return
    draw, taken = random.Random(seed), dict.fromkeys(ranks, 0)
    while min(taken.values()) < steps:
        slowest = min(taken.values())
        rank = draw.choice([rank for rank in ranks if taken[rank] < min(steps, slowest + 2)])
        taken[rank] += 1
        yield rank


def _config(packing: str, sources: dict[str, Any], changes: dict[str, Any]) -> PipelineConfig:
    batch = {
        "sequence_length": 128,
        "global_batch_size": 8,
        "packing": {"method": packing},
        "last": changes.pop("last", "drop"),
    }
    return PipelineConfig(
        **{
            "seed": 11,
            "sources": sources,
            "batch": {**batch, **changes.pop("batch", {})},
            "mesh": {"dp": 2},
            "num_microbatches": 2,
            **changes,
        }
    )


def _add(summary: "hashlib.blake2b", value: Any, kind: type[Microbatch | RowImages | EncoderShare]) -> None:
    for field in fields(kind):
        one = getattr(value, field.name)
        if isinstance(one, RowImages):
            _add(summary, one, RowImages)
        elif isinstance(one, np.ndarray):
            summary.update(f"{field.name} {one.dtype} {one.shape}".encode())
            summary.update(np.ascontiguousarray(one).data)
        else:
            summary.update(f"{field.name} {one!r}".encode())

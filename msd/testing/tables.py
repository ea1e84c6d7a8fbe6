"""Metadata made up for tests: tables by hand, and a planner fed from lists of lengths."""

# R = rows. S = samples (parts).

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from msd.core.arrays import Float64Array, Int64Array
from msd.core.mesh import Mesh
from msd.core.plan import StepPlan
from msd.core.sample import Failure, MetaTable, Outcome
from msd.planner.config import BalanceConfig, BatchConfig, MixtureConfig, PackingConfig
from msd.planner.planner import Planner, Starved
from msd.planner.settings import PlannerSettings, SourceTerms


@dataclass(frozen=True, slots=True)
class Part:
    """One sample of a row: its tokens, and image placeholders among them at its head."""

    num_tokens: int
    num_image_tokens: int = 0
    images: tuple[int, ...] = ()
    """Placeholders of each image; without it all placeholders stand for one image."""

    @property
    def placeholders(self) -> tuple[int, ...]:
        """Placeholders of each image."""
        return self.images or ((self.num_image_tokens,) if self.num_image_tokens else ())

    @property
    def labels(self) -> tuple[int, int]:
        """The run of positions that carry a label."""
        return self.num_image_tokens, max(self.num_image_tokens, self.num_tokens - 1)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a made-up source."""

    parts: tuple[Part, ...] = ()
    outcome: Outcome = Outcome.OK


def row(*lengths: int) -> Row:
    """Return a row that gives text parts of these lengths; none is a filtered row."""
    return Row(tuple(Part(length) for length in lengths), Outcome.OK if lengths else Outcome.FILTERED)


def failed_row() -> Row:
    """Return a row that failed."""
    return Row((), Outcome.FAILED)


def table_of(source: str, start: int, rows: Sequence[Row]) -> MetaTable:
    """Return the table of consecutive rows."""
    parts = [part for one in rows for part in one.parts]
    zeros = np.zeros(len(parts), dtype=np.int32)
    image_tokens = np.array([part.num_image_tokens for part in parts], dtype=np.int32)
    return MetaTable(
        source=source,
        start=start,
        num_parts_R=np.array([len(one.parts) for one in rows], dtype=np.int32),
        outcome_R=np.array([one.outcome for one in rows], dtype=np.uint8),
        num_tokens_S=np.array([part.num_tokens for part in parts], dtype=np.int32),
        num_image_tokens_S=image_tokens,
        num_images_S=np.array([len(part.placeholders) for part in parts], dtype=np.int32),
        num_patches_S=4 * image_tokens,
        num_bytes_S=np.array([4 * part.num_tokens for part in parts], dtype=np.int64),
        num_runs_S=zeros + 1,
        runs_L2=np.array([part.labels for part in parts], dtype=np.int32).reshape(-1, 2),
        num_patches_I=np.array([4 * count for part in parts for count in part.placeholders], dtype=np.int32),
        failures=tuple(
            Failure(ordinal=start + r, reason="ValueError: broken", shard="made-up.jsonl", row=r)
            for r, one in enumerate(rows)
            if one.outcome == Outcome.FAILED
        ),
    )


@dataclass(frozen=True, slots=True)
class LengthCost:
    """`linear * s + quadratic * s * s`."""

    linear: float = 1.0
    quadratic: float = 0.0
    is_flops: bool = False
    flops_per_s: float | None = None

    def __call__(self, num_tokens_D: Int64Array, num_patches_D: Int64Array) -> Float64Array:
        """Return the cost of each document."""
        length_D = num_tokens_D.astype(np.float64)
        cost_D: Float64Array = length_D * (self.linear + self.quadratic * length_D)
        return cost_D


def settings_of(
    sources: Mapping[str, Sequence[Row]],
    *,
    weights: Mapping[str, float] | None = None,
    sequence_length: int = 64,
    global_batch_size: int = 8,
    mesh: Mesh | None = None,
    num_microbatches: int = 1,
    packing: str | Mapping[str, Any] = "best_fit",
    document_multiple: int = 1,
    lookahead: int | None = None,
    max_epochs: Mapping[str, int] | None = None,
    end: Mapping[str, str] | None = None,
    unit: str = "tokens",
    **changes: Any,
) -> PlannerSettings:
    """Return settings over made-up sources, which repeat for ever unless `max_epochs` names them."""
    terms: dict[str, dict[str, Any]] = {name: {} for name in sources}
    for name, epochs in (max_epochs or {}).items():
        terms[name] = {"total_ordinals": epochs * len(sources[name]), "end": (end or {}).get(name, "stop")}
    for name, extra in (changes.pop("terms", None) or {}).items():
        terms[name] |= extra
    batch: dict[str, Any] = changes.pop("batch", {})
    fields: dict[str, Any] = {
        "sources": tuple(
            SourceTerms(**{"name": name, "rows_per_epoch": len(rows), "total_ordinals": None, **terms[name]})
            for name, rows in sources.items()
        ),
        "mixture": MixtureConfig(weights=dict(weights) if weights else None, unit=unit),  # type: ignore[arg-type]
        "batch": BatchConfig(
            sequence_length=sequence_length,
            global_batch_size=global_batch_size,
            packing=PackingConfig(**({"method": packing} if isinstance(packing, str) else packing)),
            **batch,
        ),
        "mesh": mesh or Mesh.of(dp=1),
        "num_microbatches": num_microbatches,
        "document_multiple": document_multiple,
        "lookahead": min(32, global_batch_size) if lookahead is None else lookahead,
        "balance": BalanceConfig(),
        "cost": {"backbone": LengthCost(1.0, 0.01)},
        **changes,
    }
    return PlannerSettings(**fields)


@dataclass(slots=True)
class Feed:
    """Answers a planner's need for rows from lists that repeat, `chunk` rows at a time."""

    sources: Mapping[str, Sequence[Row]]
    chunk: int = 7
    totals: Mapping[str, int | None] = field(default_factory=dict)

    def table(self, source: str, start: int) -> MetaTable:
        """Return the rows from `start`, as many as a chunk or the source's end allow."""
        rows, total = self.sources[source], self.totals.get(source)
        end = start + self.chunk if total is None else min(start + self.chunk, total)
        return table_of(source, start, [rows[ordinal % len(rows)] for ordinal in range(start, end)])


def feed_of(sources: Mapping[str, Sequence[Row]], settings: PlannerSettings, chunk: int = 7) -> Feed:
    """Return the feed of a planner with these settings."""
    return Feed(sources, chunk, {terms.name: terms.total_ordinals for terms in settings.sources})


def steps_of(
    planner: Planner, feed: Feed, *, on_starved: Callable[[Starved], None] | None = None
) -> Iterator[StepPlan]:
    """Yield a planner's plans, feeding it what it asks for."""
    while True:
        outcome = planner.plan()
        if outcome is None:
            return
        if isinstance(outcome, Starved):
            if on_starved is not None:
                on_starved(outcome)
            planner.observe(feed.table(outcome.source, outcome.ordinal))
        else:
            yield outcome

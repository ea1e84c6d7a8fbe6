"""The life of a document of a step: from the row that it came from to the slice that each rank holds."""

# D = documents of the step.

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from msd.core.checks import few
from msd.core.encoder import EncoderPlan
from msd.core.order import RowPlace
from msd.core.plan import StepPlan
from msd.core.sample import SampleId
from msd.core.slices import held_runs
from msd.core.stages import FIELDS
from msd.errors import ConfigError
from msd.planner.words import numbers

Runs = tuple[tuple[int, int], ...]
"""Stretches `[start, stop)`."""


@dataclass(frozen=True, slots=True)
class State:
    """What one op made of a document."""

    op: str
    what: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """The states of a document, in the order of the graph."""

    step: int
    sample_id: SampleId
    states: tuple[State, ...]

    def as_dict(self) -> dict[str, object]:
        """Return JSON-able values."""
        return {
            "step": self.step,
            "sample": list(self.sample_id),
            "states": {state.op: state.what for state in self.states},
        }

    def __str__(self) -> str:
        source, ordinal, part = self.sample_id
        lines = [f"{source}:{ordinal}.{part} in step {self.step}"]
        return "\n".join([*lines, *(f"  {state.op:<14}{state.what}" for state in self.states)])


def parse_sample(text: str) -> tuple[str, int, int | None]:
    """Return source, ordinal and part of a sample as plans print it: `web:17.0`, or `web:17` for all parts.

    Raises:
        ConfigError: If it is written otherwise.
    """
    source, _, place = text.rpartition(":")
    ordinal, dot, part = place.partition(".")
    if not source or not ordinal.isdecimal() or bool(dot) != part.isdecimal():
        raise ConfigError(f"{text!r} is no sample; write SOURCE:ORDINAL.PART or SOURCE:ORDINAL, such as web:17.0")
    return source, int(ordinal), int(part) if dot else None


def documents_of(plan: StepPlan, sample: str) -> list[int]:
    """Return the documents of a step that hold tokens of a sample; none if it is not in the step.

    Raises:
        ConfigError: If the sample is written otherwise, or no source of the run has its name.
    """
    source, ordinal, part = parse_sample(sample)
    if source not in plan.source_names:
        raise ConfigError(f"{sample!r}: there is no source {source!r} (sources: {few(plan.source_names)})")
    held_D = (plan.source_D == plan.source_names.index(source)) & (plan.ordinal_D == ordinal)
    if part is not None:
        held_D &= plan.part_D == part
    return np.flatnonzero(held_D).tolist()


def lineage(plan: StepPlan, document: int, origin: RowPlace | None = None) -> Lineage:
    """Return how a document came to lie where it lies.

    Args:
        plan: The step.
        document: Which of its documents.
        origin: Where the row of its sample lies, from `SourceOrder.place_of`; a plan alone does not say.
    """
    return Lineage(plan.step, plan.sample_id(document), tuple(_states(plan, document, origin)))


def slices_of(plan: StepPlan, document: int) -> Mapping[int, Runs]:
    """Return the real tokens of a document that each slice of its row holds, as positions in the row; {} unsliced."""
    if plan.slice_axis is None:
        return {}
    degree, first = plan.mesh.size(plan.slice_axis), int(plan.offset_D[document])
    last = first + int(plan.length_D[document])
    if plan.slice_method == "headtail":
        cut = first // plan.sequence_length * plan.sequence_length
        stretch = (cut, cut + plan.sequence_length)
    else:
        stretch = (first, _next_start(plan, document))
    return {index: _inside(runs, first, last) for index, runs in enumerate(held_runs(*stretch, degree))}


def _states(plan: StepPlan, document: int, origin: RowPlace | None) -> Iterator[State]:
    source, ordinal, part = plan.sample_id(document)
    length, start = int(plan.length_D[document]), int(plan.start_D[document])
    where = "" if origin is None else f": epoch {origin.epoch}, {origin.shard} row {origin.row}"
    yield State("source", f"{source}, place {ordinal} of its sequence, part {part}{where}")
    tokens = plan.report.tokens_by_source.get(source, 0)
    share = tokens / max(1, sum(plan.report.tokens_by_source.values()))
    yield State("mix", f"drawn for step {plan.step} or carried into it; {source} has {share:.1%} of its tokens")
    yield State("pack", _packed(plan, document))
    bucket, slot = int(plan.bucket_D[document]), int(plan.slot_D[document])
    ranks = plan.consumers_B[bucket]
    yield State("distribute", f"bucket {bucket} of {plan.num_buckets}, for {numbers(ranks, 'rank')}")
    cost, of_row = float(plan.cost_D[document]), float(plan.cost_D[plan.documents_of(bucket, slot)].sum())
    yield State("cost", f"{cost:.4g}, {cost / of_row if of_row else 0.0:.1%} of its row")
    offset = int(plan.offset_D[document])
    piece = "" if start == 0 else f", tokens [{start}, {start + length}) of the part"
    yield State("balance", f"slot {slot} of {plan.num_microbatches}, positions [{offset}, {offset + length}){piece}")
    if plan.encoder is not None and plan.num_images_D[document]:
        yield State("encode", _encoded(plan, plan.encoder, document))
    if plan.broadcast:
        roots = sorted({plan.root_of(rank) for rank in ranks})
        yield State("broadcast_at", f"along {', '.join(plan.broadcast)}: {numbers(roots, 'rank')} fetch for the others")
    if plan.fields_P is not None:
        yield State("stages", "; ".join(_by_stage(plan.fields_P)))
    for index, runs in slices_of(plan, document).items():
        held = [rank for rank in ranks if plan.mesh.coordinate(rank)[plan.slice_axis or "cp"] == index]
        shown = ", ".join(f"[{first}, {last})" for first, last in runs) or "none of its tokens"
        yield State(f"slice {index}", f"{shown} on {numbers(held, 'rank')}")


def _encoded(plan: StepPlan, encoder: EncoderPlan, document: int) -> str:
    images = np.flatnonzero(encoder.document_I == document).tolist()
    of_images = ", ".join(
        f"image {encoder.index_I[i]} ({encoder.num_patches_I[i]} patches) by rank {encoder.rank_I[i]}" for i in images
    )
    receivers = encoder.receivers_B[int(plan.bucket_D[document])]
    return f"{of_images}; embeddings go to {numbers(receivers, 'rank')}"


def _inside(runs: Runs, first: int, last: int) -> Runs:
    """Return what of increasing stretches lies in `[first, last)`; neighbours are joined."""
    inside: list[tuple[int, int]] = []
    for start, stop in ((max(start, first), min(stop, last)) for start, stop in runs):
        if inside and inside[-1][1] == start:
            inside[-1] = (inside[-1][0], stop)
        elif start < stop:
            inside.append((start, stop))
    return tuple(inside)


def _packed(plan: StepPlan, document: int) -> str:
    length, padded, labels = (int(column[document]) for column in (plan.length_D, plan.padded_D, plan.num_valid_D))
    text = f"{length} tokens in an extent of {padded}, {labels} of them with a label"
    images, patches, placeholders = (
        int(column[document]) for column in (plan.num_images_D, plan.num_patches_D, plan.num_image_tokens_D)
    )
    if images:
        text += f"; {placeholders} stand for {patches} patches of {images} image{'s' * (images > 1)}"
    sequence = int(plan.offset_D[document]) // plan.sequence_length
    return f"{text}; sequence {sequence} of its row"


def _by_stage(fields_P: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    for index, fields in enumerate(fields_P):
        what = "all fields" if set(fields) == set(FIELDS) else ", ".join(fields) or "boundaries and shapes"
        yield f"pp {index} gets {what}"


def _next_start(plan: StepPlan, document: int) -> int:
    """Return where the next document of the row starts, or the end of the row."""
    after = document + 1
    if after < plan.num_documents and (plan.bucket_D[after], plan.slot_D[after]) == (
        plan.bucket_D[document],
        plan.slot_D[document],
    ):
        return int(plan.offset_D[after])
    return plan.row_length

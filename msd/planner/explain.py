"""A plan as a tree that a person can read, and as a table that a program can."""

from typing import TYPE_CHECKING, Any

from msd.core.plan import StepPlan
from msd.errors import ConfigError
from msd.planner.lineage import documents_of, lineage
from msd.planner.words import numbers

if TYPE_CHECKING:
    import pandas

_DOCUMENTS_SHOWN = 6


class Explanation(str):
    """A plan in words; in a notebook it is drawn, and `to_pandas` gives its documents as a table."""

    _plan: StepPlan

    def __new__(cls, text: str, plan: StepPlan) -> "Explanation":
        """Return the text, which knows its plan."""
        made = super().__new__(cls, text)
        made._plan = plan
        return made

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row a document; see `msd.planner.frames`."""
        from msd.planner.frames import plan_to_pandas

        return plan_to_pandas(self._plan)

    def _repr_svg_(self) -> str:
        from msd.planner.draw import plan_svg

        return plan_svg(self._plan)


def explain(plan: StepPlan, sample: str | None = None) -> str:
    """Return a plan as text: what the step holds, how even it is and why no evener, then each row.

    Args:
        plan: The step.
        sample: Follow this sample instead, from its source to the slice that each rank holds: `web:17.0`, or `web:17`
            for all parts of a row.

    Raises:
        ConfigError: If it is no plan, or the step does not hold the sample.
    """
    if not isinstance(plan, StepPlan):
        raise ConfigError(f"explain takes a plan, got {type(plan).__name__}; see msd.plan(config)")
    if sample is None:
        return Explanation(_step(plan), plan)
    documents = documents_of(plan, sample)
    if not documents:
        raise ConfigError(f"step {plan.step} does not hold {sample}; see explain(plan) for what it holds")
    return "\n".join(str(lineage(plan, document)) for document in documents)


def _step(plan: StepPlan) -> str:
    report = plan.report
    lines = [
        f"step {plan.step}  mesh {plan.mesh}  {plan.num_documents} documents in {plan.num_buckets} x "
        f"{plan.num_microbatches} rows of {plan.sequences_per_microbatch} x {plan.sequence_length} tokens",
        f"  fill {report.fill:.2%}, labels {plan.global_num_valid_tokens}, fullest row {report.max_row_tokens} tokens",
        f"  imbalance {report.imbalance:.2%} (packed {report.packed_imbalance:.2%}, "
        f"floor {report.imbalance_floor:.2%}, with caps {report.imbalance_floor_capped:.2%})",
        f"  lockstep  {report.lockstep:.2%} (packed {report.packed_lockstep:.2%}, floor {report.lockstep_floor:.2%})",
    ]
    if plan.encoder is not None and report.encoder is not None:
        encoding = report.encoder
        lines.append(
            f"  encoders  {encoding.imbalance:.2%} over {len(plan.encoder.ranks_E)} ranks (by rows "
            f"{encoding.row_imbalance:.2%}, floor {encoding.imbalance_floor:.2%}); {encoding.moved:.0%} of "
            f"{int(plan.encoder.num_tokens_I.sum())} embeddings travel"
        )
    if report.step_flops is not None:
        seconds = "" if report.predicted_step_s is None else f", predicted {report.predicted_step_s:.3g} s"
        lines.append(f"  step {report.step_flops:.3g} FLOPs{seconds}")
    total = max(1, sum(report.tokens_by_source.values()))
    for name, tokens in sorted(report.tokens_by_source.items(), key=lambda entry: (-entry[1], entry[0])):
        samples = report.samples_by_source[name]
        lines.append(f"  {name}: {tokens} tokens ({tokens / total:.1%}) in {samples} samples")
    lines.extend(f"  note: {note}" for note in plan.notes)
    for bucket in range(plan.num_buckets):
        lines.append(f"  bucket {bucket} for {numbers(plan.consumers_B[bucket], 'rank')}")
        lines.extend(_row(plan, bucket, slot) for slot in range(plan.num_microbatches))
    return "\n".join(lines)


def plan_table(plan: StepPlan) -> list[dict[str, Any]]:
    """Return one JSON-able entry for each document, in order of (bucket, slot, offset)."""
    return [
        {
            "step": plan.step,
            "bucket": int(plan.bucket_D[d]),
            "slot": int(plan.slot_D[d]),
            "offset": int(plan.offset_D[d]),
            "source": plan.source_names[plan.source_D[d]],
            "ordinal": int(plan.ordinal_D[d]),
            "part": int(plan.part_D[d]),
            "start": int(plan.start_D[d]),
            "length": int(plan.length_D[d]),
            "padded": int(plan.padded_D[d]),
            "num_valid": int(plan.num_valid_D[d]),
            "num_images": int(plan.num_images_D[d]),
            "cost": float(plan.cost_D[d]),
        }
        for d in range(plan.num_documents)
    ]


def _row(plan: StepPlan, bucket: int, slot: int) -> str:
    chosen_D = plan.documents_of(bucket, slot)
    shown = [_document(plan, d) for d in chosen_D[:_DOCUMENTS_SHOWN].tolist()]
    if len(chosen_D) > _DOCUMENTS_SHOWN:
        shown.append(f"and {len(chosen_D) - _DOCUMENTS_SHOWN} more")
    tokens, cost = int(plan.length_D[chosen_D].sum()), float(plan.cost_D[chosen_D].sum())
    if plan.dummy_BM.size and plan.dummy_BM[bucket, slot]:
        shown.append("a dummy image")
    return f"    slot {slot}: {tokens} tokens, cost {cost:.4g}: {', '.join(shown) or 'empty'}"


def _document(plan: StepPlan, document: int) -> str:
    name, ordinal, part = plan.sample_id(document)
    start, length = int(plan.start_D[document]), int(plan.length_D[document])
    piece = f"[{start}:{start + length}]" if start else f"[{length}]"
    return f"{name}:{ordinal}.{part}{piece}"

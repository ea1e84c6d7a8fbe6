"""What a run has done so far: sums over its plans, and where each document came from."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from msd.core.order import SourceOrder
from msd.core.plan import StepPlan
from msd.core.unbounded import UnboundedOrder

_MEANS = ("fill", "imbalance", "imbalance_floor", "lockstep", "lockstep_floor")
_NOTES_KEPT = 20
_STEPS_KEPT = 60


class RunRecord:
    """Sums over the plans of a generation."""

    def __init__(self) -> None:
        """Begin with no step."""
        self.num_steps = 0
        self._sums = dict.fromkeys(_MEANS, 0.0)
        self._tokens: dict[str, int] = {}
        self._samples: dict[str, int] = {}
        self._notes: deque[str] = deque(maxlen=_NOTES_KEPT)
        self._recent: deque[dict[str, Any]] = deque(maxlen=_STEPS_KEPT)

    def add(self, plan: StepPlan) -> None:
        """Count a step."""
        report = plan.report
        self.num_steps += 1
        self._notes.extend(f"step {plan.step}: {note}" for note in plan.notes)
        for name in _MEANS:
            self._sums[name] += getattr(report, name)
        if report.encoder is not None:
            self._sums["encoder_imbalance"] = self._sums.get("encoder_imbalance", 0.0) + report.encoder.imbalance
        for name, tokens in report.tokens_by_source.items():
            self._tokens[name] = self._tokens.get(name, 0) + tokens
        for name, samples in report.samples_by_source.items():
            self._samples[name] = self._samples.get(name, 0) + samples
        self._recent.append({"step": plan.step, **{name: getattr(report, name) for name in _MEANS}})

    @property
    def samples(self) -> dict[str, int]:
        """Drawn of each source so far."""
        return dict(self._samples)

    def recent(self) -> list[dict[str, Any]]:
        """Return the figures of the newest steps."""
        return list(self._recent)

    def as_dict(self, closing_notes: Iterable[str] = ()) -> dict[str, Any]:
        """Return the means of the figures, and the newest notes: of plans by step, of the end of the run last."""
        return {**self.means(), "notes": [*self._notes, *(f"the end: {note}" for note in closing_notes)]}

    def means(self) -> dict[str, float | None]:
        """Return the mean of each figure of the plans, None before the first step."""
        return {name: total / self.num_steps if self.num_steps else None for name, total in self._sums.items()}

    def of_source(self, name: str) -> dict[str, Any]:
        """Return what was drawn of a source, and its realised shares."""
        tokens, samples = self._tokens.get(name, 0), self._samples.get(name, 0)
        return {
            "tokens": tokens,
            "samples": samples,
            "token_share": tokens / max(1, sum(self._tokens.values())),
            "sample_share": samples / max(1, sum(self._samples.values())),
        }


def size_of(order: SourceOrder) -> dict[str, Any]:
    """Return the rows of an epoch of a source; without an end, what its ledger says now."""
    if not isinstance(order, UnboundedOrder):
        return {"rows_per_epoch": order.rows_per_epoch}
    rows, admissions = order.admissions.count()
    return {"rows_per_epoch": None, "admitted_rows": rows, "admissions": admissions}


def provenance(plan: StepPlan, orders: Mapping[str, SourceOrder]) -> list[dict[str, Any]]:
    """Return for each document of a step where it came from (source, file, row) and where it was placed."""
    return [_document(plan, document, orders) for document in range(plan.num_documents)]


def of_rank(documents: list[dict[str, Any]], rank: int | None) -> list[dict[str, Any]]:
    """Return the documents that a rank holds, all for None."""
    return [document for document in documents if rank is None or rank in document["ranks"]]


def _document(plan: StepPlan, document: int, orders: Mapping[str, SourceOrder]) -> dict[str, Any]:
    sample_id = plan.sample_id(document)
    origin = orders[sample_id.source].place_of(sample_id.ordinal)
    bucket = int(plan.bucket_D[document])
    return {
        "source": sample_id.source,
        "ordinal": sample_id.ordinal,
        "part": sample_id.part,
        "start": int(plan.start_D[document]),
        "length": int(plan.length_D[document]),
        "epoch": origin.epoch,
        "shard": origin.shard,
        "row": origin.row,
        "bucket": bucket,
        "ranks": list(plan.consumers_B[bucket]),
        "microbatch": int(plan.slot_D[document]),
        "offset": int(plan.offset_D[document]),
    }

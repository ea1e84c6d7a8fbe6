"""What `--explain` asks of a plan: a step as a tree, or a sample followed through the steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msd.cli.survey import Outlook
    from msd.config import Config
    from msd.core.index import BlockTable
    from msd.core.plan import StepPlan
    from msd.planner.lineage import Lineage


@dataclass(slots=True)
class Asked:
    """Keeps the plans that answer a question, and answers it."""

    question: str
    plans: "list[StepPlan]" = field(default_factory=list)

    @property
    def step(self) -> int | None:
        """The step that is asked for; None when it is a sample."""
        return int(self.question) if self.question.isdecimal() else None

    def check(self, config: "Config") -> None:
        """Raise `ConfigError` unless the question is a step, or a sample of one of the sources."""
        from msd.core.checks import few
        from msd.errors import ConfigError
        from msd.planner.lineage import parse_sample

        if self.step is None:
            source, _, _ = parse_sample(self.question)
            if source not in config.sources:
                known = few(config.sources)
                raise ConfigError(f"--explain {self.question}: there is no source {source!r} (sources: {known})")

    def look(self, plan: "StepPlan") -> None:
        """Keep a plan if it answers."""
        from msd.planner.lineage import documents_of

        if plan.step == self.step or (self.step is None and documents_of(plan, self.question)):
            self.plans.append(plan)

    def answer(
        self, config: "Config", tables: "Mapping[str, BlockTable]", outlook: "Outlook"
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the answer by its key in JSON, and what there is to say beside it."""
        if self.step is not None:
            import msd

            if self.plans:
                return {"explanation": str(msd.explain(self.plans[0]))}, []
            return {}, [f"there is no step {self.step}: the run ends after {outlook.num_steps} steps"]
        lineages = self._lineages(config, tables)
        answer = {"lineage": [one.as_dict() for one in lineages], "explanation": "\n".join(map(str, lineages))}
        return answer, [] if lineages else [self._why_not(config, tables, outlook)]

    def _lineages(self, config: "Config", tables: "Mapping[str, BlockTable]") -> "list[Lineage]":
        from msd.build import build_orders
        from msd.planner.lineage import documents_of, lineage, parse_sample

        source, ordinal, _ = parse_sample(self.question)
        order = build_orders(config, tables)[source]
        return [
            lineage(plan, document, order.place_of(ordinal))
            for plan in self.plans
            for document in documents_of(plan, self.question)
        ]

    def _why_not(self, config: "Config", tables: "Mapping[str, BlockTable]", outlook: "Outlook") -> str:
        """Return what became of a sample that is in no step: its row is examined once more."""
        from msd.build import build_chain_of, build_loader, build_orders
        from msd.core.sample import Outcome
        from msd.planner.lineage import parse_sample

        source, ordinal, part = parse_sample(self.question)
        order = build_orders(config, tables)[source]
        total = order.total_ordinals(config.max_epochs(source))
        if order.rows_per_epoch == 0 or (total is not None and ordinal >= total):
            return f"{self.question} is in no step: {source} has {total or 0} rows in all its epochs"
        loader = build_loader(config, order, build_chain_of(config, source), buffer_bytes=1 << 20)
        try:
            row = loader.examine(ordinal, 1)
        finally:
            loader.close()
        place = order.place_of(ordinal)
        where = f"{self.question} ({place.shard} row {place.row})"
        outcome, num_parts = Outcome(row.outcome_R[0]), int(row.num_parts_R[0])
        if num_parts <= (part or 0):
            reason = f" ({row.failures[0].reason})" if row.failures else ""
            why = "" if outcome == Outcome.OK else f": {outcome.name.lower()}{reason}"
            return f"{where} is in no step: its row gives {num_parts} samples{why}"
        used = next(entry.rows_used for entry in outlook.sources if entry.name == source)
        return (
            f"{where} is in none of {outlook.num_steps} steps: they came to the first {used} rows of {source}, so it "
            "is drawn later or waits for the next step; plan more with --steps"
        )

"""One line of planning: a planner, and the rows on their way to it."""

from collections.abc import Callable, Mapping

from msd.coordinator.lookahead import Lookahead, RowRequest
from msd.core.order import SourceOrder
from msd.core.plan import StepPlan
from msd.core.sample import MetaTable
from msd.planner.planner import Planner, Starved


class Lane:
    """Plans steps one after the other as metadata arrives; says which rows it would like next."""

    def __init__(
        self,
        planner: Planner,
        orders: Mapping[str, SourceOrder],
        totals: Mapping[str, int | None],
        *,
        share_bytes: int,
    ) -> None:
        """Go on from where `planner` stands.

        Args:
            planner: At a step boundary.
            orders: The sequence of each source.
            totals: Ordinals in all of each source, None without end.
            share_bytes: Payload that one source may have waiting before it is asked for no more than is needed.
        """
        self._planner = planner
        self._sources = {
            name: Lookahead(order, total=totals[name], start=planner.needs(name), share_bytes=share_bytes)
            for name, order in orders.items()
        }
        self._quiet = set(planner.idle_sources)
        """Sources that are not drawn from, as far as is known: they are asked for nothing ahead of need."""
        self._stirred = dict.fromkeys(self._sources)
        """Sources that may have something to ask for, in order."""
        self.starved: Starved | None = None
        """What planning waits for."""

    @property
    def step(self) -> int:
        """The step that is planned next."""
        return self._planner.step

    @property
    def closing_notes(self) -> tuple[str, ...]:
        """Why the run ended and what stayed undelivered, once `plan` has returned None."""
        return self._planner.closing_notes

    def arrive(self, table: MetaTable) -> None:
        """Take metadata, in any order, perhaps twice."""
        for ready in self._sources[table.source].arrive(table):
            self._planner.observe(ready)

    def plan(self) -> StepPlan | Starved | None:
        """Return the next plan, or what it waits for, or None when the run has ended."""
        outcome = self._planner.plan()
        self.starved = outcome if isinstance(outcome, Starved) else None
        if isinstance(outcome, Starved):
            self._quiet.discard(outcome.source)
            self._sources[outcome.source].starve(outcome.ordinal)
            self._stirred[outcome.source] = None
        elif outcome is not None:
            for name, saved in outcome.progress["sources"].items():
                self._sources[name].consume(int(saved["ordinal"]))
            self._stirred = dict.fromkeys(self._sources)
        return outcome

    def requests(self) -> list[RowRequest]:
        """Return the rows to have examined now, the most urgent first."""
        urgent = [self.starved.source] if self.starved is not None else []
        stirred = [name for name in self._stirred if name not in self._quiet and name not in urgent]
        self._stirred = {}
        return [request for name in (*urgent, *stirred) for request in self._sources[name].requests()]

    def unanswered(self) -> list[RowRequest]:
        """Return the requests whose rows have not arrived, source by source."""
        return [request for source in self._sources.values() for request in source.unanswered()]

    def ask_again(self, concerns: Callable[[RowRequest], bool]) -> None:
        """Ask once more for rows that have not arrived: those of the requests that `concerns` returns true for."""
        for source in self._sources.values():
            source.ask_again(concerns)
        self._stirred = dict.fromkeys(self._sources)

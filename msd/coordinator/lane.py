"""One line of planning: a planner, the edits that it is to be given on its way, and the rows on their way to it."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from msd.coordinator.gauges import SourceGauge
from msd.coordinator.lookahead import Lookahead, RowRequest, Waiting
from msd.core.journal import Edit, SkipRows
from msd.core.order import SourceOrder
from msd.core.plan import StepPlan
from msd.core.sample import MetaTable
from msd.core.state import StateDict
from msd.planner.planner import Planner, Starved


class Lane:
    """Plans steps one after the other as metadata arrives; says which rows it would like next."""

    def __init__(
        self,
        planner: Planner,
        orders: Mapping[str, SourceOrder],
        totals: Mapping[str, int | None],
        *,
        ahead_bytes: int,
        edits: Iterable[Edit] = (),
    ) -> None:
        """Go on from where `planner` stands.

        Args:
            planner: At a step boundary.
            orders: The sequence of each source.
            totals: Ordinals in all of each source, None without end.
            ahead_bytes: Payload that rows of all sources may have waiting together. It is divided by what steps take
                of each; past its part a source is asked for no more than is needed.
            edits: Those that its position does not tell of, in order.
        """
        self._planner = planner
        self._orders = orders
        self._totals = totals
        self._waiting = Waiting(ahead_bytes, len(orders))
        self._edits = deque(edits)
        self._sources = {name: self._lookahead(name) for name in orders}
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

    @property
    def position(self) -> StateDict:
        """The position before the step that is planned next."""
        return self._planner.state_dict()

    def consumed(self, source: str) -> int:
        """Return the ordinal of a source at which planning stood after the last step."""
        return self._sources[source].consumed

    def asked(self, source: str) -> int:
        """Return the first ordinal of a source that nobody was asked for."""
        return self._sources[source].asked

    def gauge(self, source: str) -> SourceGauge:
        """Return how a source keeps up."""
        ahead = self._sources[source]
        is_starved = self.starved is not None and self.starved.source == source
        return SourceGauge(ahead.consumed, max(0, ahead.observed - ahead.consumed), ahead.wanted, is_starved)

    @property
    def shares(self) -> dict[str, float]:
        """The share of each source that the next step begins with."""
        return self._planner.shares

    def shares_ahead(self, steps: int) -> list[dict[str, float]]:
        """Return the shares now, wherever they turn within the next steps, and after them; see `Planner`."""
        return self._planner.shares_ahead(steps)

    @property
    def losses(self) -> dict[str, float]:
        """The newest that was reported of each source."""
        return self._planner.losses

    @property
    def suspended(self) -> frozenset[str]:
        """Sources that are not drawn from now."""
        return self._planner.suspended

    @property
    def skips(self) -> tuple[SkipRows, ...]:
        """Rows that are passed over, as far as planning has not come past them."""
        return self._planner.skips

    def note(self, edit: Edit) -> None:
        """Take an edit that is noted at the step that is planned next."""
        self._edits.append(edit)

    def arrive(self, table: MetaTable) -> None:
        """Take metadata, in any order, perhaps twice."""
        source = self._sources[table.source]
        for ready in source.arrive(table):
            self._planner.observe(ready)
        if source.repeats:
            self._stirred[table.source] = None

    def plan(self) -> StepPlan | Starved | None:
        """Return the next plan, or what it waits for, or None when the run has ended."""
        self._give_edits()
        outcome = self._planner.plan()
        self.starved = outcome if isinstance(outcome, Starved) else None
        if isinstance(outcome, Starved):
            self._quiet.discard(outcome.source)
            if self._planner.is_skipping:
                # Many steps' worth is drawn for one: what is dropped must not count as waiting.
                self._sources[outcome.source].consume(self._planner.drawn_to(outcome.source))
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

    def _give_edits(self) -> None:
        """Give the planner the edits that are noted at the step it stands before."""
        is_given = False
        while self._edits and self._edits[0].noted_at <= self._planner.step:
            self._planner.apply(self._edits.popleft())
            is_given = True
        if not is_given:
            return
        # The planner may have gone back to the beginning of a step that it was filling, and forgotten rows.
        for name, source in self._sources.items():
            if source.observed != self._planner.needs(name):
                source.forget()
                self._sources[name] = self._lookahead(name)
        self._quiet = set(self._planner.idle_sources)
        self._stirred = dict.fromkeys(self._sources)

    def _lookahead(self, name: str) -> Lookahead:
        start = self._planner.needs(name)
        return Lookahead(self._orders[name], total=self._totals[name], start=start, waiting=self._waiting)

"""A coordinator over made-up rows, and somebody who examines them: runs without a file, a loader or a host."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from msd.coordinator import Coordinator, Placement, StallTerms, Standing, deal
from msd.coordinator.commands import Command, Examine, Journal
from msd.coordinator.events import Event, Journalled, RowsExamined
from msd.core.order import SourceOrder
from msd.core.state import StateDict
from msd.core.unbounded import Admitted, UnboundedOrder
from msd.planner.planner import Planner
from msd.testing.blocks import made_up_blocks
from msd.testing.tables import Row, settings_of, table_of

BLOCK_ROWS = 10


class _Nothing:
    """Admissions that nobody asks about."""

    num_rows = 0

    def find(self, ordinal: int) -> Admitted | None:
        return None

    def count(self) -> tuple[int, int]:
        return 0, 0


class MadeUpRun:
    """A coordinator, and the rows that it asks about."""

    def __init__(
        self,
        sources: Mapping[str, Sequence[Row]],
        constructors: Mapping[str, tuple[int, ...]],
        *,
        hosts: Sequence[str] = ("a", "b"),
        partitions: int = 2,
        planner: type[Planner] = Planner,
        depth: int = 3,
        ahead_bytes: int = 1 << 20,
        held_bytes: int = 1 << 20,
        shadows: Sequence[str] = (),
        stalls: Mapping[str, StallTerms] | None = None,
        placement: Placement | None = None,
        unending: Collection[str] = (),
        **settings: Any,
    ) -> None:
        """Make the coordinator, which has decided nothing yet.

        Args:
            sources: Rows by source; they repeat unless `max_epochs` says otherwise.
            constructors: The ranks that each serves.
            hosts: Loader hosts.
            partitions: Of each source.
            planner: The class of planner.
            depth: Of the coordinator, as `ahead_bytes` and `held_bytes`.
            ahead_bytes: See there.
            held_bytes: See there.
            shadows: See there.
            stalls: See there.
            unending: Sources of which more may come: what a host says is all there is so far.
            placement: Of loaders on hosts; None deals `partitions` of each source in turn.
            **settings: Of `msd.testing.tables.settings_of`.
        """
        self.sources = sources
        self.settings = settings_of(sources, **settings)
        self._new = planner
        self._options: dict[str, Any] = {
            "new_planner": self.new_planner,
            "orders": {name: _order(name, len(rows), name in unending) for name, rows in sources.items()},
            "totals": {terms.name: terms.total_ordinals for terms in self.settings.sources},
            "placement": placement or deal(dict.fromkeys(sources, partitions), hosts),
            "constructors": constructors,
            "depth": depth,
            "ahead_bytes": ahead_bytes,
            "held_bytes": held_bytes,
            "shadows": shadows,
            "stalls": stalls,
        }
        self.coordinator = Coordinator(**self._options)

    def born_again(self, standing: Standing | None, **changes: Any) -> Coordinator:
        """Return another coordinator of the same run, which is given a standing, and drive it from now on."""
        self.coordinator = Coordinator(**{**self._options, **changes, "standing": standing})
        return self.coordinator

    def new_planner(self, state: StateDict | None) -> Planner:
        """Return a planner at a saved progress, or before the first step."""
        planner = self._new(self.settings)
        if state is not None:
            planner.load_state_dict(state)
        return planner

    def answer(self, command: Examine) -> RowsExamined:
        """Return what a host would say."""
        rows = self.sources[command.source]
        chosen = [rows[ordinal % len(rows)] for ordinal in range(command.start, command.start + command.num_rows)]
        return RowsExamined(command.host, (table_of(command.source, command.start, chosen),))

    def settle(self, commands: Iterable[Command]) -> list[Command]:
        """Answer what is asked until nothing is asked any more; return all commands met, `Examine` left out.

        What is to be journalled is journalled.
        """
        met: list[Command] = []
        waiting = list(commands)
        while waiting:
            met += [command for command in waiting if not isinstance(command, Examine)]
            answers: list[Event] = [self.answer(command) for command in waiting if isinstance(command, Examine)]
            answers += [Journalled(command.number) for command in waiting if isinstance(command, Journal)]
            waiting = self.coordinator.handle_all(answers) if answers else []
        return met


def _order(source: str, num_rows: int, is_unending: bool) -> SourceOrder:
    if is_unending:
        return UnboundedOrder(seed=1, source=source, admissions=_Nothing(), shuffle=True, window="auto")
    rows_B = [min(BLOCK_ROWS, num_rows - first) for first in range(0, num_rows, BLOCK_ROWS)]
    return SourceOrder(seed=1, source=source, blocks=made_up_blocks(rows_B), shuffle=True, window_blocks=1)

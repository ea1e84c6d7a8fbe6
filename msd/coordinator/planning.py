"""The plans of one generation: each step once, and again where a late rank needs one that nobody holds."""

from collections.abc import Callable, Collection

from msd.coordinator.history import History
from msd.coordinator.lane import Lane
from msd.coordinator.lookahead import RowRequest
from msd.coordinator.question import Question
from msd.core.plan import StepPlan
from msd.core.sample import MetaTable
from msd.core.state import StateDict
from msd.errors import StateError
from msd.planner.planner import Starved


class Planning:
    """A main lane, which plans what nobody has planned, one that plans missed steps again, and one for who asks."""

    def __init__(self, new_lane: Callable[[StateDict], Lane], history: History, main: Lane) -> None:
        """Stand at a step boundary.

        Args:
            new_lane: Returns a lane at a position.
            history: Of the generation.
            main: The lane that plans what nobody has planned.
        """
        self.history = history
        self.end: int | None = None
        """The first step that does not exist, once it is known."""
        self._new_lane = new_lane
        self.main = main
        self.replay: Lane | None = None
        self.question: Question | None = None
        """What somebody wants to know, if somebody does."""

    @property
    def lanes(self) -> list[Lane]:
        """Those that plan."""
        asked = None if self.question is None else self.question.lane
        return [lane for lane in (self.main, self.replay, asked) if lane is not None]

    @property
    def starved(self) -> Starved | None:
        """The row that the run waits for, if it does."""
        lanes = [lane for lane in (self.main, self.replay) if lane is not None]
        return next((lane.starved for lane in lanes if lane.starved is not None), None)

    def arrive(self, table: MetaTable) -> None:
        """Take metadata, in any order, perhaps twice."""
        for lane in self.lanes:
            lane.arrive(table)

    def ask_again(self, concerns: Callable[[RowRequest], bool]) -> None:
        """Ask once more for rows that have not arrived: those of the requests that `concerns` returns true for."""
        for lane in self.lanes:
            lane.ask_again(concerns)

    def reach(self, slowest: int) -> None:
        """Go to the last position known at or before the step that the slowest rank needs, if that lies ahead."""
        if slowest > self.main.step:
            start, position = self.history.nearest(slowest)
            if start > self.main.step:
                self.main = self._new_lane(position)

    def plan_to(self, limit: int, is_held: Callable[[int], bool]) -> list[StepPlan]:
        """Return the plans of the next steps before `limit`, as far as rows have come and steps are not held."""
        planned: list[StepPlan] = []
        while self.end is None and self.main.step < limit and not is_held(self.main.step):
            outcome = self.main.plan()
            if isinstance(outcome, Starved):
                break
            if outcome is None:
                self.end = self.main.step
            else:
                self.history.keep(outcome)
                planned.append(outcome)
        return planned

    def plan_missed(self, needed: Collection[int]) -> bool:
        """Plan steps again that are needed and not held; return whether all are there, or rows are missing."""
        while True:
            missing = min((step for step in needed if step < self.main.step and step not in self.history), default=None)
            if missing is None:
                return True
            start, position = self.history.nearest(missing)
            if self.replay is None or not start <= self.replay.step <= missing:
                self.replay = self._new_lane(position)
            while self.replay.step <= missing:
                outcome = self.replay.plan()
                if isinstance(outcome, Starved):
                    return False
                if outcome is None:
                    raise StateError(f"step {missing} was planned before and cannot be planned again")
                self.history.keep(outcome)

    def ask(self, step: int | None) -> None:
        """Begin to answer what a step holds, or go on; None: nobody asks any more."""
        if step is None or step in self.history:
            self.question = None
        elif self.question is None or self.question.step != step:
            _, position = self.history.nearest(step) if step < self.main.step else (step, self.main.position)
            self.question = Question(step, self._new_lane(position))

    def requests(self) -> list[RowRequest]:
        """Return the rows to have examined now, the most urgent first."""
        asked = [] if self.end is not None else self.main.requests()
        if self.replay is not None and self.replay.starved is not None:
            asked += self.replay.requests()
        if self.question is not None and self.question.is_open:
            asked += self.question.lane.requests()
        return asked

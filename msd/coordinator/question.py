"""What a step holds, planned for somebody who asks: nothing of the run moves by it."""

from msd.coordinator.lane import Lane
from msd.core.plan import StepPlan
from msd.errors import ConfigError
from msd.planner.planner import Starved


class Question:
    """A lane of its own that plans up to one step, behind the run or ahead of it, as the run would as things stand."""

    def __init__(self, step: int, lane: Lane) -> None:
        """Ask for the plan of a step.

        Args:
            step: Which.
            lane: At that step or before it.
        """
        self.step = step
        self.lane = lane
        self._plan: StepPlan | None = None
        self._error: Exception | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is no answer yet."""
        return self._plan is None and self._error is None

    def go_on(self) -> None:
        """Plan as far as rows have come. What goes wrong concerns who asks, not the run."""
        try:
            while self.is_open:
                outcome = self.lane.plan()
                if isinstance(outcome, Starved):
                    return
                if outcome is None:
                    self._error = ConfigError(no_step(self.step, self.lane.step, *self.lane.closing_notes))
                elif outcome.step == self.step:
                    self._plan = outcome
        except Exception as error:
            self._error = error

    def answer(self) -> StepPlan | None:
        """Return the plan, or None while rows are missing.

        Raises:
            ConfigError: If there is no such step.
            Exception: What planning it met.
        """
        if self._error is not None:
            raise self._error
        return self._plan


def no_step(step: int, end: int, *why: str) -> str:
    """Return in words that a run ends before a step."""
    reasons = f" ({'; '.join(why)})" if why else ""
    return f"step {step} does not exist: the run ends before step {end}{reasons}"

"""What is remembered of a generation: some plans, and positions to plan the others again from."""

from collections import OrderedDict
from collections.abc import Collection

from msd.core.plan import StepPlan
from msd.core.state import StateDict

PLANS_KEPT = 64
POSITION_EVERY = 64
POSITIONS_KEPT = 128


class History:
    """Plans by step, and the run's position before some steps: bounded, however long the generation is."""

    def __init__(self, first_step: int, position: StateDict) -> None:
        """Begin at the first step of a generation."""
        self._first_step = first_step
        self._every = POSITION_EVERY
        self._positions = {first_step: position}
        self._plans: OrderedDict[int, StepPlan] = OrderedDict()

    def __contains__(self, step: int) -> bool:
        return step in self._plans

    def keep(self, plan: StepPlan) -> None:
        """Hold a plan, and now and then the position after it."""
        self._plans[plan.step] = plan
        self._plans.move_to_end(plan.step)
        after = plan.step + 1
        if after % self._every == 0:
            self._positions[after] = plan.progress
            if len(self._positions) > POSITIONS_KEPT:
                self._every *= 2
                kept = {step for step in self._positions if step % self._every == 0} | {self._first_step}
                self._positions = {step: self._positions[step] for step in self._positions if step in kept}

    def plan(self, step: int) -> StepPlan | None:
        """Return the plan of a step, if it is still held."""
        return self._plans.get(step)

    def position_before(self, step: int) -> StateDict | None:
        """Return the run's position before a step, if it is still known."""
        if step in self._positions:
            return self._positions[step]
        plan = self._plans.get(step - 1)
        return None if plan is None else plan.progress

    def nearest(self, step: int) -> tuple[int, StateDict]:
        """Return the last step at or before `step` whose position is known, and that position."""
        if step - 1 in self._plans:
            return step, self._plans[step - 1].progress
        start = max(kept for kept in self._positions if kept <= step)
        return start, self._positions[start]

    def forget(self, wanted: Collection[int]) -> list[int]:
        """Drop old plans beyond the bound, never those of `wanted`; return the steps dropped."""
        surplus = len(self._plans) - PLANS_KEPT
        if surplus <= 0:
            return []
        dropped = [step for step in self._plans if step not in wanted][:surplus]
        for step in dropped:
            del self._plans[step]
        return dropped

"""What is remembered of a generation: some plans, and positions to plan the others again from."""

from collections import OrderedDict
from collections.abc import Collection, Mapping

from msd.core.plan import StepPlan
from msd.core.state import StateDict, fingerprint
from msd.errors import StateError

PLANS_KEPT = 64
POSITION_EVERY = 64
POSITIONS_KEPT = 128


class History:
    """Plans by step, and the run's position before some steps: bounded, however long the generation is."""

    def __init__(self, first_step: int, position: StateDict, known: Mapping[int, StateDict] | None = None) -> None:
        """Begin at the first step of a generation.

        Args:
            first_step: Of the generation.
            position: Before it.
            known: Other positions that were handed in.
        """
        self._first_step = first_step
        self._every = POSITION_EVERY
        self._positions = {**(known or {}), first_step: position}
        self._plans: OrderedDict[int, StepPlan] = OrderedDict()
        self.num_kept = 0
        """Plans that were ever taken."""
        self._brought: dict[int, list[tuple[int, str]]] = {}
        """By step that was not planned yet: ranks, and the digest of the position that they brought before it."""

    def __contains__(self, step: int) -> bool:
        return step in self._plans

    def keep(self, plan: StepPlan) -> None:
        """Hold a plan, and now and then the position after it.

        Raises:
            StateError: If a rank brought another position after it.
        """
        self.num_kept += 1
        self._plans[plan.step] = plan
        self._plans.move_to_end(plan.step)
        after = plan.step + 1
        for rank, digest in self._brought.pop(after, ()):
            if digest != position_digest(plan.progress):
                raise StateError(
                    f"rank {rank} stands at step {after} with another position than the steps before it lead to here; "
                    "load the state that was saved last on every rank"
                )
        if after % self._every == 0:
            self._positions[after] = plan.progress
            if len(self._positions) > POSITIONS_KEPT:
                self._every *= 2
                kept = {step for step in self._positions if step % self._every == 0} | {self._first_step}
                self._positions = {step: self._positions[step] for step in self._positions if step in kept}

    def learn(self, rank: int, step: int, position: StateDict) -> None:
        """Take the position before a step from a rank that stands there; it is compared when planning comes there."""
        self._first_step = min(self._first_step, step)
        if self.position_before(step) is None:
            self._positions[step] = position
            self._brought.setdefault(step, []).append((rank, position_digest(position)))

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

    def begin_at(self, step: int) -> None:
        """Have the generation begin later: at a step whose position is known. Nothing before it is planned again."""
        position = self.position_before(step)
        assert position is not None, "whoever moves the beginning has looked"
        self._first_step = step
        self._positions = {step: position} | {kept: at for kept, at in self._positions.items() if kept > step}
        for planned in [planned for planned in self._plans if planned < step]:
            del self._plans[planned]

    def forget(self, wanted: Collection[int]) -> list[int]:
        """Drop old plans beyond the bound, never those of `wanted`; return the steps dropped."""
        surplus = len(self._plans) - PLANS_KEPT
        if surplus <= 0:
            return []
        dropped = [step for step in self._plans if step not in wanted][:surplus]
        for step in dropped:
            del self._plans[step]
        return dropped


def position_digest(position: StateDict) -> str:
    """Return what tells a position from another, whether or not edits that wait for their step are told in it."""
    return fingerprint({key: value for key, value in position.items() if key != "pending"})

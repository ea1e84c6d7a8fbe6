"""Whose sample is drawn next: the weights in force, and the credits that they feed."""

# S = sources, in order of name.

from collections.abc import Iterable, Sequence

from msd.core.state import StateDict
from msd.planner.config.mixture import MixtureConfig
from msd.planner.edits import Reweighted
from msd.planner.mixture.clock import WithinStep
from msd.planner.mixture.feedback import Feedback, Steering
from msd.planner.mixture.schedule import MixtureSchedule
from msd.planner.mixture.shares import shares_of
from msd.planner.piece import Piece
from msd.planner.primitives.mix import UNITS, Credits
from msd.planner.primitives.pack import Pack
from msd.planner.saved import SavedSteering


class Mixer:
    """Draws the samples of one step after the other by weight."""

    def __init__(
        self,
        schedule: MixtureSchedule,
        mixture: MixtureConfig,
        credit_S: Sequence[int],
        saved: SavedSteering | None = None,
    ) -> None:
        """Stand at a boundary between steps.

        Args:
            schedule: Weights over the run.
            mixture: What a weight counts, and the feedback if there is one.
            credit_S: What each source is owed.
            saved: Where feedback stood; None before its first report.
        """
        self.credits = Credits(len(schedule.names))
        self.credits.load(credit_S)
        self.steering = None if mixture.feedback is None else Steering(Feedback.of(mixture.feedback), saved)
        self._schedule = schedule
        self._schedule_now = schedule
        self._weights = None if saved is None else saved.weights
        self._units = UNITS[mixture.unit]
        self._within: WithinStep | None = None
        self._count = 0
        self._live_S: list[bool] = []

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each source in force, 0 for those that cannot be drawn."""
        return self.shares_over(self._live_S)

    def shares_over(self, live_S: Sequence[bool]) -> tuple[float, ...]:
        """Return the shares that would be in force if these sources could be drawn."""
        part = 0 if self._within is None else self._within.part
        return self._shares(self._schedule_now, self._count + part, live_S, self._weights)

    def shares_at(
        self, progress: StateDict, live_S: Sequence[bool], edited: Reweighted | None = None
    ) -> tuple[float, ...]:
        """Return the shares that the step after a position begins with, but for what feedback says at it."""
        schedule = self._schedule if edited is None else edited.schedule
        weights = None if edited is not None and edited.at_step == int(progress["step"]) else self._weights
        return self._shares(schedule, schedule.clock.count(progress), live_S, weights)

    def idle(self, progress: StateDict, live_S: Sequence[bool], edited: Reweighted | None = None) -> list[bool]:
        """Return which sources have no share in any part of the step after a position, whatever is reported."""
        if self.steering is not None:
            return [not is_live for is_live in live_S]
        schedule = self._schedule if edited is None else edited.schedule
        first = schedule.clock.count(progress)
        parts = [self._shares(schedule, first + part, live_S, None) for part in range(schedule.clock.ticks_per_step)]
        return [not any(shares) for shares in zip(*parts, strict=True)]

    def ahead(
        self, progress: StateDict, steps: int, live_S: Sequence[bool], edited: Reweighted | None = None
    ) -> list[tuple[float, ...]]:
        """Return the shares at a position, at every turn of the schedule within the steps after it, and after them.

        In between shares stay, or move linearly. Clocks that count what is drawn are taken to go on as they did so far.
        """
        schedule = self._schedule if edited is None else edited.schedule
        clock, step = schedule.clock, int(progress["step"])
        first = clock.count(progress)
        per_step = clock.ticks_per_step if clock.kind in ("step", "microbatch") else first / max(1, step)
        last = first + int(per_step * steps)
        counts, turn = [first], schedule.next_turn(first)
        while turn is not None and turn < last:
            counts.append(turn)
            turn = schedule.next_turn(turn)
        return [self._shares(schedule, count, live_S, self._weights) for count in (*counts, last)]

    def begin(
        self,
        progress: StateDict,
        live_S: Sequence[bool],
        pack: Pack,
        carry: Iterable[Piece],
        edited: Reweighted | None = None,
        *,
        asks: bool = True,
    ) -> None:
        """Take the weights of the step after a position.

        Args:
            progress: The position.
            live_S: Sources that can be drawn.
            pack: How the step is filled.
            carry: What it begins with.
            edited: Weights that an edit set, which hold in place of the schedule. What feedback said before them holds
                no more; it is asked again once their ramp is over.
            asks: Whether feedback may be asked.
        """
        step = int(progress["step"])
        self._schedule_now = self._schedule if edited is None else edited.schedule
        clock = self._schedule_now.clock
        self._count, self._within, self._live_S = clock.count(progress), None, list(live_S)
        if edited is not None and edited.at_step == step:
            self._weights = None
        elif self.steering is not None and asks and (edited is None or step >= edited.until):
            before = dict(zip(self._schedule.names, self.shares, strict=True))
            self._weights = self.steering.weights(step, before)
        if clock.ticks_per_step > 1:
            num_sequences = pack.num_sequences
            length = None if pack.method == "none" else pack.sequence_length
            if pack.method == "none" and pack.max_tokens is not None:
                num_sequences, length = 1, pack.max_tokens
            self._within = WithinStep(clock, num_sequences=num_sequences, sequence_length=length)
            self._within.add(carry)
        self.credits.set_shares(self.shares)

    def take(self, source: int, piece: Piece) -> None:
        """Record that a sample was drawn from a source."""
        self.credits.take(source, sum(map(self._units, piece.inner)) if piece.inner else self._units(piece))
        if self._within is not None and self._within.add((piece,)):
            self.credits.set_shares(self.shares)

    def drop(self, source: int) -> None:
        """Go on without a source; what it was owed goes to the others."""
        self._live_S[source] = False
        self.credits.set_shares(self.shares)
        if self.credits.has_live:
            self.credits.spread(source)

    def give(self, owed: int, progress: StateDict, live_S: Sequence[bool], edited: Reweighted | None = None) -> None:
        """Give what a source is owed that is gone to the others, by their shares at a position."""
        self.credits.set_shares(self.shares_at(progress, live_S, edited))
        self.credits.give(owed)

    def end(self) -> None:
        """Stand after a step."""
        if self.steering is not None:
            self.steering.advance(self._weights)

    def _shares(
        self, schedule: MixtureSchedule, count: int, live_S: Sequence[bool], weights: dict[str, float] | None
    ) -> tuple[float, ...]:
        if weights is None:
            return schedule.shares(count, live_S)
        return shares_of({**weights}, schedule.names, "explicit", 1.0, {}).over(live_S)

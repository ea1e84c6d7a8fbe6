"""Whose sample is drawn next: the weights in force, and the credits that they feed."""

# S = sources, in order of name.

from collections.abc import Iterable, Sequence

from msd.core.state import StateDict
from msd.planner.config.mixture import MixtureConfig
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
        self.steering = (
            None if mixture.feedback is None else Steering(Feedback.of(mixture.feedback), schedule.names, saved)
        )
        self._schedule = schedule
        self._weights = None if saved is None else saved.weights
        self._units = UNITS[mixture.unit]
        self._within: WithinStep | None = None
        self._count = 0
        self._live_S: list[bool] = []

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each source in force, 0 for those that cannot be drawn."""
        return self._shares(self._count + (0 if self._within is None else self._within.part), self._live_S)

    def idle(self, progress: StateDict, live_S: Sequence[bool]) -> list[bool]:
        """Return which sources have no share in any part of the step after a position, whatever is reported."""
        if self.steering is not None:
            return [not is_live for is_live in live_S]
        first = self._schedule.clock.count(progress)
        parts = [self._shares(first + part, live_S) for part in range(self._schedule.clock.ticks_per_step)]
        return [not any(shares) for shares in zip(*parts, strict=True)]

    def begin(self, progress: StateDict, live_S: Sequence[bool], pack: Pack, carry: Iterable[Piece]) -> None:
        """Take the weights of the step after a position.

        Args:
            progress: The position.
            live_S: Sources that can be drawn.
            pack: How the step is filled.
            carry: What it begins with.
        """
        clock = self._schedule.clock
        self._count, self._within, self._live_S = clock.count(progress), None, list(live_S)
        if self.steering is not None:
            before = dict(zip(self._schedule.names, self._shares(self._count, live_S), strict=True))
            self._weights = self.steering.weights(int(progress["step"]), before)
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
        self.credits.take(source, self._units(piece))
        if self._within is not None and self._within.add((piece,)):
            self.credits.set_shares(self.shares)

    def drop(self, source: int) -> None:
        """Go on without a source; what it was owed goes to the others."""
        self._live_S[source] = False
        self.credits.set_shares(self.shares)
        if self.credits.has_live:
            self.credits.spread(source)

    def end(self, step: int) -> None:
        """Stand after a step."""
        if self.steering is not None:
            self.steering.advance(step, self._weights)

    def _shares(self, count: int, live_S: Sequence[bool]) -> tuple[float, ...]:
        if self._weights is None:
            return self._schedule.shares(count, live_S)
        names = self._schedule.names
        return shares_of({**self._weights}, names, "explicit", 1.0, {}).over(live_S)

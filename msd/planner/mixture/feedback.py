"""Weights that follow what training reports of the sources.

The user's function is pure and is called at steps that the configuration names, with values that were reported for
that step or an earlier one. What it returned is part of the planner's position, and so is what was reported and not
used yet, as an edit that waits or as the newest value: a replay draws as the run did.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from msd.core.checks import few
from msd.core.state import StateDict
from msd.errors import ConfigError, MsdError, PlanError, told
from msd.planner.config.mixture import FeedbackConfig, check_weights
from msd.planner.saved import SavedSteering

FeedbackFunction = Callable[[dict[str, float], dict[str, float], int], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Feedback:
    """When weights are asked for, and of whom."""

    function: FeedbackFunction
    every: int

    @classmethod
    def of(cls, config: FeedbackConfig) -> "Feedback":
        """Return the feedback of a configuration whose function has been looked up.

        Raises:
            ConfigError: If it is still a dotted path.
        """
        if not callable(config.function):
            raise ConfigError(f"mixture.feedback {config.function!r} is {type(config.function).__name__}, no function")
        return cls(config.function, config.every)

    def is_due(self, step: int) -> bool:
        """Whether weights are asked for before this step is drawn."""
        return step % self.every == 0

    def weights(self, shares: Mapping[str, float], losses: Mapping[str, float], step: int) -> dict[str, float]:
        """Return the weights that hold from a step on; sources that the function leaves out get 0.

        Args:
            shares: In force before it, by source.
            losses: The newest reported of each source; sources that nothing was reported of are left out.
            step: That is drawn next.

        Raises:
            PlanError: If the function raises, or returns something else than weights of sources.
        """
        called = f"mixture.feedback {getattr(self.function, '__qualname__', self.function)}"
        try:
            returned = dict(self.function(dict(shares), dict(losses), step))
            weights = {name: float(weight) for name, weight in returned.items()}
        except MsdError:
            raise
        except Exception as error:
            raise PlanError(
                f"{called} raised {told(error)} at step {step}; it is called with (shares, losses, step) and returns "
                "weights by source"
            ) from error
        unknown = next((name for name in weights if name not in shares), None)
        if unknown is not None:
            raise PlanError(f"{called} gave a weight to {unknown!r} at step {step}; the sources are {few(shares)}")
        try:
            check_weights(dict(weights), f"{called} at step {step}")
        except ConfigError as error:
            raise PlanError(str(error)) from None
        return weights


class Steering:
    """What was reported of the sources, and the weights that feedback made of it."""

    def __init__(self, feedback: Feedback, saved: SavedSteering | None = None) -> None:
        """Stand where `saved` was, or before the first report."""
        self._feedback = feedback
        self._weights = None if saved is None else saved.weights
        self._losses = {} if saved is None else dict(saved.losses)
        self._due: dict[str, float] = {}
        """What was reported for the step that is drawn next."""

    @property
    def losses(self) -> dict[str, float]:
        """The newest that was reported of each source; sources that nothing was reported of are left out."""
        return self._losses | self._due

    def come_due(self, reports: Iterable[Mapping[str, float]]) -> None:
        """Take all that was reported for the step that is drawn next, in order, in place of what was taken before."""
        self._due = {name: loss for losses in reports for name, loss in losses.items()}

    def weights(self, step: int, shares: Mapping[str, float]) -> dict[str, float] | None:
        """Return the weights in force at a step, None as long as the configured ones hold.

        Args:
            step: That is drawn next.
            shares: In force before it, by source.
        """
        losses = self.losses
        if losses and self._feedback.is_due(step):
            return self._feedback.weights(shares, losses, step)
        return self._weights

    def advance(self, weights: dict[str, float] | None) -> None:
        """Stand after a step that these weights were in force at."""
        self._losses, self._due, self._weights = self.losses, {}, weights

    def state_dict(self) -> StateDict:
        """Return what a replay needs."""
        return {"weights": self._weights, "losses": dict(self._losses)}

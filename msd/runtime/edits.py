"""Edits that every engine takes while its run goes on, under the same names and with the same words."""

import getpass
import math
import platform
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msd.core.checks import losses_of, whole_number
from msd.core.journal import Edit, Report, Resume, SetWeights, SkipRows, SkipSteps, Suspend
from msd.errors import ConfigError


class TakesEdits(ABC):
    """The edits of an engine.

    Each is durable before the first plan that it affects, and is replayed with it. Without `at_step` it takes effect at
    the first step that nobody has planned; with one that is planned already it is refused, naming the first that is
    not. All return the step at which it takes effect.
    """

    def mix(
        self, weights: Mapping[str, float], *, at_step: int | None = None, ramp: int = 0, who: str | None = None
    ) -> int:
        """Draw by other weights, in place of those that the schedule says, until they are set again.

        Args:
            weights: By source; those that are left out have weight 0.
            at_step: The first step that is drawn by them.
            ramp: Steps over which the weights in force change to these.
            who: Who decided; None is who runs this process.
        """
        ramp = whole_number(ramp, name="ramp")
        if ramp < 0:
            raise ConfigError(f"ramp must be 0 steps or more, got {ramp}")
        edit = SetWeights(at_step=_step(at_step), weights=_weights(weights), ramp=ramp, who=_who(who), when=_now())
        return self._edit(edit, move_late=at_step is None)

    def report(self, losses: Mapping[str, float], *, at_step: int | None = None, who: str | None = None) -> int:
        """Say what training sees of the sources, for `mixture.feedback`: the newest values from a step on.

        Args:
            losses: By source, finite; those of which nothing is known are left out, and keep what was said before.
            at_step: The first step for which they may count.
            who: Who says so; None is who runs this process.
        """
        edit = Report(at_step=_step(at_step), losses=losses_of(losses), who=_who(who), when=_now())
        return self._edit(edit, move_late=at_step is None)

    def edits(self) -> list[dict[str, Any]]:
        """Return the edits of this run's generation that are durable, in order: plain values, with who and when.

        Reports are left out: there may be one for each step; `stats()["sources"][...]["loss"]` has the newest.
        """
        return self._edits()

    @abstractmethod
    def _edits(self) -> list[dict[str, Any]]:
        """Return the durable edits as `edits_to_state` gives them."""

    @abstractmethod
    def _edit(self, edit: Edit, *, move_late: bool) -> int:
        """Have an edit take effect and return at which step.

        Args:
            edit: What was decided.
            move_late: Let it take effect at the first step that is not planned, if its own is.
        """

    def skip(
        self, source: str, first: int, last: int | None = None, *, at_step: int | None = None, who: str | None = None
    ) -> int:
        """Pass over rows of a source, whatever their transforms would give.

        Args:
            source: Its name.
            first: Ordinal of the first row; `engine.which` and the log name ordinals.
            last: Ordinal of the last row, inclusive; None is `first`.
            at_step: The first step that may not hold them.
            who: Who decided; None is who runs this process.
        """
        first = whole_number(first, name="first")
        last = first if last is None else whole_number(last, name="last")
        if first < 0 or last < first:
            raise ConfigError(f"rows are skipped from first 0 or more to last, got first={first}, last={last}")
        return self._edit(
            SkipRows(
                at_step=_step(at_step),
                source=_text(source, name="source"),
                first=first,
                last=last,
                who=_who(who),
                when=_now(),
            ),
            move_late=at_step is None,
        )

    def skip_steps(self, count: int, *, at_step: int | None = None, who: str | None = None) -> int:
        """Draw and drop what the next steps would hold: the step at which it takes effect holds what came after.

        Args:
            count: How many.
            at_step: The first of them.
            who: Who decided; None is who runs this process.
        """
        count = whole_number(count, name="count")
        if count < 1:
            raise ConfigError(f"count must be 1 step or more, got {count}")
        return self._edit(
            SkipSteps(at_step=_step(at_step), count=count, who=_who(who), when=_now()), move_late=at_step is None
        )

    def suspend(self, source: str, *, at_step: int | None = None, reason: str = "", who: str | None = None) -> int:
        """Draw from a source no longer: its credit is frozen, its samples that wait stay in line.

        Args:
            source: Its name.
            at_step: The first step without it.
            reason: For people.
            who: Who decided; None is who runs this process.
        """
        edit = Suspend(
            at_step=_step(at_step),
            source=_text(source, name="source"),
            reason=_text(reason, name="reason"),
            who=_who(who),
            when=_now(),
        )
        return self._edit(edit, move_late=at_step is None)

    def resume_source(self, source: str, *, at_step: int | None = None, who: str | None = None) -> int:
        """Draw from a suspended source again.

        Args:
            source: Its name.
            at_step: The first step with it.
            who: Who decided; None is who runs this process.
        """
        edit = Resume(at_step=_step(at_step), source=_text(source, name="source"), who=_who(who), when=_now())
        return self._edit(edit, move_late=at_step is None)


def _step(at_step: int | None) -> int:
    """Return a step that is moved to the first free one, where none was named."""
    step = 0 if at_step is None else whole_number(at_step, name="at_step")
    if step < 0:
        raise ConfigError(f"at_step must be 0 or more, got {step}; steps count from 0")
    return step


def _text(value: object, *, name: str) -> str:
    """Return a text that a file can hold."""
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a text, got {str(value)[:40]!r} ({type(value).__name__}); pass one string")
    return value.encode(errors="backslashreplace").decode()


def _weights(weights: Any) -> dict[str, float]:
    """Return weights that can be drawn by."""
    if not isinstance(weights, Mapping) or not weights:
        raise ConfigError(f'mix takes weights by source such as {{"web": 0.7, "photos": 0.3}}, got {weights!r}')
    found = {}
    for source, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
            raise ConfigError(f"the weight of {str(source)!r} must be a number of 0 or more, got {weight!r}")
        found[_text(source, name="source")] = float(weight)
    if not any(found.values()):
        raise ConfigError("every weight is 0: nothing would be drawn; give one source a weight above 0")
    return found


def _who(who: str | None) -> str:
    """Return who decides, for the journal."""
    if who is not None:
        return _text(who, name="who")
    try:
        return f"{getpass.getuser()}@{platform.node()}"
    except (KeyError, OSError):
        return platform.node()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

"""Edits that every engine takes while its run goes on, under the same names and with the same words."""

from abc import ABC, abstractmethod
from datetime import UTC, datetime

from msd.core.checks import whole_number
from msd.core.journal import Edit, Resume, SkipRows, SkipSteps, Suspend
from msd.errors import ConfigError


class TakesEdits(ABC):
    """The edits of an engine.

    Each is durable before the first plan that it affects, and is replayed with it. Without `at_step` it takes effect at
    the first step that nobody has planned; with one that is planned already it is refused, naming the first that is
    not. All return the step at which it takes effect.
    """

    @abstractmethod
    def _edit(self, edit: Edit, *, move_late: bool) -> int:
        """Have an edit take effect and return at which step.

        Args:
            edit: What was decided.
            move_late: Let it take effect at the first step that is not planned, if its own is.
        """

    def skip(self, source: str, first: int, last: int | None = None, *, at_step: int | None = None) -> int:
        """Pass over rows of a source, whatever their transforms would give.

        Args:
            source: Its name.
            first: Ordinal of the first row; `engine.which` and the log name ordinals.
            last: Ordinal of the last row, inclusive; None is `first`.
            at_step: The first step that may not hold them.
        """
        first = whole_number(first, name="first")
        last = first if last is None else whole_number(last, name="last")
        if first < 0 or last < first:
            raise ConfigError(f"rows are skipped from first 0 or more to last, got first={first}, last={last}")
        return self._edit(
            SkipRows(at_step=_step(at_step), source=_text(source, name="source"), first=first, last=last, when=_now()),
            move_late=at_step is None,
        )

    def skip_steps(self, count: int, *, at_step: int | None = None) -> int:
        """Draw and drop what the next steps would hold: the step at which it takes effect holds what came after.

        Args:
            count: How many.
            at_step: The first of them.
        """
        count = whole_number(count, name="count")
        if count < 1:
            raise ConfigError(f"count must be 1 step or more, got {count}")
        return self._edit(SkipSteps(at_step=_step(at_step), count=count, when=_now()), move_late=at_step is None)

    def suspend(self, source: str, *, at_step: int | None = None, reason: str = "") -> int:
        """Draw from a source no longer: its credit is frozen, its samples that wait stay in line.

        Args:
            source: Its name.
            at_step: The first step without it.
            reason: For people.
        """
        edit = Suspend(
            at_step=_step(at_step),
            source=_text(source, name="source"),
            reason=_text(reason, name="reason"),
            when=_now(),
        )
        return self._edit(edit, move_late=at_step is None)

    def resume_source(self, source: str, *, at_step: int | None = None) -> int:
        """Draw from a suspended source again.

        Args:
            source: Its name.
            at_step: The first step with it.
        """
        edit = Resume(at_step=_step(at_step), source=_text(source, name="source"), when=_now())
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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

"""The edits of a planner at the boundary where it stands: those in force, those that wait, those that are due."""

# S = sources, in order of name.

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from msd.core.journal import Edit, Report, SetWeights, SkipRows, SkipSteps
from msd.core.state import StateDict
from msd.errors import ConfigError
from msd.planner.edits import NO_EDITS, InForce, Reweighted, notes_of_edits, pending_state

SharesAt = Callable[[Sequence[bool], Reweighted | None], Sequence[float]]
"""Shares at the boundary, of the sources that may be drawn, under weights that an edit set or those of the schedule."""


@dataclass(frozen=True, slots=True)
class EditBook:
    """A value: what changes it returns another one."""

    names: tuple[str, ...]
    """Sources, in order."""
    in_force: InForce = NO_EDITS
    """Before those that are due."""
    pending: tuple[Edit, ...] = ()
    """Edits that wait for their step, those that are due included."""
    due: tuple[Edit, ...] = ()
    """At the step that is planned next."""
    now: InForce = NO_EDITS
    """With those that are due."""
    reweighted: Reweighted | None = None
    """Of `now`."""

    @property
    def skips(self) -> tuple[SkipRows, ...]:
        """Rows that are passed over now or from some step on."""
        waiting = tuple(edit for edit in self.pending if isinstance(edit, SkipRows))
        return tuple(dict.fromkeys((*self.now.skips, *waiting)))

    @property
    def num_steps_to_drop(self) -> int:
        """Steps whose samples are drawn and dropped before the next one is filled."""
        return sum(edit.count for edit in self.due if isinstance(edit, SkipSteps))

    @property
    def reports(self) -> tuple[dict[str, float], ...]:
        """What is reported of the sources by edits that are due, in order."""
        return tuple(edit.losses for edit in self.due if isinstance(edit, Report))

    @property
    def sources_that_skip(self) -> frozenset[str]:
        """Sources of which rows are passed over by an edit that is due."""
        return frozenset(edit.source for edit in self.due if isinstance(edit, SkipRows))

    def with_edit(self, edit: Edit) -> "EditBook":
        """Return the book with one more edit that waits."""
        return replace(self, pending=(*self.pending, edit))

    def at(self, step: int, unended_S: Sequence[bool], shares_at: SharesAt) -> "EditBook":
        """Return the book at the boundary before a step: what is due acts.

        Args:
            step: That is planned next.
            unended_S: Which sources have rows left.
            shares_at: At this boundary.
        """
        due = tuple(edit for edit in self.pending if edit.at_step <= step)
        now = self._acting(due, unended_S, shares_at)
        return replace(self, due=due, now=now, reweighted=now.reweighted(self.names))

    def past(self, step: int, ordinals: Mapping[str, int]) -> "EditBook":
        """Return the book after a step was planned; `at` says what is due then.

        Args:
            step: That was planned.
            ordinals: By source, the first row that is not consumed.
        """
        pending = tuple(edit for edit in self.pending if edit.at_step > step)
        return replace(self, pending=pending, in_force=self.now.at_boundary(step + 1, ordinals))

    def notes(self, ordinals: Mapping[str, int]) -> list[str]:
        """Return what people are told of the edits that are due, one line each."""
        return notes_of_edits(self.due, self.in_force, ordinals)

    def state_dict(self) -> StateDict:
        """Return the keys of a position that tell of these edits: none without any."""
        return self.in_force.state_dict() | pending_state(self.pending)

    def shares_ahead(self, last: int, unended_S: Sequence[bool], shares_at: SharesAt) -> list[tuple[float, ...]]:
        """Return the shares that weights which wait will have led to by a step, one for each of them.

        Args:
            last: The step.
            unended_S: Which sources have rows left.
            shares_at: At the boundary where the planner stands.
        """
        found, until = [], []
        for edit in sorted(self.pending, key=lambda waiting: waiting.at_step):
            until.append(edit)
            if not isinstance(edit, SetWeights) or edit.at_step > last:
                continue
            reweighted = self._acting(until, unended_S, shares_at).reweighted(self.names)
            assert reweighted is not None, "weights were set by the last of them"
            found.append(reweighted.schedule.shares(min(last, edit.at_step + edit.ramp), unended_S))
        return found

    def expect_shares(self, edit: Edit, step: int, unended_S: Sequence[bool], shares_at: SharesAt) -> None:
        """Raise `ConfigError` if nothing can be drawn any more once an edit acts, as far as that is known now.

        Args:
            edit: One of those that wait.
            step: That is planned next.
            unended_S: Which sources have rows left.
            shares_at: At this boundary.
        """
        until = (other for other in self.pending if other.at_step <= edit.at_step)
        acting = self._acting(until, unended_S, shares_at)
        live_S = [is_live and name not in acting.suspended for name, is_live in zip(self.names, unended_S, strict=True)]
        here = edit.at_step == step and acting.weights is None
        share_S = shares_at(live_S, None) if here else acting.target(self.names, live_S)
        if any(unended_S) and not any(share_S):
            raise ConfigError(
                f"from step {edit.at_step} on nothing could be drawn: every source that has a weight would be "
                "suspended or has ended; resume one first, or give another a weight"
            )

    def _acting(self, edits: Iterable[Edit], unended_S: Sequence[bool], shares_at: SharesAt) -> InForce:
        """Return what acts after edits that come into force at the boundary where the planner stands."""
        acting = self.in_force
        for edit in edits:
            shares = shares_at(unended_S, acting.reweighted(self.names))
            acting = acting.after(edit, dict(zip(self.names, shares, strict=True)))
        return acting

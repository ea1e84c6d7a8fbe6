"""Inputs of a run that are no functions of its configuration: what somebody decided while it ran.

A plan is computed from (configuration, seed, step, progress, metadata) and from these. An edit is journalled before
the first plan that it affects, at a step that nobody has planned; replayed in the same order it gives the same plans.
"""

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec

from msd.core.state import StateDict
from msd.errors import StateError


class _Edit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="edit"):
    """What all edits say."""

    at_step: int
    """The first step that it affects."""
    who: str = ""
    """Who decided, for people."""
    when: str = ""
    """ISO 8601 time of the decision, for people; no input of anything."""
    noted_at: int = 0
    """The step that was to be planned next when it was journalled: positions before later steps tell of it, so that a
    step planned again has the same position after it. Set by the coordinator."""


class Suspend(_Edit, frozen=True, kw_only=True, tag="suspend"):
    """A source is not drawn from any more: its credit is frozen, its samples that wait stay in line."""

    source: str
    reason: str = ""


class Resume(_Edit, frozen=True, kw_only=True, tag="resume"):
    """A suspended source is drawn from again."""

    source: str


class SkipRows(_Edit, frozen=True, kw_only=True, tag="skip_rows"):
    """Rows of a source that are passed over, whatever their transforms would give.

    Rows that are drawn already when the edit takes effect stay where they are.
    """

    source: str
    first: int
    """Ordinal."""
    last: int
    """Ordinal, inclusive."""
    reason: Literal["skip", "killed"] = "skip"
    """`skip`: somebody asked for it. `killed`: the row ended or hung its process twice; counts toward `max_rate`."""
    how: str = ""
    """How a killed row ended its process, for people: `SIGSEGV`, `no answer for 120 s`."""


class SkipSteps(_Edit, frozen=True, kw_only=True, tag="skip_steps"):
    """What the next `count` steps would hold is drawn and dropped: step `at_step` holds what came after them.

    What is dropped is what steps `at_step` to `at_step + count - 1` would have held, under the weights and sizes that
    schedules say for those steps. Steps are not renumbered: step `at_step` has the weights and sizes of step `at_step`.
    Rows and tokens that are dropped count as drawn, so clocks that count them go on.
    """

    count: int


class SetWeights(_Edit, frozen=True, kw_only=True, tag="set_weights"):
    """Weights of the mixture from a step on, in place of those that its schedule says.

    Sources that are left out have weight 0, and groups are no more: what a source leaves that ends goes to all others.
    """

    weights: dict[str, float]
    """By source."""
    ramp: int = 0
    """Steps over which the weights in force change to these."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "weights", _as_floats(self.weights))


class Report(_Edit, frozen=True, kw_only=True, tag="report"):
    """What training saw of the sources, for `mixture.feedback`: the newest values from `at_step` on."""

    losses: dict[str, float]
    """By source; those of which nothing is known are left out."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "losses", _as_floats(self.losses))


Edit: TypeAlias = Suspend | Resume | SkipRows | SkipSteps | SetWeights | Report


def _as_floats(values: dict[str, float]) -> dict[str, float]:
    """Return numbers as they are read back: the same edit must be written the same."""
    return {name: float(value) if type(value) is int else value for name, value in values.items()}


def edits_to_state(edits: Iterable[Edit]) -> list[dict[str, Any]]:
    """Return edits as JSON-able values."""
    return [msgspec.to_builtins(edit) for edit in edits]


def edits_from_state(entries: Any) -> tuple[Edit, ...]:
    """Return the edits that `edits_to_state` wrote.

    Raises:
        StateError: If the entries are no edits; names the first thing that is wrong.
    """
    try:
        return tuple(msgspec.convert(entries, list[Edit], strict=True))
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise StateError(f"the journal is damaged ({error}); use an earlier checkpoint") from None


PENDING = "pending"
"""Key of a planner's position: the edits that wait for their step, in the order in which they were journalled."""


def with_pending(progress: StateDict, edits: Iterable[Edit]) -> StateDict:
    """Return a planner's position with edits that it does not know of yet.

    Args:
        progress: The position before some step.
        edits: In the order of the journal. Those for earlier steps, and those that it has, are left out.

    Raises:
        StateError: If the edits that the position has are damaged.
    """
    known = edits_from_state(progress.get(PENDING, []))
    added = [edit for edit in edits if edit.at_step >= int(progress["step"]) and edit not in known]
    return {**progress, PENDING: edits_to_state([*known, *added])} if added else progress
